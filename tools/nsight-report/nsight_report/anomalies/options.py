# SPDX-License-Identifier: GPL-2.0-only
"""What the user may choose about a diagnosis."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..errors import NsightError

_UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_PERCENTILES = re.compile(r"^p(?P<lo>\d+(?:\.\d+)?)-(?P<hi>\d+(?:\.\d+)?)$")
_LATENCIES = re.compile(
    r"^(?P<lo>\d+(?:\.\d+)?)(?P<lou>ns|us|ms|s)-(?:(?P<hi>\d+(?:\.\d+)?)(?P<hiu>ns|us|ms|s))?$"
)


# More messages than this say nothing new about a median, and windows cost memory.
MAX_REFERENCE = 20_000
#: As many where each of them must be decoded first.
FEW_REFERENCES = 500


class BadSlice(NsightError):
    """A slice that cannot be read."""

    exit_code = 2


@dataclass(frozen=True)
class Slice:
    """A part of the latency distribution, by percentile or by latency.

    ``low`` and ``high`` are percentiles (0..100) when ``by`` is ``percentile``, nanoseconds
    when it is ``latency``. Both ends are included.
    """

    by: str
    low: float
    high: float

    @staticmethod
    def parse(text: str) -> Slice:
        """Read ``p99-100`` (percentiles) or ``1ms-``, ``20us-2ms`` (latencies).

        >>> Slice.parse("p99-100")
        Slice(by='percentile', low=99.0, high=100.0)
        >>> Slice.parse("20us-2ms").high
        2000000.0
        """
        if m := _PERCENTILES.match(text):
            low, high = float(m["lo"]), float(m["hi"])
            if low < high <= 100:
                return Slice("percentile", low, high)
        elif m := _LATENCIES.match(text):
            low = float(m["lo"]) * _UNITS[m["lou"]]
            high = float(m["hi"]) * _UNITS[m["hiu"]] if m["hi"] else float("inf")
            if low < high:
                return Slice("latency", low, high)
        raise BadSlice(
            f"slice {text!r} is not understood",
            "use percentiles such as p99-100 or latencies such as 1ms- or 20us-2ms",
        )

    def __str__(self) -> str:
        if self.by == "percentile":
            return f"p{self.low:g}-{self.high:g}"
        high = "" if self.high == float("inf") else _ns(self.high)
        return f"{_ns(self.low)}-{high}"


def _ns(value: float) -> str:
    for unit in ("s", "ms", "us"):
        if value >= _UNITS[unit]:
            return f"{value / _UNITS[unit]:g}{unit}"
    return f"{value:g}ns"


@dataclass(frozen=True)
class Options:
    """Target, reference and population of a diagnosis.

    ``app`` selects by process name or pid, ``port`` by the application's own port; when both
    are None the application with the most messages on its own listening side is taken.
    ``granularity_ns``: deviations at or below it are noise of the time stamps and ignored.
    ``categories``: path of a CSV whose rows come before the built-in categories. ``max_reference``: a
    larger reference slice is thinned to this, or to as many as the target has if these are more. ``explained``: a
    function of whose deviation nested anomalies explain this share is not reported itself.
    """

    target: Slice = field(default_factory=lambda: Slice("percentile", 99, 100))
    reference: Slice = field(default_factory=lambda: Slice("percentile", 25, 75))
    app: str | None = None
    port: int | None = None
    direction: str = "rx"
    granularity_ns: int = 1_000
    categories: str | None = None
    max_reference: int = MAX_REFERENCE
    explained: float = 0.8
