# SPDX-License-Identifier: GPL-2.0-only
"""Durations and percentiles as text for people."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# A percentile is shown when at least this many messages lie beyond it. With ten, the rank of
# the true percentile is uncertain by about +-6 messages (two standard deviations, sqrt(10)*2);
# with fewer, the number mostly says what the maximum was.
BEYOND = 10


def duration(ns: int | float | None) -> str:
    """``ns`` in the unit that leaves one to three digits before the point.

    >>> duration(1500), duration(0), duration(None), duration(-2_000_000)
    ('1.50 us', '0 ns', '-', '-2.00 ms')
    """
    if ns is None:
        return "-"
    for unit, scale in (("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)):
        if abs(ns) >= scale:
            value = ns / scale
            digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
            return f"{value:.{digits}f} {unit}"
    return f"{ns:.0f} ns"


def error(bound_ns: int | None) -> str:
    """An error bound to print after a duration; empty if there is none.

    >>> error(0), error(2000), error(None)
    ('', '±2.00 us', 'above the smallest')
    """
    return "above the smallest" if bound_ns is None else f"±{duration(bound_ns)}" if bound_ns else ""


def bounded(ns: int, bound_ns: int | None) -> str:
    """A duration with its error bound.

    >>> bounded(1500, 0), bounded(1500, 200)
    ('1.50 us', '1.50 us ±200 ns')
    """
    return f"{duration(ns)} {error(bound_ns)}".rstrip()


def percent(share: float) -> str:
    """A share as whole percent; a share above zero that rounds to zero is shown as <1%.

    >>> percent(0.41), percent(0.001), percent(0.0)
    ('41%', '<1%', '0%')
    """
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def counted(n: int, what: str, plural: str = "") -> str:
    """A number with its noun.

    >>> counted(1, "message"), counted(2000, "message"), counted(2, "loss", "losses")
    ('1 message', '2,000 messages', '2 losses')
    """
    return f"{n:,} {what if n == 1 else plural or what + 's'}"


def supported(n: int, percent: float) -> bool:
    """Whether ``n`` values are enough to state percentile ``percent`` (see BEYOND)."""
    # Rounded, because 10000 * (1 - 0.999) is 9.999999999999... in floating point.
    return round(n * min(percent, 100.0 - percent) / 100.0, 6) >= BEYOND


def percentile(values: npt.NDArray[np.int64], percent: float) -> int | None:
    """Nearest-rank percentile: the smallest value with ``percent`` of the values at or below it.

    None when the values are too few. Stays in integers: the result is one of the values.
    """
    n = len(values)
    if not supported(n, percent):
        return None
    rank = int(np.ceil(round(n * percent / 100.0, 6)))
    return int(np.partition(values, rank - 1)[rank - 1])
