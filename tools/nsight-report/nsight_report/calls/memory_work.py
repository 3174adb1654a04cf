# SPDX-License-Identifier: GPL-2.0-only
"""Table ``memory_work`` in mode tracepoints: memory work of the kernel in the thread that needed the memory.

The kernel reports when a page fault begins, but not when it ends. A fault takes at least as long as one of the
shortest kind on the same machine, unless something else is recorded on its core before: the recorder measures that duration
before it begins (``manifest.page_fault_ns``). If its thread is blocked in the fault, for storage or for memory, the fault lasts at
least until then: what the thread does on a core before (allocate a page, submit the I/O) is work of this fault. Reclaim, compaction and
migration of pages have both ends; for these, the time on a core counts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..capture.perf_data import CODE, Decoded
from ..interval_joins import as_of, latest, overlaps
from ..losses import Ledger
from ..tables import schema
from ..tables.data_frames import words

PAGE_FAULT = "page fault"
#: The part of a fault before its thread was blocked in it.
BLOCKED_FAULT = "page fault that was blocked"
#: In the order of the numbers of native/events.h.
MEASURED = ("memory reclaim", "memory compaction", "page migration")
#: No fault that waits for nothing takes longer; a manifest with a larger value is not the recorder's.
LONGEST_NS = 100_000


def table(decoded: Decoded, states: pa.Table, takes_ns: object, ledger: Ledger) -> pa.Table:
    """Rows in order of core and time, which do not overlap. ``states``: table ``thread_states`` of these events."""
    measured, n_overlap = _measured(decoded.events, states)
    ledger.add("memory_work_overlaps", n_overlap)
    faults = _faults(decoded.events, takes_ns, ledger)
    blocked = _until_blocked(decoded.events, states)
    begins = pd.MultiIndex.from_frame(blocked[["cpu", "start_ns"]])
    faults = faults[~pd.MultiIndex.from_frame(faults[["cpu", "start_ns"]]).isin(begins)]
    # The measured work is the longer part of the fault that led to it.
    within = latest(
        *(measured[n].to_numpy() for n in ("cpu", "start_ns")),
        *(faults[n].to_numpy() for n in ("cpu", "start_ns")),
    )
    until = np.append(measured["end_ns"].to_numpy(), -1)[within]
    rows = pd.concat([measured, _around(blocked, measured), faults[until <= faults["start_ns"].to_numpy()]])
    rows = rows.sort_values(["cpu", "start_ns"], kind="stable", ignore_index=True)
    cpu, start, end = (rows[n].to_numpy() for n in ("cpu", "start_ns", "end_ns"))
    same = np.append(cpu[1:] == cpu[:-1], False)
    end = np.where(same, np.minimum(end, np.append(start[1:], 0)), end)
    rows = rows.assign(end_ns=end)[end > start]
    return schema.conform("memory_work", pa.Table.from_pandas(rows, preserve_index=False))


def measured_of(events: npt.NDArray[np.void]) -> tuple[pd.DataFrame, int]:
    """``(rows, n)``: ``tid``, ``start_ns``, ``end_ns`` and ``work`` of work with both ends, in order of the first two and without overlaps.

    ``n``: how many began before the previous one on their thread had ended, and were cut.
    """
    at = events[(events["kind"] == CODE["memory_work"]) & (events["tid"] > 0)]
    at = at[np.lexsort((at["ts"], at["tid"]))]
    tid, end = at["tid"].astype(np.int64), at["ts"].astype(np.int64)
    start = end - at["b"]
    # A thread does one after the other: if records contradict that, the earlier ones are kept.
    after = np.flatnonzero(tid[1:] == tid[:-1]) + 1
    cut = after[start[after] < end[after - 1]]
    start[cut] = end[cut - 1]
    work = np.array(MEASURED, object)[at["a"]]
    rows = pd.DataFrame({"tid": tid, "start_ns": start, "end_ns": end, "work": work})
    return rows[end > start].reset_index(drop=True), len(cut)


def _measured(events: npt.NDArray[np.void], states: pa.Table) -> tuple[pd.DataFrame, int]:
    work, n_overlap = measured_of(events)
    running = words(states["state"].to_pandas()) == "running"
    cpu, tid, start, end = (
        states[n].to_numpy().astype(np.int64)[running] for n in ("cpu", "tid", "start_ns", "end_ns")
    )
    query, run, low, high = overlaps(
        work["tid"].to_numpy(), work["start_ns"].to_numpy(), work["end_ns"].to_numpy(), tid, start, end
    )
    names = work["work"].to_numpy()[query]
    rows = pd.DataFrame({"cpu": cpu[run], "start_ns": low, "end_ns": high, "work": names})
    return rows.sort_values(["cpu", "start_ns"], kind="stable", ignore_index=True), n_overlap


def _until_blocked(events: npt.NDArray[np.void], states: pa.Table) -> pd.DataFrame:
    """Page faults in which a thread was blocked, from their begin to that wait, as far as the thread was on a core.

    A thread is blocked in the fault if this is the last that it entered (as in ``waits``).
    """
    state = words(states["state"].to_pandas())
    cpu, tid, start, end = (
        states[n].to_numpy().astype(np.int64) for n in ("cpu", "tid", "start_ns", "end_ns")
    )
    is_fault = events["kind"] == CODE["page_fault_user"]
    wait = np.flatnonzero((state == "blocked") & np.isin(tid, np.unique(events["tid"][is_fault])))
    kinds = [CODE["sys_enter"], CODE["sys_exit"], CODE["page_fault_user"]]
    entered = events[np.isin(events["kind"], kinds) & np.isin(events["tid"], np.unique(tid[wait]))]
    at = as_of(entered["tid"].astype(np.int64), entered["ts"].astype(np.int64), tid[wait], start[wait])
    faulted = (at >= 0) & (np.append(entered["kind"], 0)[at] == CODE["page_fault_user"])
    # A fault that was blocked twice counts up to the first time.
    first = np.unique(at[faulted], return_index=True)[1]
    wait, at = wait[faulted][first], at[faulted][first]
    runs = np.flatnonzero(state == "running")
    _, run, low, high = overlaps(
        tid[wait], entered["ts"][at].astype(np.int64), start[wait], tid[runs], start[runs], end[runs]
    )
    rows = pd.DataFrame({"cpu": cpu[runs][run], "start_ns": low, "end_ns": high, "work": BLOCKED_FAULT})
    return rows.sort_values(["cpu", "start_ns"], kind="stable", ignore_index=True)


def _around(faults: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """``faults`` without the rows of ``measured`` inside of them; a later step cuts all at the next row's begin."""
    cpu, start, end = (measured[n].to_numpy() for n in ("cpu", "start_ns", "end_ns"))
    core, begin = (faults[n].to_numpy() for n in ("cpu", "start_ns"))
    of = latest(core, begin, cpu, end)
    until = np.append(faults["end_ns"].to_numpy(), -1)[of]
    inside = until > end
    rest = pd.DataFrame(
        {"cpu": cpu[inside], "start_ns": end[inside], "end_ns": until[inside], "work": BLOCKED_FAULT}
    )
    # After a change of threads, both begin again when their thread does.
    ahead = latest(cpu, start, core, begin)
    return pd.concat([faults[np.append(end, -1)[ahead] <= begin], rest])


