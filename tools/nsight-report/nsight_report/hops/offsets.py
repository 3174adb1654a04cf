# SPDX-License-Identifier: GPL-2.0-only
"""The clock of one kernel against that of another, from the packets between them: offset, drift, and the error bounds of both.

A packet arrives after it was sent. So each packet from a to b, sent at ``t`` of clock a, gives an upper limit of how far b's clock
was ahead of a's at ``t``, and each packet back gives a lower limit at its arrival. Between packets the difference
is a straight line, within what clocks drift. All lines that contradict no packet are kept: at any time the true difference is
between the lowest and the highest of them, the estimate is the middle of the two, and the bound is half their distance. No
assumption is made about how the delay is split between the two directions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: Two clocks drift apart by at most this: adjtimex bends each by 0.0005, and a guest's calibration of its TSC is closer than that.
MOST_DRIFT = 1e-3
UNKNOWN = -1
_BINS, _ROUNDS, _MOST_POINTS, _GRID, _MOST_SPLITS = 512, 64, 256, 65, 6


@dataclass(frozen=True)
class Offset:
    """Clock b minus clock a, at times ``at_ns`` of clock a, linear between them: at least ``low``, at most ``high``, minus ``base``.

    ``wander_ns`` bounds how much the error changes between any two times; this is the error of a difference of two delays. If
    packets went one way only, the offset is such that the fastest took no time, and its error is ``UNKNOWN``. ``by``: "" if packets
    show the offset, else the clock that both kernels read (``references``).
    """

    at_ns: Ints
    low: Floats
    high: Floats
    base: int
    there: int
    back: int
    wander_ns: int
    contradictions: int
    #: By time: whether only packets of one direction determine the offset, after a step.
    unknown: Bools | None = None
    by: str = ""

    @property
    def two_way(self) -> bool:
        """Whether there is a bound."""
        return bool(self.by or (self.there and self.back))

    def of(self, ns: Ints) -> tuple[Ints, Ints]:
        """Offset at each of these times of clock a, and its bound."""
        low, high = np.interp(ns, self.at_ns, self.low), np.interp(ns, self.at_ns, self.high)
        offset = self.base + np.rint((low + high) / 2).astype(np.int64)
        bound = np.ceil((high - low) / 2).astype(np.int64) + 1
        if self.unknown is not None:
            bound[np.interp(ns, self.at_ns, self.unknown) > 0] = UNKNOWN
        return offset, bound if self.two_way else np.full(len(ns), UNKNOWN, np.int64)

    def back_to_a(self, ns: Ints) -> tuple[Ints, Ints]:
        """Times of clock b in clock a, and the bound of each."""
        first = int(self.at_ns[0])
        a = (self.at_ns - first).astype(np.float64)
        # The value of b at each of these times; where it was stepped back, it showed the later values twice.
        b = np.maximum.accumulate(a + (self.low + self.high) / 2)
        wanted = (ns - self.base - first).astype(np.float64)
        inside = np.interp(wanted, b, a)
        before, after = np.minimum(wanted - b[0], 0), np.maximum(wanted - b[-1], 0)
        found = first + np.rint(inside + before + after).astype(np.int64)
        return found, self.of(found)[1]

    def drift(self) -> float:
        """Drift of the estimate, from its first to its last time: ns per ns."""
        middle, span = (self.low + self.high) / 2, int(self.at_ns[-1] - self.at_ns[0])
        return float(middle[-1] - middle[0]) / span if span else 0.0


def _turn(t: Floats, f: Floats) -> npt.NDArray[np.intp]:
    """Lower convex hull of points in order of ``t``, each ``t`` once: their indices."""
    kept: list[int] = []
    for i in range(len(t)):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            if (f[b] - f[a]) * (t[i] - t[a]) < (f[i] - f[a]) * (t[b] - t[a]):
                break
            kept.pop()
        kept.append(i)
    return np.array(kept, np.intp)


def lower_hull(t: Floats, f: Floats) -> tuple[Floats, Floats]:
    """The points that a line below all points can touch, in order of ``t``.

    Few points are examined one by one: the lowest of each of some intervals, and then those below the hull so far.
    """
    order = np.lexsort((f, t))
    t, f = t[order], f[order]
    first = np.concatenate([[True], np.diff(t) > 0])
    t, f = t[first], f[first]
    bins = np.minimum(((t - t[0]) / max(t[-1] - t[0], 1e-9) * _BINS).astype(np.int64), _BINS - 1)
    chosen = np.zeros(len(t), bool)
    chosen[[0, -1]] = True
    chosen[_lowest(bins, f)] = True
    for _ in range(_ROUNDS):
        points = np.flatnonzero(chosen)
        hull = points[_turn(t[points], f[points])]
        below = np.flatnonzero(f < np.interp(t, t[hull], f[hull]) - 1e-6)
        if not len(below):
            break
        chosen[:] = False
        chosen[hull] = True
        chosen[below[_lowest(bins[below], f[below])]] = True
    if len(hull) > _MOST_POINTS:
        hull = hull[np.linspace(0, len(hull) - 1, _MOST_POINTS).astype(np.intp)]
    return t[hull], f[hull]


def _lowest(bins: Ints, f: Floats) -> npt.NDArray[np.intp]:
    """Index of the lowest point of each bin."""
    order = np.lexsort((f, bins))
    return order[np.concatenate([[True], np.diff(bins[order]) > 0])]


def _lines(there: tuple[Floats, Floats], back: tuple[Floats, Floats], scale: float) -> Floats:
    """Corners (a, b) of the set of lines a + b * t that are below all of ``there`` and above all of ``back``; empty if there is none."""
    most = MOST_DRIFT * scale
    normal = np.concatenate(
        [np.column_stack([np.ones(len(there[0])), there[0] / scale]), np.column_stack([-np.ones(len(back[0])), -back[0] / scale]),
         [[0.0, 1.0], [0.0, -1.0]]]
    )  # fmt: skip
    limit = np.concatenate([there[1], -back[1], [most, most]])
    i, j = np.triu_indices(len(limit), 1)
    p, q = normal[i], normal[j]
    det = p[:, 0] * q[:, 1] - p[:, 1] * q[:, 0]
    good = np.abs(det) > 1e-12
    p, q, det, u, v = p[good], q[good], det[good], limit[i][good], limit[j][good]
    corners = np.column_stack([u * q[:, 1] - v * p[:, 1], p[:, 0] * v - q[:, 0] * u]) / det[:, None]
    inside = np.ones(len(corners), bool)
    for n, c in zip(normal, limit):
        inside &= corners @ n <= c + 0.5
    return corners[inside] / [1.0, scale]


def _piece(t: Floats, lines: Floats) -> tuple[Floats, Floats]:
    values = lines[:, :1] + lines[:, 1:] * t[None, :]
    return values.min(axis=0), values.max(axis=0)


@dataclass
class _Grid:
    """``asked``: the first and last time for which the offset is needed. Packets are from ``begin`` to ``end``."""

    asked: tuple[float, float]
    begin: float
    end: float
    t: list[Floats]
    low: list[Floats]
    high: list[Floats]
    unknown: list[Bools]
    wander: float = 0.0
    contradictions: int = 0

    def times(self, begin: float, end: float) -> Floats:
        """Times of a piece: the first and the last piece extend to the limits of ``asked``."""
        t = np.linspace(begin, end, _GRID)
        return np.concatenate(
            [[self.asked[0]] if begin == self.begin else [], t, [self.asked[1]] if end == self.end else []]
        )

    def add(self, t: Floats, low: Floats, high: Floats, known: bool) -> None:
        self.t.append(t)
        self.low.append(low)
        self.high.append(high)
        self.unknown.append(np.full(len(t), not known))

    def differ(self, wander: float) -> None:
        """The error differs by this much between two times; UNKNOWN stays."""
        self.wander = UNKNOWN if UNKNOWN in (wander, self.wander) else max(self.wander, wander)


def _fit(there: Floats, back: Floats, begin: float, end: float, grid: _Grid, splits: int) -> None:
    """Points (t, f) of both directions, by rows. If no line fits between them, each half gets its own line."""
    t = grid.times(begin, end)
    if not (there.shape[1] and back.shape[1]):
        grid.add(t, *_piece(t, _of_one_way(there, back)), False)
        grid.differ(UNKNOWN)
        grid.contradictions += splits < _MOST_SPLITS  # a part of the time: it is due to a step
        return
    lines = _lines(lower_hull(*there), _upper(back), max(end - begin, 1.0))
    middle = (begin + end) / 2
    early = [points[:, points[0] < middle] for points in (there, back)]
    late = [points[:, points[0] >= middle] for points in (there, back)]
    if not len(lines) and splits and all(sum(p.shape[1] for p in half) for half in (early, late)):
        _fit(early[0], early[1], begin, middle, grid, splits - 1)
        _fit(late[0], late[1], middle, end, grid, splits - 1)
        return
    wide = bool(grid.t)
    if len(lines):
        low, high = _piece(t, lines)
        inside = (t >= begin) & (t <= end)
        error = (lines[:, :1] + lines[:, 1:] * t[None, :] - (low + high) / 2)[:, inside]
        grid.differ(float((error.max(axis=1) - error.min(axis=1)).max()))
        grid.add(t, low, high, True)
    else:  # a clock was stepped: the offset was within these before and after, if both directions say so of both
        grid.contradictions += 1
        known = all(points.shape[1] for points in (*early, *late))
        ends = np.sort([back[1].min(), there[1].max()])
        beyond = MOST_DRIFT * np.maximum(np.maximum(begin - t, t - end), 0)
        low, high, wide = ends[0] - beyond, ends[1] + beyond, True
        grid.differ(0.0 if known else UNKNOWN)
        grid.add(t, low, high, known)
    if wide:
        grid.differ(2 * float((high - low).max()))


def _upper(back: Floats) -> tuple[Floats, Floats]:
    t, f = lower_hull(back[0], -back[1])
    return t, -f


def _one_way(points: tuple[Floats, Floats]) -> Floats:
    """The line below the middle of a hull, as (a, b)."""
    t, f = points
    if len(t) < 2:
        return np.array([[f[0], 0.0]])
    i = min(max(int(np.searchsorted(t, (t[0] + t[-1]) / 2)), 1), len(t) - 1)
    b = float(np.clip((f[i] - f[i - 1]) / (t[i] - t[i - 1]), -MOST_DRIFT, MOST_DRIFT))
    return np.array([[float((f - b * t).min()), b]])


def _of_one_way(there: Floats, back: Floats) -> Floats:
    """The line from packets of one direction."""
    if there.shape[1]:
        return _one_way(lower_hull(*there))
    line = _one_way(_upper(back))
    line[0, 0] = float((back[1] - line[0, 1] * back[0]).max())
    return line


def fit(
    there_ns: tuple[Ints, Ints], back_ns: tuple[Ints, Ints], span: tuple[int, int], span_b: tuple[int, int]
) -> Offset:
    """The offset from packets a to b and packets b to a: when each was sent and arrived, in the local clocks.

    ``span``, ``span_b``: times of clock a and of clock b for which the offset is needed. There must be a packet.
    """
    (sent_a, came_b), (sent_b, came_a) = there_ns, back_ns
    base = int(came_b[0] - sent_a[0]) if len(sent_a) else int(sent_b[0] - came_a[0])
    begin, end = (of([int(of(x)) for x in (sent_a, came_a) if len(x)]) for of in (min, max))
    first, last = min(span[0], span_b[0] - base, begin), max(span[1], span_b[1] - base, end)
    there = np.array([sent_a - begin, came_b - sent_a - base], float)
    back = np.array([came_a - begin, sent_b - came_a - base], float)
    grid = _Grid((float(first - begin), float(last - begin)), 0.0, float(end - begin), [], [], [], [])
    _fit(there, back, 0.0, grid.end, grid, _MOST_SPLITS)
    return Offset(
        begin + np.rint(np.concatenate(grid.t)).astype(np.int64), np.concatenate(grid.low), np.concatenate(grid.high), base,
        len(sent_a), len(sent_b), int(np.ceil(grid.wander)), grid.contradictions, np.concatenate(grid.unknown),
    )  # fmt: skip
