# SPDX-License-Identifier: GPL-2.0-only
"""Conversion between time domains: all conversions happen here.

Values outside what the clock map covers are refused, never extrapolated. So are values that a
clock showed twice because it was stepped back, and values that it never showed because it was
stepped forward over them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import BadInput
from .segments import STEP_NS, Segments, from_table

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# Values are processed in pieces that fit the cache and limit memory.
CHUNK = 1 << 16


class OutOfRange(BadInput):
    """A time that the clock map does not cover, or not unambiguously."""


@dataclass
class _Inverse:
    """What is needed to convert a domain's ns back to TSC.

    Segments are grouped into epochs, within which the clock was never stepped. An epoch covers
    ``low`` to ``high`` (inclusive); ``floor`` is the first ns of each segment, made monotone within its epoch;
    ``fold_ns`` is how far a segment's values may also belong to its neighbours.
    """

    first: I64  # first segment of each epoch
    by_low: I64  # epochs in order of low
    low: I64
    by_high: I64
    high: I64
    floor: I64
    fold_ns: I64


class ClockMap:
    """The clock map of one capture.

    >>> ClockMap(table).convert(np.array([3101522429762]), "tsc", "realtime")  # doctest: +SKIP
    (array([1795224061980694752]), array([0]))
    """

    def __init__(self, table: pa.Table) -> None:
        """``table`` is a ``clock_map``; BadInput if its segments overlap or cannot be computed."""
        self._maps = {domain: s for domain, s in from_table(table).items() if len(s)}
        self._inverses: dict[str, _Inverse] = {}

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains that can be converted to and from ``tsc``, in alphabetical order."""
        return tuple(sorted(self._maps))

    def range_tsc(self, domain: str) -> tuple[int, int]:
        """First TSC covered and end (exclusive). There may be holes in between."""
        s = self._segments(domain)
        return int(s.tsc_start[0]), int(s.tsc_end[-1])

    def convert(self, values: npt.ArrayLike, src: str, dst: str) -> tuple[I64, I64]:
        """``values`` of domain ``src`` in domain ``dst``, and a bound on each error in ns.

        Either may be ``tsc`` (cycles). Raises OutOfRange if one value cannot be converted.
        """
        out, error, ok = self.convert_masked(values, src, dst)
        if not ok.all():
            given = np.asarray(values, np.int64)
            bad = given[~ok]
            raise OutOfRange(
                f"{len(bad)} of {len(given)} times in {src}, the first {bad[0]}, cannot be converted to {dst}: "
                f"{self._reason(int(bad[0]), src, dst)}",
                "the clock recorder must run from before the first event until after the last",
            )
        return out, error

    def convert_masked(self, values: npt.ArrayLike, src: str, dst: str) -> tuple[I64, I64, Mask]:
        """Like ``convert``, with a mask of the values that could be converted; the rest are 0."""
        given = np.asarray(values, np.int64)
        if src == dst:
            return given.copy(), np.zeros(given.shape, np.int64), np.ones(given.shape, bool)
        out = np.zeros(given.shape, np.int64)
        error = np.zeros(given.shape, np.int64)
        ok = np.zeros(given.shape, bool)
        for start in range(0, len(given), CHUNK):
            piece = slice(start, start + CHUNK)
            tsc, e1, ok1 = self._to_tsc(given[piece], src)
            ns, e2, ok2 = self._from_tsc(tsc, dst)
            ok[piece] = ok1 & ok2
            out[piece] = np.where(ok[piece], ns, 0)
            error[piece] = np.where(ok[piece], e1 + e2, 0)
        return out, error, ok

    def _segments(self, domain: str) -> Segments:
        try:
            return self._maps[domain]
        except KeyError:
            raise OutOfRange(
                f"the clock map has no {domain}; it has: {', '.join(self.domains) or 'nothing'}",
                "record with nsight-clock" + (" --phc" if domain.startswith("phc:") else ""),
            ) from None

    def _from_tsc(self, tsc: I64, domain: str) -> tuple[I64, I64, Mask]:
        if domain == "tsc":
            return tsc, np.zeros(len(tsc), np.int64), np.ones(len(tsc), bool)
        s = self._segments(domain)
        row = np.searchsorted(s.tsc_start, tsc, side="right") - 1
        ok = row >= 0
        row = np.maximum(row, 0)
        ok &= tsc < s.tsc_end[row]
        return s.ns(np.where(ok, tsc, s.tsc_start[row]), row), s.error_ns[row], ok

    def _to_tsc(self, ns: I64, domain: str) -> tuple[I64, I64, Mask]:
        if domain == "tsc":
            return ns, np.zeros(len(ns), np.int64), np.ones(len(ns), bool)
        s = self._segments(domain)
        if domain not in self._inverses:
            self._inverses[domain] = _invert(s)
        inverse = self._inverses[domain]
        epoch, ok = _epoch_of(ns, inverse)
        row = _row_of(ns, epoch, inverse, len(s))

        last = s.tsc_end[row] - 1
        # A value before the start of its segment, or in the rounding between two, is clamped;
        # the distance is part of the error.
        tsc = np.clip(
            s.tsc(np.clip(ns, inverse.floor[row] - STEP_NS, s.ns(last, row)), row), s.tsc_start[row], last
        )
        off = np.abs(s.ns(tsc, row) - ns)
        ok &= off <= STEP_NS
        return tsc, s.error_ns[row] + inverse.fold_ns[row] + off, ok

    def _reason(self, value: int, src: str, dst: str) -> str:
        """Why ``value`` was refused."""
        one = np.array([value], np.int64)
        tsc, _, ok = self._to_tsc(one, src)
        if not ok[0]:
            s = self._segments(src)
            inverse = self._inverses[src]
            low, high = int(inverse.low.min()), int(inverse.high.max())
            if low <= value <= high:
                return f"{src} was stepped there, so it showed that time twice or never"
            start, end = self.range_tsc(src)
            return f"the clock map covers {src} {low} to {high} (tsc {start} to {end}, {len(s)} segments)"
        start, end = self.range_tsc(dst)
        return f"the clock map covers {dst} for tsc {start} to {end}, this is tsc {int(tsc[0])}"