def _faults(events: npt.NDArray[np.void], takes_ns: object, ledger: Ledger) -> pd.DataFrame:
    """Page faults; none if their duration is not known."""
    kind = events["kind"]
    at = np.flatnonzero((kind == CODE["page_fault_user"]) | (kind == CODE["page_fault_kernel"]))
    if not isinstance(takes_ns, int) or not 0 < takes_ns <= LONGEST_NS:
        ledger.add("page_faults_without_length", len(at))
        at, takes_ns = at[:0], 0
    ledger.add("page_fault_ends_inferred", len(at), takes_ns=takes_ns)
    cpu, start = events["cpu"][at].astype(np.int64), events["ts"][at].astype(np.int64)
    end = start + takes_ns
    # A recording has far more events than faults: for the others only their cores are copied.
    cores = np.ascontiguousarray(events["cpu"])
    for core in np.unique(cpu):
        mine, every = np.flatnonzero(cpu == core), np.flatnonzero(cores == core)
        following = np.searchsorted(every, at[mine], "right")
        known = following < len(every)
        until = events["ts"][every[following[known]]].astype(np.int64)
        end[mine[known]] = np.minimum(end[mine[known]], until)
    return pd.DataFrame({"cpu": cpu, "start_ns": start, "end_ns": end, "work": PAGE_FAULT})
