# SPDX-License-Identifier: GPL-2.0-only
"""``waits``: each time a thread left its core without being preempted: its system call or fault, and what woke it.

The current thread at a wake-up means little: below a wake-up from an interrupt runs an unrelated thread. So
each wake-up is assigned to the context of its core at that time: a thread's own code, a softirq, an interrupt. For block I/O,
the completion is recorded right before the wake-ups that it causes, on the same core and in the same interrupt.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..capture.perf_data import CODE
from ..interval_joins import as_of
from ..tables import schema
from ..tables.data_frames import words
from . import memory_work

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

ASLEEP = ("sleeping", "blocked", "stopped")
#: Values of ``enum req_op``, include/linux/blk_types.h.
OPERATIONS = {0: "read", 1: "write", 2: "flush", 3: "discard", 5: "secure erase", 7: "zone append", 9: "write zeroes"}  # fmt: skip

# A softirq that an interrupt raises runs when that interrupt ends; several run one after the other.
_BEHIND_IRQ_NS = 5_000
_BEHIND_SOFTIRQ_NS = 2_000
# Interrupts that bring no packets, unless a NIC defers its own (napi_defer_hard_irqs) and polls on a timer. Then most polls of a core
# follow such an interrupt; one that only hits a thread that sends on this machine precedes about one of a hundred.
_NO_DEVICE = ("local_timer", "reschedule")
_POLLS_BY_CHANCE = 0.05


def build(
    events: npt.NDArray[np.void],
    calls: pa.Table,
    contexts: pa.Table,
    thread_states: pa.Table,
    syscall_names: Mapping[str, str],
) -> pa.Table:
    """Table ``waits`` of schema.py. ``events``: array of perf_data.EVENT; the tables are made from these events."""
    asleep = np.isin(words(thread_states["state"].to_pandas()), ASLEEP)
    rows = thread_states.filter(pa.array(asleep)) if len(asleep) else thread_states
    tid, start, end, cpu = (rows[n].to_numpy().astype(np.int64) for n in ("tid", "start_ns", "end_ns", "cpu"))
    timed = events[events["ts"] > 0]
    columns: dict[str, object] = {
        "tid": tid.astype(np.int32),
        "start_ns": start,
        "end_ns": end,
        "state": rows["state"],
        "cpu": cpu.astype(np.int32),
    }
    columns |= _places(timed, tid, start, words(rows["state"].to_pandas()), syscall_names)
    columns |= _wakers(timed, tid, end, calls, contexts)
    return schema.conform("waits", pa.table(columns))


def _places(
    events: npt.NDArray[np.void],
    tid: Ints,
    start: Ints,
    state: npt.NDArray[np.object_],
    names: Mapping[str, str],
) -> dict[str, object]:
    """System call or page fault of each thread when it left its core, from the last record of either, and its memory work."""
    kinds = [CODE["sys_enter"], CODE["sys_exit"], CODE["page_fault_user"]]
    entered = events[np.isin(events["kind"], kinds) & (events["tid"] > 0)]
    at = as_of(entered["tid"].astype(np.int64), entered["ts"].astype(np.int64), tid, start)
    known = at >= 0
    kind, number, arg = (np.zeros(len(at), np.int64) for _ in range(3))
    kind[known], number[known] = entered["kind"][at[known]], entered["a"][at[known]]
    arg[known] = entered["b"][at[known]]
    in_call = known & (kind == CODE["sys_enter"])
    in_fault = known & (kind == CODE["page_fault_user"]) & (state == "blocked")
    work, _ = memory_work.measured_of(events)
    last = as_of(work["tid"].to_numpy(), work["start_ns"].to_numpy(), tid, start)
    in_work = (last >= 0) & (np.append(work["end_ns"].to_numpy(), 0)[last] > start)
    which = -3 - np.append(work["work"].map(memory_work.MEASURED.index), 0).astype(np.int64)[last]
    # the address of a fault is stored where the number of a call is
    arg = np.select([in_work, in_call, in_fault], [0, arg, number])
    codes, unique = pd.factorize(np.select([in_work, in_call, in_fault], [which, number, -2], -1))
    texts = {-1: "", -2: memory_work.PAGE_FAULT}
    texts |= {-3 - n: name for n, name in enumerate(memory_work.MEASURED)}
    place = [texts.get(int(n), names.get(str(n), f"syscall {n}")) for n in unique]
    return {"place": _dictionary(codes, place), "arg": arg}


def _wakers(
    events: npt.NDArray[np.void], tid: Ints, end: Ints, calls: pa.Table, contexts: pa.Table
) -> dict[str, object]:
    """Who woke each thread, on which core, and the context of that core; also the block I/O that had just been completed there."""
    kinds = [CODE["sched_waking"], CODE["sched_wakeup"], CODE["sched_wakeup_new"]]
    wakes = events[np.isin(events["kind"], kinds)]
    # The first one at that time; as_of finds the last.
    wakes = wakes[::-1]
    at = as_of(wakes["a"].astype(np.int64), wakes["ts"].astype(np.int64), tid, end)
    woken = at >= 0
    woken[woken] = wakes["ts"][at[woken]].astype(np.int64) == end[woken]
    wake = wakes[at[woken]]
    # If its tracepoint did not fire, it is known when it happened, but not where.
    cpu, ts = np.where(wake["tid"] < 0, -1, wake["cpu"].astype(np.int64)), wake["ts"].astype(np.int64)

    cores, starts = (contexts[n].to_numpy().astype(np.int64) for n in ("cpu", "start_ns"))
    place = as_of(cores, starts, cpu, ts)
    told = place >= 0
    told[told] = contexts["end_ns"].to_numpy()[place[told]] >= ts[told]
    rows = contexts.take(pa.array(np.where(told, place, 0))) if contexts.num_rows else contexts
    call = rows["call_id"].to_numpy() if contexts.num_rows else np.zeros(0, np.int64)
    of_irq = told & np.isin(call, _interrupts(calls))

    def spread(column: Ints, nothing: int) -> Ints:
        every = np.full(len(tid), nothing, np.int64)
        every[woken] = column
        return every

    def spread_words(name: str) -> pa.DictionaryArray:
        texts = words(rows[name].to_pandas()) if contexts.num_rows else np.zeros(0, object)
        every = np.full(len(tid), "", object)
        every[woken] = np.where(told, texts, "") if len(texts) else ""
        codes, unique = pd.factorize(every)
        return _dictionary(codes, [str(text) for text in unique])

    from_thread = np.zeros(len(tid), bool)
    from_thread[woken] = told & np.isin(call, _raised_by_threads(calls))
    begun = calls["start_ns"].to_numpy()[np.where(of_irq, call, 0)] if len(call) and calls.num_rows else ts
    io = _completed(events, cpu, ts, np.where(of_irq, begun, ts + 1))
    return {
        "waker_tid": spread(wake["tid"].astype(np.int64), -1).astype(np.int32),
        "waker_comm": spread_words("comm"),
        "waker_cpu": spread(cpu, -1).astype(np.int32),
        "context": spread_words("kind"),
        "symbol": spread_words("symbol"),
        "from_thread": from_thread,
        "device": spread(io["device"], -1).astype(np.int64),
        "operation": _operations(spread(io["operation"], -1)),
        "nbytes": spread(io["nbytes"], 0),
        "io_ns": spread(io["ns"], 0),
    }


def _interrupts(calls: pa.Table) -> Ints:
    kind = words(calls["kind"].to_pandas())
    return calls["call_id"].to_numpy()[np.isin(kind, ["softirq", "hardirq"])]


def _raised_by_threads(calls: pa.Table) -> Ints:
    """Softirqs (call_id) that no interrupt raised: the thread underneath raised them itself, for example by sending on loopback.

    A softirq counts as the thread's if no interrupt ended right before it. It also does if only a timer's interrupt did: this may hit
    the thread between its send and the receive softirq, and raises no receive softirq itself, unless a NIC defers its interrupts.
    """
    kind, symbol = (words(calls[name].to_pandas()) for name in ("kind", "symbol"))
    cpu, start, tid = (calls[n].to_numpy().astype(np.int64) for n in ("cpu", "start_ns", "tid"))
    end = start + calls["dur_ns"].to_numpy()
    soft = np.flatnonzero((kind == "softirq") & (tid > 0))
    hard = np.flatnonzero(kind == "hardirq")
    hard = hard[np.lexsort((end[hard], cpu[hard]))]
    before = as_of(cpu[hard], end[hard], cpu[soft], start[soft])
    behind_irq = start[soft] - np.append(end[hard], -_BEHIND_IRQ_NS)[before] < _BEHIND_IRQ_NS
    order = np.lexsort((start[soft], cpu[soft]))
    core, begin, finish = cpu[soft][order], start[soft][order], end[soft][order]
    first = np.ones(len(order), bool)
    first[1:] = (core[1:] != core[:-1]) | (begin[1:] - finish[:-1] > _BEHIND_SOFTIRQ_NS)
    head = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    irq = behind_irq[order][head]
    poll = symbol[soft][order] == "NET_RX"
    own = irq & poll & np.isin(np.append(symbol[hard], "")[before][order][head], _NO_DEVICE)
    n_polls, n_own = (np.bincount(core[rows], minlength=core.max(initial=0) + 1) for rows in (poll, own))
    irq &= ~(own & (n_own <= _POLLS_BY_CHANCE * n_polls)[core])
    return calls["call_id"].to_numpy()[soft[order[~irq]]]


def _completed(events: npt.NDArray[np.void], cpu: Ints, ts: Ints, since: Ints) -> dict[str, Ints]:
    """The last block I/O that a core completed from ``since`` to ``ts``; one with known times is preferred."""
    done = events[events["kind"] == CODE["block_io"]]
    cores, times = done["cpu"].astype(np.int64), done["ts"].astype(np.int64)
    timed = np.flatnonzero(done["b"] > 0)
    found = np.full(len(cpu), -1)
    for rows in (np.arange(len(done)), timed):
        at = as_of(cores[rows], times[rows], cpu, ts)
        at = np.where(at >= 0, np.append(rows, -1)[at], -1)
        good = at >= 0
        good[good] = times[at[good]] >= since[good]
        found[good] = at[good]
    none = found < 0
    found = np.where(none, 0, found)
    told = {
        "device": done["a"],
        "operation": done["c"] >> 32 & 0xFF,
        "nbytes": done["c"] & 0xFFFFFFFF,
        "ns": done["b"],
    }
    nothing = {"device": -1, "operation": -1, "nbytes": 0, "ns": 0}
    if not len(done):
        return {name: np.full(len(cpu), value, np.int64) for name, value in nothing.items()}
    return {name: np.where(none, nothing[name], column[found]) for name, column in told.items()}


def _operations(numbers: Ints) -> pa.DictionaryArray:
    codes, unique = pd.factorize(numbers)
    return _dictionary(codes, ["" if n < 0 else OPERATIONS.get(int(n), f"operation {n}") for n in unique])


def _dictionary(codes: npt.NDArray[np.integer], texts: list[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(texts, pa.string()))
