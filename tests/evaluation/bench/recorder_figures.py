# SPDX-License-Identifier: GPL-2.0-only
"""Figures of bench_recorder.py: from the load client's log to ratios, and from ratios to goals that are met or missed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

#: A percentile needs this many requests above it.
ABOVE = 1


@dataclass(frozen=True)
class Goal:
    """A number compared with a limit; ``found`` None: it could not be measured, which counts as missed."""

    what: str
    found: float | None
    limit: float
    at_most: bool

    @property
    def met(self) -> bool:
        """Whether the number is within the limit."""
        if self.found is None:
            return False
        return self.found <= self.limit if self.at_most else self.found >= self.limit

    def __str__(self) -> str:
        bound = f"{self.what}: {'at most' if self.at_most else 'at least'} {self.limit:g}"
        if self.found is None:
            return f"{bound}; not measured: MISSED"
        by = abs(self.found - self.limit)
        return f"{bound}; {self.found:.3g}: {'met' if self.met else 'MISSED'} by {by:.2g}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "met": self.met}


def latencies_us(log: pd.DataFrame) -> np.ndarray:
    """Ascending latencies of the counted requests, each from the time when it was due.

    Measured from the send time, latencies would omit the wait for earlier requests (coordinated omission).
    A request that was never answered waited at least until the end of the log, and is counted with that time.
    """
    rows = log[log.counted]
    end = max(rows.recv_ns.max(), rows.send_ns.max()) if len(rows) else 0
    until = rows.recv_ns.where(rows.recv_ns > 0, end)
    return np.sort((until - rows.intended_ns).to_numpy()) / 1e3


def percentile(ordered: np.ndarray, share: float) -> float | None:
    """Nearest rank: the smallest value that at least ``share`` of all do not exceed; None if too few are above it."""
    rank = math.ceil(share * len(ordered))
    if not len(ordered) or len(ordered) - rank < ABOVE:
        return None
    return float(ordered[max(rank, 1) - 1])


def figures(log: pd.DataFrame) -> dict[str, float | None]:
    """Requests/s answered, the number counted but not answered, latency percentiles in us."""
    rows = log[log.counted]
    answered = rows[rows.recv_ns > 0]
    span = float(answered.recv_ns.max() - rows.intended_ns.min()) / 1e9 if len(answered) else 0
    ordered = latencies_us(log)
    return {
        "rate": len(answered) / span if span else None,
        "n": len(rows),
        "unanswered": len(rows) - len(answered),
        "p50": percentile(ordered, 0.5),
        "p99": percentile(ordered, 0.99),
        "p99.9": percentile(ordered, 0.999),
    }


def ratio(found: Sequence[float | None], bare: Sequence[float | None]) -> float | None:
    """Median of the rounds' ratios; both values of a round share the machine's good or bad minute. None without any."""
    ratios = [a / b for a, b in zip(found, bare, strict=True) if a is not None and b]
    return statistics.median(ratios) if ratios else None


def median(values: Sequence[float | None]) -> float | None:
    """Median of the values that are not None."""
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


def shown(values: Sequence[float | None], digits: int = 0) -> str:
    """Median and range, such as ``102 (99-111)``; a single value alone."""
    known = [v for v in values if v is not None]
    if not known:
        return "-"
    low, middle, high = (f"{v:,.{digits}f}" for v in (min(known), statistics.median(known), max(known)))
    return middle if len(known) == 1 else f"{middle} ({low}-{high})"
