# SPDX-License-Identifier: GPL-2.0-only
"""Segments from timekeeper states, polled (V) or probed (K).

A state is exact from the moment the kernel published it until the next one. A polled state was
published somewhere in a bracket of TSC, in which either line may have been in force; the bracket
becomes a segment of its own, whose error bound is the larger difference of the two lines.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..losses import Ledger
from .clock_readings import TIMEKEEPER_DOMAINS, States
from .segments import NSEC_PER_SEC, Segments, computable, concat

I64 = npt.NDArray[np.int64]

MODE_TSC = 1  # VDSO_CLOCKMODE_TSC
# A missed update can change the clock rate by no more than the 500 ppm each of NTP and adjtime().
MISSED_PPM = 1000


def _possible(s: States, tsc_khz: int) -> npt.NDArray[np.bool_]:
    """Rows that a kernel could have written."""
    good = (s.mult > 0) & (s.mult < 1 << 32) & (s.shift <= 32)
    shift = np.clip(s.shift, 0, 32)
    good &= (s.tsc_prev <= s.tsc_now) & (s.cycle_last <= s.tsc_now)
    good &= np.all((s.sec < 9 * NSEC_PER_SEC) & ((s.snsec >> shift[:, None]) < 10 * NSEC_PER_SEC), axis=1)
    if tsc_khz:
        nominal = s.mult / np.exp2(shift.astype(float)) * (tsc_khz / 1e6)
        good &= (nominal > 0.5) & (nominal < 2)
    return np.asarray(good)


def _lines(s: States, column: int) -> Segments:
    """The line of each state for one domain; extent and error are filled in later."""
    zero = np.zeros(len(s), np.int64)
    return Segments(
        tsc_start=s.tsc_now,
        tsc_end=s.tsc_now,
        anchor_tsc=s.cycle_last,
        anchor_ns=s.sec[:, column] * NSEC_PER_SEC + (s.snsec[:, column] >> s.shift),
        anchor_frac=s.snsec[:, column] & (np.left_shift(1, s.shift) - 1),
        mult=s.mult,
        shift=s.shift,
        error_ns=zero,
        source=np.full(len(s), "", object),
    )


def _keep_possible(s: States, tsc_khz: int, ledger: Ledger) -> States:
    """Drop impossible states; the state after a dropped one is marked ``gap_before``."""
    other = s.mode != MODE_TSC  # its numbers belong to another counter; only its place in time matters
    good = other | _possible(s, tsc_khz)
    # A state whose time lies before that of an earlier one cannot be placed.
    latest = np.maximum.accumulate(np.where(good, s.tsc_now, 0))
    good &= s.tsc_now >= latest
    dropped = ~good
    ledger.add("timekeeper_state_impossible", int(np.count_nonzero(dropped)))
    after = np.cumsum(dropped)[good]
    kept = s.take(good)
    kept.gap_before = kept.gap_before | (np.diff(after, prepend=0) > 0)
    return kept


def build(states: States, source: str, end_tsc: int, tsc_khz: int, ledger: Ledger) -> dict[str, Segments]:
    """Segments of every domain of ``TIMEKEEPER_DOMAINS``, valid up to ``end_tsc`` (exclusive).

    A domain whose time is 0 in a state was not recorded (the tracepoint has no CLOCK_BOOTTIME).

    Missed updates are known from the sequence count. A single missed line meets both known ones, so it
    cannot differ from them by more than they differ from each other. With several, and where lines of the recording were
    lost, only the rate is known: the bound grows by what NTP and adjtime() can slew the clock in
    that time. A step that was undone inside the same bracket is not covered.
    """
    s = _keep_possible(states, tsc_khz, ledger)
    if not len(s):
        return {}
    usable = s.mode == MODE_TSC
    ledger.add("clocksource_not_tsc", int(np.count_nonzero(~usable)))

    missed = (np.diff(s.seq, prepend=s.seq[:1] - 2) % (1 << 32)) // 2 - 1
    missed[0] = 0
    ledger.add("timekeeper_update_missed", int(np.count_nonzero(missed > 0)))
    unsure = s.gap_before | (missed > 0)

    # The bracket of each state: it cannot have been published before its own cycle_last was
    # read, unless it is a later one of several that were missed.
    previous_now = np.concatenate([s.tsc_now[:1], s.tsc_now[:-1]])
    begin = np.where(unsure, s.tsc_prev, np.maximum(s.tsc_prev, s.cycle_last))
    begin = np.where(s.gap_before, previous_now, np.clip(begin, previous_now, s.tsc_now))

    follows = np.zeros(len(s), bool)  # the line before is known too
    follows[1:] = usable[1:] & usable[:-1]
    maps = {}
    for column, domain in enumerate(TIMEKEEPER_DOMAINS):
        lines = _lines(s, column)

        exact = lines.take(slice(None))
        exact.tsc_end = np.append(begin[1:], max(end_tsc, int(s.tsc_now[-1])))
        exact.source = np.full(len(s), source, object)
        rows = np.flatnonzero(follows & (begin < s.tsc_now))
        bracket = lines.take(rows)
        bracket.tsc_start = begin[rows]
        bracket.error_ns = np.zeros(len(rows), np.int64)
        for edge in (begin[rows], s.tsc_now[rows]):
            bracket.error_ns = np.maximum(
                bracket.error_ns, np.abs(lines.ns(edge, rows) - lines.ns(edge, rows - 1))
            )
        width_ns = lines.ns(s.tsc_now[rows], rows) - lines.ns(begin[rows], rows)
        bend = np.where((missed > 1) | s.gap_before, MISSED_PPM, 0)[rows]
        bracket.error_ns = bracket.error_ns + np.where(unsure[rows], width_ns * bend // 10**6 + 1, 0)
        bracket.source = np.full(len(rows), source, object)

        told = (s.sec[:, column] != 0) | (s.snsec[:, column] != 0)
        both = concat(
            [exact.take(usable & told & (exact.tsc_end > exact.tsc_start)), bracket.take(told[rows])]
        )
        if len(both):
            maps[domain] = both.take(computable(both))
    return maps
