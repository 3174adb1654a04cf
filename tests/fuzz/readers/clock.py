# SPDX-License-Identifier: GPL-2.0-only
"""clock.tsv: readings, the map made from them, and conversions with it, which must stay within the map's bounds."""

from __future__ import annotations

import guard
import numpy as np

with guard.instrumented():
    from nsight_report import clocks
    from nsight_report.clocks import clock_readings

PATH = guard.directory() / "clock.tsv"
#: Times to convert with any clock, besides those of its own ends.
TIMES = np.array([0, 1, 10**9, 5 * 10**12, 17 * 10**17, (1 << 62) - 1, (1 << 63) - 1], np.int64)


def one(data: bytes) -> None:
    """Read ``data`` as a file of clock readings."""
    PATH.write_bytes(data)
    table, _lost = clocks.build(clock_readings.load(PATH))
    known = clocks.ClockMap(table)
    for domain in known.domains:
        _there_and_back(known, domain)


def _there_and_back(known: clocks.ClockMap, domain: str) -> None:
    """A time that could be converted converts back to itself, within the bounds of both conversions."""
    begin, end = known.range_tsc(domain)
    inside = np.array([begin + (end - begin) * n // 8 for n in range(9)], np.int64)
    tsc = np.unique(np.concatenate([TIMES, inside]))
    ns, error, good = known.convert_masked(tsc, "tsc", domain)
    assert (error >= 0).all(), "an error below zero"
    again, back, found = known.convert_masked(ns[good], domain, "tsc")
    assert (back >= 0).all(), "an error below zero"
    for other in ("monotonic", *known.domains[:2]):
        if other in known.domains:
            known.convert_masked(ns[good], domain, other)
    assert len(again) == len(found) == int(good.sum())


guard.fuzz(one)
