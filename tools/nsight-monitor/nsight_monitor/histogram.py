# SPDX-License-Identifier: GPL-2.0-only
"""Histograms with a bucket for each power of two of nanoseconds, and percentiles of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Same as in tools/nsight-monitor/histograms/stages.h.
N_BUCKETS = 40
#: In ten-thousandths: p50, p90, p99, p99.9, p99.99.
PERCENTILES = (5000, 9000, 9900, 9990, 9999)


@dataclass(frozen=True)
class Bounds:
    """A latency is above ``low`` and at most ``high`` ns; None: no upper bound. For the first bucket ``low``
    is 0, and the bucket includes a latency of 0."""

    low: int
    high: int | None


def bounds(bucket: int) -> Bounds:
    """Bounds of a bucket: the first one ends at 1 ns, each other one at twice the bound before, the last one
    has no end.

    >>> bounds(0), bounds(10)
    (Bounds(low=0, high=1), Bounds(low=512, high=1024))
    """
    return Bounds(1 << (bucket - 1) if bucket else 0, 1 << bucket if bucket < N_BUCKETS - 1 else None)


@dataclass(frozen=True)
class Histogram:
    """``n`` of each bucket, and the sum of all latencies in ns."""

    n: tuple[int, ...]
    sum_ns: int

    @property
    def count(self) -> int:
        """Number of latencies in all buckets."""
        return sum(self.n)

    @property
    def mean_ns(self) -> float:
        """The mean; 0 if the histogram is empty."""
        return self.sum_ns / self.count if self.count else 0.0

    def since(self, before: Histogram) -> Histogram:
        """The latencies added since ``before``, an earlier state of the same histogram."""
        return Histogram(
            tuple(a - b for a, b in zip(self.n, before.n, strict=True)), self.sum_ns - before.sum_ns
        )

    def percentile(self, per_10000: int) -> Bounds | None:
        """Bounds of the smallest latency that at least this many ten-thousandths of all latencies do not
        exceed; None: too few latencies for that share (p99 needs 100).

        >>> Histogram((0, 99, 1), 0).percentile(9900)
        Bounds(low=1, high=2)
        """
        count = self.count
        if count * (10_000 - per_10000) < 10_000:
            return None
        rank, below = -(-per_10000 * count // 10_000), 0
        for bucket, n in enumerate(self.n):
            below += n
            if below >= rank:
                return bounds(bucket)
        return None

    def largest(self) -> Bounds | None:
        """Bounds of the largest latency; None: there are no latencies."""
        filled = [bucket for bucket, n in enumerate(self.n) if n]
        return bounds(filled[-1]) if filled else None


EMPTY = Histogram((0,) * N_BUCKETS, 0)


def total(histograms: Iterable[Histogram]) -> Histogram:
    """The sum of all histograms."""
    every: Sequence[Histogram] = [EMPTY, *histograms]
    return Histogram(tuple(map(sum, zip(*(h.n for h in every), strict=True))), sum(h.sum_ns for h in every))


_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns"))


def text(ns: float) -> str:
    """With three digits.

    >>> text(65536), text(999_700), text(0)
    ('65.5us', '1ms', '0ns')
    """
    for size, unit in _UNITS:
        if ns >= 0.9995 * size:  # rounded to three digits it is at least 1.00
            return f"{ns / size:.3g}{unit}" if ns < 999.5 * size else f"{ns / size:.0f}{unit}"
    return "0ns"


def bounds_text(of: Bounds | None) -> str:
    """If both bounds have the same unit, it is written once.

    >>> bounds_text(Bounds(512, 1024)), bounds_text(Bounds(2048, 4096))
    ('512ns-1.02us', '2.05-4.1us')
    """
    if of is None:
        return "-"
    if of.high is None:
        return f">{text(of.low)}"
    low, high = text(of.low), text(of.high)
    unit = high.lstrip("0123456789.")
    if low.lstrip("0123456789.") == unit:
        low = low.removesuffix(unit)
    return f"{low}-{high}"
