# SPDX-License-Identifier: GPL-2.0-only
"""Intervals as rows of ``messages``, of a CSV file or as they were recorded.

Each belongs to a thread, or where none is named to a core.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..capture import raw_records
from ..clocks import ClockMap
from ..errors import BadInput
from ..intervals.read import LONGEST_NAME, Reader
from ..intervals.threads import Threads, core_at
from ..losses import Ledger
from ..manifest import Manifest
from ..tables.intervals import IntervalTable
from .options import Intervals

#: Kinds of intervals that the recorder takes at a time, at most.
MOST_RECORDED = 16


def of_file(path: Path, clock: ClockMap, states: IntervalTable | None, ledger: Ledger) -> Iterator[Intervals]:
    """What ``assemble.Messages.add_intervals`` takes, some at a time. Raises BadInput for a file that is none.

    ``states``: table ``thread_states``, which knows processes and names of threads, and where a thread was whose line names
    no core; without it both stay unknown.
    """
    threads = Threads.of(states) if states is not None else Threads.nothing()
    pids = np.append(threads.pid, -1)
    comms = ["", *dict.fromkeys(threads.comm)]
    number = {name: place for place, name in enumerate(comms)}
    comm = np.array([*(number[name] for name in threads.comm), 0], np.int64)
    n_found, reader = 0, Reader(path, clock, ledger)
    for some in reader:
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
        yield columns, reader.names, comms
    if not n_found:
        raise _none(path, ledger)


def _none(path: Path, ledger: Ledger) -> BadInput:
    """Why no line of a file can be used."""
    rejected = ledger.table().to_pylist()
    if not rejected:
        return BadInput(f"{path}: no interval in it", "one interval a line stands behind the header")
    worst = max(rejected, key=lambda row: row["count"])
    return BadInput(f"{path}: no usable interval: {worst['cause']}: {worst['count']}", worst["remedy"])


def recorded(manifest: Manifest) -> list[str]:
    """Names of the intervals that were recorded, by their numbers; empty: none were asked for."""
    names = [row.get("name") for row in manifest.list("intervals")[:MOST_RECORDED]]
    return [name[:LONGEST_NAME] if isinstance(name, str) else "" for name in names]


def of_records(records: Path, manifest: Manifest, ledger: Ledger) -> Iterator[Intervals]:
    """The same of intervals that the recorder took itself. Begins and ends that have no partner are entered."""
    names = recorded(manifest)
    n_found = n_strange = 0
    for some, comms in raw_records.intervals(records):
        known = some["name"] < len(names)
        n_strange += int(np.count_nonzero(~known))
        some = some[known]
        n_found += len(some)
        columns = {"name": "name", "call_ns": "start", "app_ns": "stop", "app_cpu": "cpu"}
        columns |= {"pid": "pid", "tid": "tid", "comm": "comm"}
        yield {name: some[of].astype(np.int64) for name, of in columns.items()}, names, comms
    ledger.add("interval_of_no_name", n_strange)
    told = [
        [_count(row.get(what)) for what in ("begun", "again", "alone")] for row in manifest.list("intervals")
    ]
    begun, again, alone = (sum(counts) for counts in zip(*told, strict=True))  # there is one at least
    ledger.add("interval_begun_again", again)
    ledger.add("interval_end_alone", alone)
    lost = _count(manifest.mapping("records").get("lost"))
    ledger.add("interval_not_ended", max(0, begun - again - n_found - n_strange - lost))


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else 0
