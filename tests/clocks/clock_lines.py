# SPDX-License-Identifier: GPL-2.0-only
"""Handmade clock recordings for tests: every number is chosen so that it can be checked by hand."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from nsight_report import clocks
from nsight_report.clocks import clock_readings

# 2 GHz: one cycle is half a ns. mult / 2**SHIFT = 0.5
SHIFT = 23
MULT = 1 << 22
HEADER = "#nsight-clock 1 tsc_khz=2000000 clocksource=tsc"
END = "E\t10\t2\t0\t1000\t1000000"


def state(
    prev: int,
    now: int,
    seq: int,
    cycle_last: int,
    realtime_ns: int,
    *,
    mult: int = MULT,
    shift: int = SHIFT,
    mode: int = 1,
    monotonic_ns: int | None = None,
    frac: int = 0,
    kind: str = "V",
) -> str:
    """A V line. Boottime equals monotonic, TAI is 37 s ahead; monotonic defaults to realtime - 1000 s."""
    mono = realtime_ns - 1000 * 10**9 if monotonic_ns is None else monotonic_ns
    fields = [prev, now, seq, mode, cycle_last, mult, shift]
    for ns in (realtime_ns, mono, mono, realtime_ns + 37 * 10**9):
        fields += [ns // 10**9, ((ns % 10**9) << shift) + frac]
    return "\t".join([kind, *map(str, fields)])


def bracket(domain: str, before: int, ns: int, after: int) -> str:
    """A B line."""
    return f"B\t{domain}\t{before}\t{ns}\t{after}"


def readings(*lines: str) -> clock_readings.Readings:
    """The lines, parsed as a complete recording."""
    return clock_readings.parse("\n".join([HEADER, *lines, END, ""]).encode())


def build(*lines: str) -> tuple[pa.Table, pa.Table]:
    """Clock map and losses of a complete recording."""
    return clocks.build(readings(*lines))


def clock_map(*lines: str) -> clocks.ClockMap:
    """A converter for the recording."""
    return clocks.ClockMap(build(*lines)[0])


def segments(table: pa.Table, domain: str = "realtime") -> list[tuple[int, int, int]]:
    """(tsc_start, tsc_end, error_ns) of a domain's segments."""
    rows = [r for r in table.to_pylist() if r["domain"] == domain]
    return [(r["tsc_start"], r["tsc_end"], r["error_ns"]) for r in rows]


def losses(table: pa.Table) -> dict[str, tuple[str, int]]:
    """cause: (severity, count)."""
    return {r["cause"]: (r["severity"], r["count"]) for r in table.to_pylist()}


def ints(*values: int) -> np.ndarray:
    """An int64 array."""
    return np.array(values, np.int64)
