# SPDX-License-Identifier: GPL-2.0-only
"""The clock of one kernel against that of another, from readings of a clock that both have: a PTP clock, or the host's TSC.

nsight-capsule read that clock between two readings of the kernel's own one. At each such reading in kernel a, the readings around it
in kernel b show what b's clock was then. The error is known: the two brackets, how much b's readings bend, and what the user said
of the clock itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .offsets import MOST_DRIFT, Offset

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_MOST = 1 << 62
_LEAST = 3  # readings that show whether they bend
_TSC, _COMMON = "tsc", "common"


@dataclass(frozen=True)
class Readings:
    """By rows of increasing ``value``: the kernel's clock before and after; ``bound_ns``: what else it can be off."""

    before: Ints
    value: Ints
    after: Ints
    bound_ns: int = 0


@dataclass(frozen=True)
class GuestTsc:
    """How KVM makes a guest's TSC from the host's."""

    offset: int
    ratio: int
    ratio_bits: int

    def to_host(self, tsc: int) -> int:
        """The host's TSC at that TSC of the guest.

        >>> GuestTsc(-1_000, 3 << 47, 48).to_host((2_000 * 3 >> 1) - 1_000)
        2000
        """
        return (((tsc - self.offset) % (1 << 64)) << self.ratio_bits) // self.ratio


@dataclass(frozen=True)
class References:
    """Of one kernel: its readings by clock, the name of the common one, and its guests by name."""

    readings: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    bound_ns: int = 0
    guests: dict[str, GuestTsc] = field(default_factory=dict)


def of(raw: Any) -> References:
    """``manifest.common``, which anybody may have made: what is not plausible is left out."""
    raw = raw if isinstance(raw, dict) else {}
    by_clock, clock, guests = (raw.get(key) for key in ("readings", "clock", "guests"))
    readings = {
        name: [(r[0], r[1], r[2]) for r in rows if _is_reading(r)]
        for name, rows in (by_clock.items() if isinstance(by_clock, dict) else ())
        if name in (_TSC, _COMMON) and isinstance(rows, list)
    }
    bound = clock.get("bound_ns") if isinstance(clock, dict) else None
    if type(bound) is not int or not 0 <= bound < _MOST:
        bound = 0
        readings.pop(_COMMON, None)
    found = {
        str(name): GuestTsc(of["offset"], of["ratio"], of["ratio_bits"])
        for name, of in (guests.items() if isinstance(guests, dict) else ())
        if _is_guest(of)
    }
    return References(readings, bound, found)


def _is_number(value: Any) -> bool:
    return type(value) is int and -_MOST < value < _MOST


def _is_reading(row: Any) -> bool:
    return isinstance(row, list) and len(row) == 3 and all(map(_is_number, row)) and 0 < row[0] <= row[2]


def _is_guest(of: Any) -> bool:
    if not isinstance(of, dict) or not all(type(of.get(k)) is int for k in ("offset", "ratio", "ratio_bits")):
        return False
    return abs(of["offset"]) < 1 << 64 and 0 < of["ratio"] < 1 << 64 and 0 <= of["ratio_bits"] < 64


@dataclass(frozen=True)
class Kernel:
    """What identifies the clocks of a kernel: the name of its directory, its boot, its readings."""

    name: str
    boot_id: str
    references: References


def _sorted(rows: Sequence[tuple[int, int, int]], bound: int = 0) -> Readings | None:
    """None if there are too few, or the clock did not only go forward: it was set."""
    if len(rows) < _LEAST:
        return None
    table = np.array(sorted(rows), np.int64)
    if (np.diff(table[:, 1]) <= 0).any():
        return None
    return Readings(table[:, 0], table[:, 1], table[:, 2], bound)


def _tsc(kernel: Kernel, all_of_them: Sequence[Kernel]) -> tuple[str, Readings | None]:
    """Whose TSC the readings are in, as that kernel's boot, and the readings."""
    rows = kernel.references.readings.get(_TSC, [])
    for host in all_of_them:
        guest = host.references.guests.get(kernel.name)
        if guest and host.name != kernel.name:
            converted = [(before, guest.to_host(tsc), after) for before, tsc, after in rows]
            return host.boot_id, _sorted([r for r in converted if r[1] < _MOST])
    return kernel.boot_id, _sorted(rows)