def _invert(s: Segments) -> _Inverse:
    rows = np.arange(len(s))
    begin = s.ns(s.tsc_start, rows)
    end = s.ns(np.maximum(s.tsc_end - 1, s.tsc_start), rows)
    # At each boundary: what the previous segment would have shown where the next one begins.
    back = s.ns(s.tsc_start[1:], rows[:-1]) - begin[1:]
    touching = s.tsc_start[1:] == s.tsc_end[:-1]
    overlap = np.where(touching, back, end[:-1] - begin[1:])
    stepped = np.abs(overlap) > STEP_NS
    first = np.concatenate([[0], np.flatnonzero(stepped) + 1])
    last = np.append(first[1:] - 1, len(s) - 1)

    high = np.maximum.reduceat(end, first)
    # If the next segment is the bracket of the step, the old line may have held until its end.
    unsure = np.flatnonzero(s.error_ns[first[1:]] > 0)
    held = s.ns(s.tsc_end[first[1:]] - 1, last[:-1])
    high[unsure] = np.maximum(high[unsure], held[unsure])
    low = np.minimum.reduceat(begin, first)

    fold = np.zeros(len(s), np.int64)
    small = np.where(stepped, 0, np.maximum(overlap, 0))
    # One ns of overlap is rounding: both sides show the same ns for a fraction of it.
    small = np.where(small <= 1, 0, small)
    fold[:-1] = np.maximum(fold[:-1], small)
    fold[1:] = np.maximum(fold[1:], small)

    floor = begin.copy()
    for a, b in zip(first.tolist(), last.tolist(), strict=True):
        floor[a : b + 1] = np.maximum.accumulate(begin[a : b + 1])
    by_low, by_high = np.argsort(low, kind="stable"), np.argsort(high, kind="stable")
    return _Inverse(first, by_low, low[by_low], by_high, high[by_high], floor, fold)


def _epoch_of(ns: I64, inverse: _Inverse) -> tuple[I64, Mask]:
    """The epoch that showed each value, and whether exactly one did."""
    begun = np.searchsorted(inverse.low, ns, side="right")
    over = np.searchsorted(inverse.high, ns, side="left")
    # One epoch is left among those that have begun and not ended: the difference of the sums is its number.
    started = np.concatenate([[0], np.cumsum(inverse.by_low)])
    ended = np.concatenate([[0], np.cumsum(inverse.by_high)])
    ok = begun - over == 1
    return np.where(ok, started[begun] - ended[over], 0), ok


def _row_of(ns: I64, epoch: I64, inverse: _Inverse, n_segments: int) -> I64:
    """The segment of each value within its epoch."""
    bounds = np.append(inverse.first, n_segments)
    if len(inverse.first) == 1:
        return np.maximum(np.searchsorted(inverse.floor, ns, side="right") - 1, 0)
    row = np.zeros(len(ns), np.int64)
    order = np.argsort(epoch, kind="stable")
    present, starts = np.unique(epoch[order], return_index=True)
    for e, mine in zip(present.tolist(), np.split(order, starts[1:]), strict=True):
        a, b = int(bounds[e]), int(bounds[e + 1])
        row[mine] = a + np.maximum(np.searchsorted(inverse.floor[a:b], ns[mine], side="right") - 1, 0)
    return row
