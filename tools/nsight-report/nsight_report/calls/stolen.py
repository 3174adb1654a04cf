# SPDX-License-Identifier: GPL-2.0-only
"""Table ``stolen``: steal time that is at no known place.

The scheduler's count of a core is read at each switch (events ``steal`` of that core). What nesting.c could place is a context of its own;
the rest lies somewhere since the previous reading. Where a kernel's scheduler has no such count, because its hypervisor is none of those that
report steal time to it, /proc/stat may have one. It is read ten times a second, and only for cores without the scheduler's.
The time before a missed timer tick (missed_ticks.py) is such a bound, too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..capture.perf_data import CODE, Decoded
from ..losses import Ledger
from ..tables import schema
from .missed_ticks import Missed, apart, beside

#: Field b of event ``steal`` (native/events.h): its place is unknown, or known, or it is from /proc/stat.
UNKNOWN, PLACED, OF_STAT = 0, 1, 2
#: /proc/stat counts in ticks: what it grew by can lack nearly one.
TICK_NS = 10_000_000


def table(decoded: Decoded, ledger: Ledger, missed: Missed | None = None) -> pa.Table:
    """Rows in order of core and time, which do not overlap on a core. ``missed``: ticks, before which the host may have had the core, too."""
    events = decoded.events
    is_steal = events["kind"] == CODE["steal"]
    if not is_steal.any() and (missed is None or not len(missed.at)):
        return schema.empty("stolen")
    of_core = is_steal & (events["b"] != OF_STAT)
    own = events[of_core | (events["kind"] == CODE["sched_switch"])]
    stat = events[is_steal & (events["b"] == OF_STAT)]
    stat = stat[~np.isin(stat["cpu"], events["cpu"][of_core])]
    ledger.add("records_steal_without_place", int(np.clip(stat["a"], 0, 1 << 48).sum()))
    own, stat = (rows[np.lexsort((rows["ts"], rows["cpu"]))] for rows in (own, stat))
    of_switches, of_stat = _since_the_one_before(own), _since_the_one_before(stat)
    of_switches = of_switches[:, (own["kind"] == CODE["steal"]) & (own["b"] == UNKNOWN)]
    of_stat[3] += TICK_NS
    rows = np.concatenate([of_switches, of_stat], axis=1)
    if missed is not None:
        rows = np.concatenate([beside(rows, missed), apart(missed.bounds(), rows)], axis=1)
    rows = rows[:, np.lexsort((rows[1], rows[0]))]
    rows = rows[:, (rows[2] > rows[1]) & (rows[3] > 0)]
    made = dict(zip(("cpu", "start_ns", "end_ns", "ns"), rows, strict=True))
    return schema.conform("stolen", pa.table(made | {"cpu": rows[0].astype(np.int32)}))


def _since_the_one_before(events: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """Core, time of the event before it on its core, its own time, and ns (``a``) of events in order of core and time. Before the first event
    of a core nothing is known: it begins its ns earlier."""
    cpu, end = events["cpu"].astype(np.int64), events["ts"].astype(np.int64)
    ns = np.clip(events["a"].astype(np.int64), 0, 1 << 48)
    start = np.maximum(end - ns, 0)
    same = np.flatnonzero(cpu[1:] == cpu[:-1]) + 1
    start[same] = end[same - 1]
    return np.stack([cpu, start, end, ns])
