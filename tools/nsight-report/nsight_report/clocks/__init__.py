# SPDX-License-Identifier: GPL-2.0-only
"""Time domains: from clock readings to a clock map, and conversion with error bounds.

>>> from nsight_report.capture import clock_readings
>>> table, losses = build(clock_readings.load(path))  # doctest: +SKIP
>>> ns, error_ns = ClockMap(table).convert(tsc, "tsc", "monotonic")  # doctest: +SKIP
"""

from .build import build
from .convert import ClockMap, OutOfRange

__all__ = ["ClockMap", "OutOfRange", "build"]
