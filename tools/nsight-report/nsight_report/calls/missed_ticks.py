# SPDX-License-Identifier: GPL-2.0-only
"""When the host had a core without counting it as steal time: the core was busy, and its timer ticks did not come.

A kernel ticks on a core that is not idle, every ``tick_ns``. In a virtual machine, a core that the host has takes no interrupt, and the
overdue tick is the first thing that happens when the core is given back. So the host had the core from when the tick was due until
it came: this is shown. Between the last record before and that time, it may have had the core already: a bound.
A kernel that switched interrupts off for that long looks the same; it would be an error of that kernel, and is rare.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..capture.perf_data import CODE, EVENT, Decoded
from ..interval_joins import Int, meets, overlaps
from ..manifest import Manifest

#: Field b of event ``steal``: its place is known; found here.
PLACED, MISSED = 1, 3
TICK = "local_timer"
#: A tick that is late by less is no evidence: interrupts are off for shorter times.
LATE_NS = 1_000_000
#: The overdue tick comes at most this long after the core is back: other interrupts may be pending, too.
PENDING_NS = 1_000_000
#: Possible lengths of a tick, CONFIG_HZ of 24 to 1200.
SHORTEST_NS, LONGEST_NS = 800_000, 42_000_000
MOST_CORES = 1 << 16

_BEGIN = tuple(CODE[f"{name}_entry"] for name in ("vector", "irq_handler"))


@dataclass(frozen=True)
class Missed:
    """Times without a tick. ``begin``: the last record before; ``due``: when the tick was due; ``end``: the next record; ``at``: position
    of the first event then."""

    cpu: Int
    begin: Int
    due: Int
    end: Int
    at: Int

    def bounds(self) -> Int:
        """Like rows of ``stolen`` (cpu, start, end, ns): where the host may have had the core before the tick was due."""
        return np.stack([self.cpu, self.begin, self.due, self.due - self.begin])

    def inserted(self, decoded: Decoded) -> Decoded:
        """The events with a ``steal`` for each time that is shown."""
        if not len(self.at):
            return decoded
        made = np.zeros(len(self.at), EVENT)
        made["ts"], made["kind"], made["cpu"] = self.end, CODE["steal"], self.cpu
        made["pid"] = made["tid"] = -1
        made["a"], made["b"] = self.end - self.due, MISSED
        events = np.insert(decoded.events, self.at, made)
        return Decoded(events, decoded.strings, decoded.clock, decoded.info, decoded.source)


def tick_of(manifest: Manifest) -> int:
    """ns between two ticks of a virtual machine that was recorded; 0: unknown, or no virtual machine."""
    host = manifest.mapping("host")
    tick = host.get("tick_ns")
    known = isinstance(tick, int) and SHORTEST_NS <= tick <= LONGEST_NS
    return int(tick) if known and host.get("hypervisor") is True else 0  # type: ignore[arg-type]


def without_ticks(manifest: Manifest) -> list[tuple[int, int]]:
    """First and last core of each range of cores that may stop their tick (nohz_full)."""
    ranges = []
    for part in manifest.text("host", "nohz_full").split(",")[:MOST_CORES]:
        first, _, last = part.strip().partition("-")
        if all(len(n) < 6 and n.isdecimal() for n in (first, last or first)):
            ranges.append((int(first), int(last or first)))
    return ranges


def find(decoded: Decoded, manifest: Manifest) -> Missed:
    """The times without a tick, in the order of the events."""
    tick = tick_of(manifest)
    events = decoded.events
    number = decoded.strings.index(TICK) if TICK in decoded.strings else 0
    parts = [np.zeros((5, 0), np.int64)]
    if tick and number:
        # Records of the machine are from any core: they say nothing about the one that they name.
        of_core = (events["kind"] != CODE["cpu_frequency"]) & (events["kind"] != CODE["steal"])
        of_core &= events["ts"] > 0
        at = np.flatnonzero(of_core)
        at = at[np.argsort(events["cpu"][at], kind="stable")]
        stopping = without_ticks(manifest)
        for part in np.split(at, np.flatnonzero(np.diff(events["cpu"][at])) + 1):
            cpu = int(events["cpu"][part[0]]) if len(part) else -1
            if len(part) and not any(first <= cpu <= last for first, last in stopping):
                parts.append(_of_core(events, part, cpu, tick, number))
    found = np.concatenate(parts, axis=1)
    found = found[:, ~_told(events, found)]
    return Missed(*found[:, np.argsort(found[3], kind="stable")])


def _told(events: npt.NDArray[np.void], found: Int) -> npt.NDArray[np.bool_]:
    """Where the scheduler's count has a place, and is as long or longer."""
    placed = events[(events["kind"] == CODE["steal"]) & (events["b"] == PLACED)]
    cpu, _, due, end, _ = found
    told = np.zeros(len(cpu), bool)
    for core in np.unique(cpu).tolist():
        own, its = np.flatnonzero(cpu == core), placed[placed["cpu"] == core]
        when = its["ts"].astype(np.int64)
        at = np.searchsorted(when, end[own])
        some = at < len(its)
        own, at = own[some], at[some]
        told[own] = (when[at] == end[own]) & (its["a"][at] >= (end - due)[own])
    return told


