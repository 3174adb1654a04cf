# SPDX-License-Identifier: GPL-2.0-only
"""Segments from paired readings: a clock showed ``ns`` somewhere between two TSC values.

Each segment joins the middles of two consecutive readings. Its bound is half the wider bracket,
plus what the clock can have bent in between, judged by how much the rate differs from the
neighbouring segments': with one change of the rate, or one step, inside an interval of length w, the
clock leaves the chord by at most w times that difference. A clock that is bent, or stepped, there
and back again between two readings is not noticed; timekeeper states would show it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..losses import Ledger
from .clock_readings import Brackets
from .segments import Segments, empty

I64 = npt.NDArray[np.int64]

# Brackets this many times the median were interrupted; they say little and are not used as knots.
WIDE = 4
# adjtimex() can change a rate by a tenth (its `tick`); more is a step of the clock.
MAX_RATE_CHANGE = 0.12


def _knots(b: Brackets, domain: str, ledger: Ledger) -> npt.NDArray[np.bool_]:
    """Readings through which the lines are drawn."""
    width = b.after - b.before
    good = (width >= 0) & (b.before >= 0)
    ordered = b.before > np.maximum.accumulate(np.concatenate([[-1], np.where(good, b.after, -1)[:-1]]))
    bad = ~(good & ordered)
    ledger.add("paired_clock_reading_impossible", int(np.count_nonzero(bad)), domain=domain)
    if bool(np.all(bad)):
        return ~bad
    wide = ~bad & (width > WIDE * max(1.0, float(np.median(width[~bad]))))
    ledger.add("paired_clock_reading_wide", int(np.count_nonzero(wide)), domain=domain)
    return ~bad & ~wide


def build(b: Brackets, domain: str, source: str, ledger: Ledger, extra_ns: I64 | None = None) -> Segments:
    """Segments through the readings ``b``; ``extra_ns`` is a further error of each reading.

    Empty with fewer than two usable readings.
    """
    knots = _knots(b, domain, ledger)
    if np.count_nonzero(knots) < 2:
        return empty()
    before, ns, after = b.before[knots], b.ns[knots], b.after[knots]
    extra = np.zeros(len(ns), np.int64) if extra_ns is None else extra_ns[knots]
    middle = before + (after - before) // 2
    cycles, dur = np.diff(middle), np.diff(ns)
    rate = dur / cycles  # ns per cycle; the float error of 1e-16 of an interval does not matter
    usual = float(np.median(rate))
    if not usual > 0:
        usual = float(dur.sum() / cycles.sum())
    if not 1e-3 < usual < 1e3:
        ledger.add("paired_clock_readings_implausible", len(ns), domain=domain)
        return empty()

    step = np.abs(rate / usual - 1) > MAX_RATE_CHANGE
    ledger.add("clock_stepped_between_paired_readings", int(np.count_nonzero(step)), domain=domain)

    shift = int(np.clip(31 - np.ceil(np.log2(usual * (1 + MAX_RATE_CHANGE))), 0, 32))
    drawn = np.where(step, usual, rate)
    mult = np.clip(np.rint(np.ldexp(drawn, shift)), 1, (1 << 32) - 1).astype(np.int64)

    # How far the clock can be from the chord: estimated from the neighbours that are no steps.
    change = np.abs(np.diff(np.where(step, usual, rate)))
    neighbour = np.maximum(np.append(change, 0), np.append(0, change))
    bend = cycles * neighbour
    jump = np.where(step, np.abs(dur - cycles * usual), 0)
    half = np.ceil((after - before + 1) / 2 * usual).astype(np.int64) + extra
    error = np.maximum(half[:-1], half[1:]) + np.ceil(bend + jump).astype(np.int64) + (cycles >> 32) + 1
    # Across a step, the later line is used, extended backwards.
    later = np.where(step, 1, 0)
    rows = np.arange(len(cycles)) + later
    return Segments(
        tsc_start=middle[:-1],
        tsc_end=middle[1:],
        anchor_tsc=middle[rows],
        anchor_ns=ns[rows],
        anchor_frac=np.zeros(len(cycles), np.int64),
        mult=mult,
        shift=np.full(len(cycles), shift, np.int64),
        error_ns=error,
        source=np.full(len(cycles), source, object),
    )
