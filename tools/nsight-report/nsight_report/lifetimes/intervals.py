# SPDX-License-Identifier: GPL-2.0-only
"""Intervals as rows of ``messages``, from a CSV file or as recorded.

Each belongs to a thread, or to a core if no thread is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..capture import raw_records
from ..clocks import ClockMap
from ..errors import BadInput
from ..intervals import read
from ..intervals.read import LONGEST_NAME, Reader
from ..intervals.threads import Threads, core_at
from ..losses import Ledger
from ..manifest import Manifest
from ..tables.intervals import IntervalTable
from .columns import NONE
from .options import Intervals

#: Maximum number of kinds of intervals that the recorder takes at a time.
MOST_RECORDED = 16
#: What the manifest counts for each.
_COUNTED = ("begun", "again", "alone", "unpaired")


def of_file(path: Path, clock: ClockMap, states: IntervalTable | None, ledger: Ledger) -> Iterator[Intervals]:
    """What ``assemble.Messages.add_intervals`` takes, some at a time. Raises BadInput for a file that is not usable.

    ``states``: table ``thread_states``, for processes and names of threads, and for the core of a thread whose line names
    none; without the table both stay unknown.
    """
    threads = Threads.of(states) if states is not None else Threads.nothing()
    pids = np.append(threads.pid, -1)
    comms = ["", *dict.fromkeys(threads.comm)]
    number = {name: place for place, name in enumerate(comms)}
    comm = np.array([*(number[name] for name in threads.comm), 0], np.int64)
    n_found, reader = 0, Reader(path, clock, ledger)
    for some in reader:
        some = _of_process(some, threads, ledger) if states is not None else _unchecked(some, ledger)
        rows = threads.rows(some.tid)
        cpu = some.cpu
        if states is not None:
            ledger.add("interval_thread_not_seen", int(np.count_nonzero((rows < 0) & (some.tid > 0))))
            unknown = np.flatnonzero(cpu < 0)
            cpu = cpu.copy()
            cpu[unknown] = core_at(states, some.tid[unknown], some.stop[unknown])
        n_found += len(some)
        columns = {"name": some.name, "call_ns": some.start, "app_ns": some.stop, "app_cpu": cpu}
        columns |= {"pid": pids[rows], "tid": some.tid, "comm": comm[rows]}
        if some.handover is not None and some.begin_tid is not None and some.begin_cpu is not None:
            handed = {"handoff_ns": some.handover, "begin_tid": some.begin_tid, "recv_cpu": some.begin_cpu}
            columns |= {name: np.where(values >= 0, values, NONE) for name, values in handed.items()}
        yield columns, reader.names, comms
    if not n_found:
        raise _none(path, ledger)


def _of_process(some: read.Intervals, threads: Threads, ledger: Ledger) -> read.Intervals:
    """Spans whose thread belongs to their process. A runtime's own thread number is not a kernel thread number."""
    if some.pid is None:
        return some
    rows = threads.rows(some.tid)
    strange = (some.pid > 0) & ((rows < 0) | (np.append(threads.pid, -1)[rows] != some.pid))
    # The first thread stands for the whole process if no other thread was seen.
    pids, counts = np.unique(threads.pid, return_counts=True)
    single = np.isin(some.pid, pids[counts == 1]) & (threads.rows(some.pid) >= 0)
    ledger.add("interval_thread_not_of_process", int(np.count_nonzero(strange & ~single)))
    return replace(some, tid=np.where(strange, some.pid, some.tid)).take(~strange | single)


def _unchecked(some: read.Intervals, ledger: Ledger) -> read.Intervals:
    """Spans before the threads of processes are known: impossible ones are left out, others may be of another process."""
    if some.pid is None:
        return some
    of_process = some.pid > 0
    # read.py uses 0 for a number that no kernel thread has.
    nobody = of_process & (some.tid == 0)
    ledger.add("interval_thread_not_of_process", int(np.count_nonzero(nobody)))
    others = of_process & (some.tid > 0) & (some.tid != some.pid)
    ledger.add("interval_thread_not_checked", int(np.count_nonzero(others)))
    return some.take(~nobody)


def _none(path: Path, ledger: Ledger) -> BadInput:
    """Why no line of a file is usable."""
    rejected = ledger.table().to_pylist()
    if not rejected:
        return BadInput(f"{path}: no interval in it", "after the header, each line is one interval")
    worst = max(rejected, key=lambda row: row["count"])
    return BadInput(f"{path}: no usable interval: {worst['cause']}: {worst['count']}", worst["remedy"])


def recorded(manifest: Manifest) -> list[str]:
    """Names of the recorded intervals, by number; empty: none were requested."""
    names = [row.get("name") for row in manifest.list("intervals")[:MOST_RECORDED]]
    return [name[:LONGEST_NAME] if isinstance(name, str) else "" for name in names]


def of_records(records: Path, manifest: Manifest, ledger: Ledger) -> Iterator[Intervals]:
    """The same for intervals that the recorder took itself. Begins and ends without a partner are entered in the ledger."""
    names = recorded(manifest)
    n_found = np.zeros(len(names), np.int64)
    n_strange = n_unseen = 0
    for some, comms in raw_records.intervals(records):
        known = some["name"] < len(names)
        n_strange += int(np.count_nonzero(~known))
        some = some[known]
        n_found += np.bincount(some["name"], minlength=len(names))
        columns = {"name": "name", "call_ns": "start", "app_ns": "stop", "app_cpu": "cpu"}
        columns |= {name: name for name in ("pid", "tid", "comm")}
        found = {name: some[of].astype(np.int64) for name, of in columns.items()}
        other, handed = some["begin_tid"] > 0, some["handover"] > 0
        found["begin_tid"] = np.where(other, some["begin_tid"].astype(np.int64), NONE)
        found["recv_cpu"] = np.where(other, some["begin_cpu"].astype(np.int64), NONE)
        found["handoff_ns"] = np.where(other & handed, some["handover"], NONE)
        n_unseen += int(np.count_nonzero(other & ~handed))
        yield found, names, comms
    ledger.add("interval_of_no_name", n_strange)
    ledger.add("interval_handover_unknown", n_unseen)
    told = [
        [_count(row.get(what)) for what in _COUNTED] for row in manifest.list("intervals")[:MOST_RECORDED]
    ]
    _, again, alone, unpaired = (sum(counts) for counts in zip(*told, strict=True))  # there is at least one
    ledger.add("interval_unpaired", unpaired)
    ledger.add("interval_begun_again", again)
    ledger.add("interval_end_alone", alone)
    # Per kind: marks without a key of one kind do not end those of another kind.
    left = (
        max(0, begun - again - unpaired - n)
        for (begun, again, _, unpaired), n in zip(told, n_found.tolist(), strict=True)
    )
    lost = _count(manifest.mapping("records").get("lost"))
    ledger.add("interval_not_ended", max(0, sum(left) - n_strange - lost))


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else 0