def pairs(a: Kernel, b: Kernel, all_of_them: Sequence[Kernel]) -> list[tuple[str, Readings, Readings]]:
    """Readings of each clock that both kernels have."""
    (host_a, tsc_a), (host_b, tsc_b) = (_tsc(kernel, all_of_them) for kernel in (a, b))
    common = [_sorted(k.references.readings.get(_COMMON, []), k.references.bound_ns) for k in (a, b)]
    found = []
    if tsc_a and tsc_b and host_a == host_b and host_a:
        found.append((_TSC, tsc_a, tsc_b))
    if common[0] and common[1]:
        found.append((_COMMON, common[0], common[1]))
    return found


def _bends(b: Readings) -> Floats:
    """By interval between two readings: how far one at either end is from the line between its neighbours."""
    value, ns = (
        x.astype(np.float64) for x in (b.value - b.value[0], (b.before + b.after) // 2 - b.before[0])
    )
    share = (value[1:-1] - value[:-2]) / (value[2:] - value[:-2])
    off = np.abs(ns[1:-1] - (ns[:-2] + share * (ns[2:] - ns[:-2])))
    off = np.concatenate([off[:1], off, off[-1:]])
    found: Floats = np.maximum(off[:-1], off[1:])
    return found


def offset(a: Readings, b: Readings, span: tuple[int, int], span_b: tuple[int, int]) -> Offset | None:
    """b's clock minus a's, for these times of clock a and of clock b. None: they were not read at the same time."""
    inside = (a.value >= b.value[0]) & (a.value <= b.value[-1])
    if inside.sum() < 2:
        return None
    value, first = (a.value[inside] - b.value[0]).astype(np.float64), int(b.before[0])
    of_b = (b.value - b.value[0]).astype(np.float64)
    place = np.clip(np.searchsorted(of_b, value, side="right") - 1, 0, len(of_b) - 2)
    error = _bends(b)[place] + a.bound_ns + b.bound_ns
    before, after = (np.interp(value, of_b, (x - first).astype(np.float64)) for x in (b.before, b.after))
    base = first - int(a.before[inside][0])
    of_a = [(x[inside] - a.before[inside][0]).astype(np.float64) for x in (a.before, a.after)]
    low, high = before - of_a[1] - error, after - of_a[0] + error
    at = (a.before[inside] + a.after[inside]) // 2
    if (np.diff(at) <= 0).any():
        return None
    return _reaching(at, low, high, base, (min(span[0], span_b[0] - base), max(span[1], span_b[1] - base)))


def _reaching(at: Ints, low: Floats, high: Floats, base: int, ends: tuple[int, int]) -> Offset:
    """The offset at these times, and up to ``ends`` with what clocks may drift."""
    wander = float((high - low).max())
    if ends[0] < at[0]:
        more = MOST_DRIFT * int(at[0] - ends[0])
        at, low, high = (
            np.insert(at, 0, ends[0]),
            np.insert(low, 0, low[0] - more),
            np.insert(high, 0, high[0] + more),
        )
    if ends[1] > at[-1]:
        more = MOST_DRIFT * int(ends[1] - at[-1])
        at, low, high = (
            np.append(at, ends[1]),
            np.append(low, low[-1] - more),
            np.append(high, high[-1] + more),
        )
    return Offset(at, low, high, base, 0, 0, int(np.ceil(wander)), 0, by=_COMMON)


def agrees(found: Offset, there: tuple[Ints, Ints], back: tuple[Ints, Ints]) -> bool:
    """Whether no packet arrived before it was sent."""
    (sent_a, came_b), (sent_b, came_a) = there, back
    ns, bound = found.of(sent_a)
    back_ns, back_bound = found.of(came_a)
    first = bool((ns - bound <= came_b - sent_a).all())
    return first and bool((back_ns + back_bound >= sent_b - came_a).all())


def better(
    fitted: Offset, kernels: tuple[Kernel, Kernel], all_of_them: Sequence[Kernel], there: tuple[Ints, Ints], back: tuple[Ints, Ints],
    span: tuple[int, int], span_b: tuple[int, int],
) -> tuple[Offset, int]:  # fmt: skip
    """The offset whose bound is smallest where packets passed, on average: ``fitted``, from packets, or one from readings. And how many of
    the latter packets contradict.
    """
    best, wrong, at = fitted, 0, np.concatenate([there[0], back[1]])
    for name, a, b in pairs(*kernels, all_of_them):
        found = offset(a, b, span, span_b)
        if not found:
            continue
        if not agrees(found, there, back):
            wrong += 1
        elif not best.two_way or best.contradictions or found.of(at)[1].mean() < best.of(at)[1].mean():
            best = replace(found, there=len(there[0]), back=len(back[0]), by=name)
    return best, wrong
