# SPDX-License-Identifier: GPL-2.0-only
"""Table ``memory_work`` in mode tracepoints: memory work of the kernel in the thread that needed the memory.

The kernel reports when a page fault begins, but not when it ends. A fault takes at least as long as one of the
shortest kind on the same machine, unless something else is recorded on its core before: the recorder measures that duration
before it begins (``manifest.page_fault_ns``). Reclaim, compaction and migration of pages have both ends; for these, the time on a core counts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..capture.perf_data import CODE, Decoded
from ..interval_joins import latest, overlaps
from ..losses import Ledger
from ..tables import schema
from ..tables.data_frames import words

PAGE_FAULT = "page fault"
#: In the order of the numbers of native/events.h.
MEASURED = ("memory reclaim", "memory compaction", "page migration")
#: No fault that waits for nothing takes longer; a manifest with a larger value is not the recorder's.
LONGEST_NS = 100_000


def table(decoded: Decoded, states: pa.Table, takes_ns: object, ledger: Ledger) -> pa.Table:
    """Rows in order of core and time, which do not overlap. ``states``: table ``thread_states`` of these events."""
    measured, n_overlap = _measured(decoded.events, states)
    ledger.add("memory_work_overlaps", n_overlap)
    faults = _faults(decoded.events, takes_ns, ledger)
    # The measured work is the longer part of the fault that led to it.
    within = latest(
        *(measured[n].to_numpy() for n in ("cpu", "start_ns")),
        *(faults[n].to_numpy() for n in ("cpu", "start_ns")),
    )
    until = np.append(measured["end_ns"].to_numpy(), -1)[within]
    rows = pd.concat([measured, faults[until <= faults["start_ns"].to_numpy()]])
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
