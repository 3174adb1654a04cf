# SPDX-License-Identifier: GPL-2.0-only
"""What the cores and threads of a recording did, as arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..interval_joins import Int, latest
from ..names import thread_name
from ..recorder import NOBODY, Recorder, named
from ..selection.application import App
from ..tables.data_frames import column
from . import arrival, occupancy
from .frequency import CoreFrequencies
from .occupancy import Tiles

# Kinds of contexts, as in table contexts.
CONTEXTS = ("thread", "syscall", "softirq", "hardirq", "exception", "idle", "gap", "absent")
IN_THREAD, IN_SYSCALL, IN_SOFTIRQ, IN_HARDIRQ, IN_EXCEPTION, IN_IDLE, IN_GAP, IN_ABSENT = range(len(CONTEXTS))

#: Columns of messages that show what cores received and threads read.
RECEIVED = ("message_id", "conn_id", "pid", "comm", "arrival_ns", "tid", "call_ns", "app_ns")

#: The context of a thread outside system calls and exceptions.
USER_CODE = "user code"
LOST = "retransmission"


class Names:
    """Strings and their codes."""

    def __init__(self) -> None:
        self.list: list[str] = []
        self._code: dict[str, int] = {}

    def code(self, name: str) -> int:
        """The code of ``name``, a new one if needed."""
        if name not in self._code:
            self._code[name] = len(self.list)
            self.list.append(name)
        return self._code[name]

    def codes(self, values: pd.Series, rename: Callable[[str], str] = str) -> Int:
        """Codes of a column with few distinct strings, each passed through ``rename``."""
        category = values.astype("category")
        names = [rename(str(n)) for n in category.cat.categories]
        table = np.array([self.code(n) for n in names] + [self.code("")], np.int64)
        return table[category.cat.codes.to_numpy()]


@dataclass(frozen=True)
class MemoryWork:
    """Memory work of the kernel in the thread on each core, in order of core and time; ``work``: code of its name."""

    cpu: Int = field(default_factory=lambda: np.zeros(0, np.int64))
    start: Int = field(default_factory=lambda: np.zeros(0, np.int64))
    end: Int = field(default_factory=lambda: np.zeros(0, np.int64))
    work: Int = field(default_factory=lambda: np.zeros(0, np.int64))

    @staticmethod
    def of(table: pd.DataFrame, names: Names) -> MemoryWork:
        """Rows of ``memory_work``."""
        cpu, start, end = (column(table[name]) for name in ("cpu", "start_ns", "end_ns"))
        return MemoryWork(cpu, start, end, names.codes(table["work"]))


@dataclass(frozen=True)
class Machine:
    """What the cores and threads did, as arrays; made once per diagnosis.

    ``cpu`` to ``pid``: the columns of ``contexts`` (``kind`` an index into CONTEXTS, ``symbol``,
    ``comm`` and ``others`` codes of ``names``); ``threads`` and ``cores``: which message they worked on;
    ``told``: by row of the measured messages, when an interrupt announced it; ``received``: numbers of messages that cores
    received or threads worked on, ascending; for each of them ``receive_name``, ``receive_pid`` and ``receive_conn``: the code of
    ``<comm> receive``, the process that reads it, and its connection; ``receive_arrival``, ``read_tid`` and ``read_start``: when its
    first byte arrived, which thread read it and when that thread turned to it, -1 unknown; ``entered_*``: system calls,
    exceptions and USER_CODE that threads entered, by (tid, start), as far as they are looked up; ``app``: the messages
    of the application; ``recorder``: the processes of the recording; ``host``: delays that its settings can cause; ``lost``: by
    row of the measured messages, the name code of waiting for its retransmission, None: drops are unknown; ``frequencies`` and ``memory``: of the cores;
    ``usual_interrupt_ns``: length of an interrupt in the application's threads.
    """

    names: Names
    cpu: Int
    start: Int
    end: Int
    kind: Int
    symbol: Int
    comm: Int
    others: Int
    tid: Int
    pid: Int
    threads: Tiles
    cores: Tiles
    told: arrival.Told
    received: Int
    receive_name: Int
    receive_pid: Int
    receive_conn: Int
    receive_arrival: Int
    read_tid: Int
    read_start: Int
    entered_tid: Int
    entered_start: Int
    entered_name: Int
    app: App
    recorder: Recorder
    host: arrival.Host
    lost: Int | None = None
    frequencies: CoreFrequencies = field(default_factory=CoreFrequencies)
    memory: MemoryWork = field(default_factory=MemoryWork)
    usual_interrupt_ns: int = 0

    def was_in(self, tid: Int, time: Int) -> Int:
        """Name code of the system call, exception or USER_CODE that each thread was in at a time; -1: not known."""
        return np.append(self.entered_name, -1)[latest(self.entered_tid, self.entered_start, tid, time)]

    def resolve(self, thread_states: pd.DataFrame, tids: Int) -> pd.DataFrame:
        """``thread_states`` of some threads; a thread that waits, but not for a message, gets the state of sleeping.

        With Intel PT, only the system call shows what a thread waits for. In a gap this is unknown: the last
        one that was seen may have ended long before.
        """
        states = thread_states[thread_states["tid"].isin(tids)]
        known = ~occupancy.begin_in_gaps(states, self.cpu, self.start, self.end, self.kind == IN_GAP)
        at = np.flatnonzero((states["state"] == "waiting") & known)
        last = self.was_in(column(states["tid"])[at], column(states["start_ns"])[at])
        events = [self.names.code(name) for name in (*occupancy.WAITS, *occupancy.READS)]
        other = at[(last >= 0) & ~np.isin(last, events)]
        state = states["state"].astype(str).to_numpy(object)
        state[other] = "sleeping"
        return states.assign(state=state)

    @staticmethod
    def build(
        gaps: pd.DataFrame,
        entered: pd.DataFrame,
        threads: Tiles,
        cores: Tiles,
        received: pd.DataFrame,
        app: App,
        names: Names | None = None,
        recorder: Recorder = NOBODY,
        host: arrival.Host | None = None,
    ) -> Machine:
        """Facts of a whole capture; messages of all applications. ``names``: shared with another capture.

        ``gaps``: rows of ``contexts`` of that kind; ``entered``: what threads did (symbol, tid, start_ns); ``received``:
        ``RECEIVED`` of the messages in ``cores`` and ``threads``, in order. What cores did is added later (``during``), and
        so is when interrupts announced messages (``told``).
        """
        names = names or Names()
        tid, start = column(entered["tid"]), column(entered["start_ns"])
        order = np.lexsort((start, tid))
        none = np.zeros(0, np.int64)
        return Machine(
            names,
            none, none, none, none, none, none, none, none, none,
            threads,
            cores,
            arrival.nothing_told(0),
            received["message_id"].to_numpy(np.int64),
            names.codes(received["comm"].astype(str) + " receive"),
            column(received["pid"]),
            column(received["conn_id"]),
            column(received["arrival_ns"]),
            column(received["tid"]),
            occupancy.turned_to(column(received["call_ns"]), column(received["app_ns"])),
            tid[order],
            start[order],
            names.codes(entered["symbol"])[order],
            app,
            recorder,
            host or arrival.Host(),
        ).during(gaps)  # fmt: skip

    def after_drops(self, reasons: npt.NDArray[np.object_] | None) -> Machine:
        """The same, with the reason why this machine dropped an earlier copy of each measured message ('': no known drop)."""
        if reasons is None:
            return self
        codes, known = pd.factorize(reasons)
        table = [self.names.code(f"{LOST}: dropped here, {r}" if r else LOST) for r in known]
        return replace(self, lost=np.array([*table, 0], np.int64)[codes])

    def during(self, contexts: pd.DataFrame) -> Machine:
        """The same, with these rows of ``contexts`` as the activity of cores."""
        kind = pd.Categorical(contexts["kind"].astype(str), categories=list(CONTEXTS)).codes.astype(np.int64)
        comm = self.names.codes(contexts["comm"], thread_name)
        ours = self.recorder.among(column(contexts["pid"]), contexts["comm"])
        comm[ours] = self.names.codes(contexts["comm"][ours], named)
        return replace(
            self,
            cpu=column(contexts["cpu"]),
            start=column(contexts["start_ns"]),
            end=column(contexts["end_ns"]),
            kind=np.where(kind < 0, IN_GAP, kind),
            symbol=self.names.codes(contexts["symbol"]),
            comm=comm,
            others=self.names.codes(contexts["others"]),
            tid=column(contexts["tid"]),
            pid=column(contexts["pid"]),
        )
