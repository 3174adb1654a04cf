# SPDX-License-Identifier: GPL-2.0-only
"""Small hand-written event streams, and their tables in a form that is easy to compare.

Times in these tests are small numbers. T0 is added to them, because ts 0 means "before the recording".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from nsight_report import calls
from nsight_report.capture.perf_data import CODE, EVENT, NO_CPU, Decoded

T0 = 1_000_000
STRINGS = ["", "server", "client", "local_timer", "eth0", "hog", "renamed"]
SERVER, CLIENT, LOCAL_TIMER, ETH0, HOG, RENAMED = range(1, 7)
SYSCALLS = {0: "read", 1: "write", 56: "clone", 59: "execve", 232: "epoll_wait"}

# prev_state of sched_switch
R, S, D, T, DEAD, PREEMPTED = 0, 1, 2, 4, 0x10, 0x100

Event = tuple[Any, ...]


def event(
    ts: int, kind: str, tid: int, cpu: int = 0, a: int = 0, b: int = 0, c: int = 0, pid: int | None = None
) -> Event:
    """One event at T0 + ts while thread ``tid`` is current on ``cpu``."""
    return (T0 + ts, CODE[kind], cpu, tid if pid is None else pid, tid, 0, a, b, c)


def switch(
    ts: int, prev: int, next_: int, state: int = S, cpu: int = 0, names: tuple[int, int] = (0, 0)
) -> Event:
    """``prev`` leaves the core in ``state``, ``next_`` gets it."""
    return event(ts, "sched_switch", prev, cpu, a=next_, b=state, c=names[0] | names[1] << 32)


def enter(ts: int, tid: int, number: int, arg: int = 0, cpu: int = 0) -> Event:
    """System call ``number`` with first argument ``arg``."""
    return event(ts, "sys_enter", tid, cpu, a=number, b=arg)


def leave(ts: int, tid: int, number: int, cpu: int = 0) -> Event:
    """The system call returns."""
    return event(ts, "sys_exit", tid, cpu, a=number)


def wake(
    ts: int, tid: int, by: int, target: int, cpu: int = 0, kind: str = "sched_waking", name: int = 0
) -> Event:
    """``by``, running on ``cpu``, wakes ``tid``, which last ran on ``target``."""
    return event(ts, kind, by, cpu, a=tid, b=target, c=name)


def record(kind: str, ts: int | None, tid: int, pid: int, a: int = 0, b: int = 0, c: int = 0) -> Event:
    """A side-band record; ts None: one that perf writes about what existed before the recording."""
    return (0 if ts is None else T0 + ts, CODE[kind], NO_CPU, pid, tid, 0, a, b, c)


def array(*events: Event) -> npt.NDArray[np.void]:
    """The events as nsight-perfdata would write them: in time order."""
    made = np.array(list(events), dtype=EVENT)
    return made[np.argsort(made["ts"], kind="stable")]


def build(*events: Event, recorder: str = "perf") -> tuple[pa.Table, pa.Table, pa.Table, pa.Table]:
    """calls, contexts, thread_states and losses of the events."""
    info = {"losses": {"wake_ups_untraced": 0}} if recorder == "bpf" else {}
    return calls.build(Decoded(array(*events), STRINGS, "monotonic", info), SYSCALLS)


def nesting(table: pa.Table) -> list[tuple[Any, ...]]:
    """(cpu, depth, kind, symbol, start, end, self) of each call."""
    return [
        (
            r["cpu"],
            r["depth"],
            r["kind"],
            r["symbol"],
            r["start_ns"] - T0,
            r["start_ns"] - T0 + r["dur_ns"],
            r["self_ns"],
        )
        for r in table.to_pylist()
    ]


def ends(table: pa.Table) -> list[tuple[str, str, str]]:
    """(symbol, how the start is known, how the end is known) of each call."""
    return [(r["symbol"], r["start_known"], r["end_known"]) for r in table.to_pylist()]


def intervals(table: pa.Table, cpu: int = 0) -> list[tuple[str, int, int]]:
    """(symbol, start, end) of each context of one core."""
    return [(r["symbol"], r["start_ns"] - T0, r["end_ns"] - T0) for r in table.to_pylist() if r["cpu"] == cpu]


def states(table: pa.Table, tid: int) -> list[tuple[str, int, int, int]]:
    """(state, cpu, start, end) of each interval of one thread."""
    return [
        (r["state"], r["cpu"], r["start_ns"] - T0, r["end_ns"] - T0)
        for r in table.to_pylist()
        if r["tid"] == tid
    ]


def counted(losses: pa.Table) -> dict[str, int]:
    """Count of each cause in a losses table."""
    return {r["cause"]: r["count"] for r in losses.to_pylist()}