def _of_core(events: npt.NDArray[np.void], at: Int, cpu: int, tick: int, number: int) -> Int:
    """Rows of Missed of one core, whose events are at ``at``."""
    time = events["ts"][at].astype(np.int64)
    before = np.flatnonzero(time[1:] - time[:-1] >= LATE_NS)  # a tick is longer: few are left
    one, next_ = events[at[before]], events[at[before + 1]]
    switched = one["kind"] == CODE["sched_switch"]
    running = np.where(switched, one["a"], one["tid"])
    busy = (running == next_["tid"]) & (next_["tid"] > 0)
    # Interrupts are off while one is handled. A core that is given back takes one before anything else; where a
    # thread goes on without, its ticks may have come and not been recorded.
    busy &= ~np.isin(one["kind"], _BEGIN) & np.isin(next_["kind"], _BEGIN)
    before = before[busy]
    ticks = time[(events["kind"][at] == CODE["vector_entry"]) & (events["c"][at] == number)]
    begin, end = time[before], time[before + 1]
    place = np.searchsorted(ticks, begin, "right")
    last = np.where(place > 0, ticks[np.maximum(place - 1, 0)], begin)
    # If the last one is longer ago, the core was idle meanwhile; then it ticks again at most one tick after it left that.
    due = np.where(begin - last < tick, last, begin) + tick
    comes = np.append(ticks, np.iinfo(np.int64).max)[place]
    missed = (end - due >= LATE_NS) & (comes - end <= PENDING_NS)
    core = np.full(len(before), cpu)
    # Before everything of the same time: shorter steal time is within it.
    first = np.searchsorted(events["ts"], end.astype(np.uint64))
    return np.stack([core, begin, due, end, first])[:, missed]


def beside(rows: Int, missed: Missed) -> Int:
    """``rows`` of steal time (cpu, start, end, ns) without what ``missed`` shows of it."""
    of, _, low, high = overlaps(rows[0], rows[1], rows[2], missed.cpu, missed.due, missed.end)
    shown = np.zeros(rows.shape[1], np.int64)
    np.add.at(shown, of, high - low)
    return np.stack([*rows[:3], np.maximum(rows[3] - shown, 0)])


def apart(rows: Int, others: Int) -> Int:
    """Those ``rows`` of bounds that overlap none of ``others`` on their core: what the scheduler counted is a bound already."""
    keep = np.ones(rows.shape[1], bool)
    for cpu in np.unique(rows[0]).tolist():
        own, its = np.flatnonzero(rows[0] == cpu), others[:, others[0] == cpu]
        keep[own] = ~meets(rows[1][own], rows[2][own], its[1], its[2])
    return rows[:, keep]
