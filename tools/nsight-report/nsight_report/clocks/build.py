# SPDX-License-Identifier: GPL-2.0-only
"""From clock readings to the clock map, best source first.

Timekeeper states from a probe, then polled ones, then paired readings fill what is still open.
Every paired reading is checked against the finished map.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..losses import Ledger, merge
from . import brackets, phc, timekeeper
from .clock_readings import Brackets, Readings
from .segments import Segments, computable, empty, fill, to_table

_MAX_TSC = (1 << 63) - 1


def perf_segment(time_mult: int, time_shift: int, time_zero: int) -> Segments:
    """perf's own clock: one line, fixed at boot (struct perf_event_mmap_page, time_mult ff.)."""
    if not 0 < time_mult < 1 << 32 or not 0 <= time_shift <= 32:
        return empty()
    values = (
        0,
        min(_MAX_TSC, ((1 << 62) << time_shift) // time_mult),
        0,
        time_zero,
        0,
        time_mult,
        time_shift,
        0,
    )
    columns = [np.array([value], np.int64) for value in values]
    segment = Segments.made_of([*columns, np.array(["perf"], object)])
    return segment.take(computable(segment))


def _last_tsc(readings: Readings) -> int:
    """Until when the last timekeeper state is known to have held (exclusive).

    The recorder looks at the state before it writes a paired reading, so the last reading of
    either kind shows it, also in a capture that was cut.
    """
    ends = [b.after for b in readings.brackets.values()] + [readings.polled.tsc_now]
    return max((int(e[-1]) for e in ends if len(e)), default=0)


def check_brackets(segments: Segments, b: Brackets) -> tuple[int, int]:
    """How many readings contradict the map beyond its bound, and how many it does not cover."""
    middle = b.before + (b.after - b.before) // 2
    first = np.maximum(np.searchsorted(segments.tsc_start, b.before, side="right") - 1, 0)
    last = np.maximum(np.searchsorted(segments.tsc_start, b.after, side="right") - 1, 0)
    # Use the middle, not the ends: segments drawn through readings begin and end in a middle.
    at = np.maximum(np.searchsorted(segments.tsc_start, middle, side="right") - 1, 0)
    inside = (middle >= segments.tsc_start[at]) & (middle <= segments.tsc_end[at]) & (b.after >= b.before)
    i, j = first[inside], last[inside]
    bounds = np.append(segments.error_ns, 0)
    error = np.maximum.reduceat(bounds, np.column_stack([i, j + 1]).ravel())[::2] if len(i) else i
    low = segments.ns(b.before[inside], i) - error
    high = segments.ns(b.after[inside], j) + error
    wrong = (b.ns[inside] < low) | (b.ns[inside] > high)
    return int(np.count_nonzero(wrong)), int(np.count_nonzero(~inside))


def build(readings: Readings) -> tuple[pa.Table, pa.Table]:
    """``(clock_map, losses)`` of one capture.

    Either table may be empty; a domain without sufficient readings is missing from the map, and
    conversion to it is refused.
    """
    ledger = Ledger("clocks")
    losses = [readings.ledger.table()]
    end = _last_tsc(readings)
    probed_end = int(readings.probed.tsc_now[-1]) if len(readings.probed) else 0
    probed = timekeeper.build(readings.probed, "timekeeper", probed_end, readings.tsc_khz, ledger)
    polled = timekeeper.build(readings.polled, "vvar", end, readings.tsc_khz, ledger)

    maps: dict[str, Segments] = {}
    for domain in {**probed, **polled, **readings.brackets}:
        exact = fill(probed.get(domain, empty()), polled.get(domain, empty()))
        paired = readings.brackets.get(domain)
        if paired is None:
            maps[domain] = exact
            continue
        scratch = Ledger("clocks")  # problems of readings that are not needed are no loss
        drawn = brackets.build(paired, domain, "bracket", scratch)
        drawn = drawn.take(computable(drawn))
        maps[domain] = fill(exact, drawn)
        if not len(exact) or len(maps[domain]) > len(exact):
            losses.append(scratch.table())
        if len(maps[domain]):
            _check(domain, maps[domain], paired, ledger)
    if readings.perf:
        maps["perf"] = perf_segment(*readings.perf)
    table = to_table({d: s for d, s in maps.items() if len(s)})
    for domain, paired in readings.phcs.items():
        maps[domain] = phc.build(paired, domain, table, ledger)
    table = to_table({d: s for d, s in maps.items() if len(s)})
    if not table.num_rows:
        ledger.add("no_clock_map", 1)
    return table, merge([*losses, ledger.table()])


def _check(domain: str, segments: Segments, paired: Brackets, ledger: Ledger) -> None:
    wrong, outside = check_brackets(segments, paired)
    ledger.add("clock_map_contradicted", wrong, wrong=wrong, compared=len(paired), domain=domain)
    ledger.add("clock_reading_not_checked", outside, domain=domain)
