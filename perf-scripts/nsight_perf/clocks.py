# SPDX-License-Identifier: GPL-2.0-only
"""The system clocks as a patched perf records them, and their conversion to clock.tsv.

``perf record --clock-map`` (kernel-patches/perf/) writes PERF_RECORD_TIME_CONV records with additional fields
after those that every perf knows. They are read from the file, so any perf may run the script. perf does not pass
these records to scripts, so a pipe has none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

NS = 10**9
STEP = 1 << 0  # PERF_TIME_CONV_CLK_STEP

# struct perf_record_time_conv after its header.
_RECORD = struct.Struct("<3Q24x3Q2q2Ii2I4x")


class Clock(NamedTuple):
    """The clocks at a time of perf: a reading, or the kernel's parameters from which they are computed (mult != 0)."""

    time: int
    mono: int
    real: int
    tai_offset: int
    error: int
    step: bool
    cycles: int
    xtime_nsec: int
    mult: int
    shift: int
    time_mult: int
    time_shift: int
    time_zero: int  # signed

    @property
    def usable(self) -> bool:
        """Whether perf's time can be converted to TSC, and the clock computed."""
        return self.time_mult > 0 and self.time_shift < 64 and self.shift < 64

    def tsc(self, time: int) -> int:
        """First TSC that perf gives this time: as perf_time_to_tsc(), but the others have a later time."""
        since = (time - self.time_zero) << self.time_shift
        return -(-since // self.time_mult)

    def at(self, tsc: int) -> tuple[int, int]:
        """CLOCK_MONOTONIC and CLOCK_REALTIME by the kernel's parameters."""
        ns = ((tsc - self.cycles) * self.mult + self.xtime_nsec) >> self.shift
        return self.mono + ns, self.real + ns


def signed(value: int) -> int:
    """An unsigned number of 64 bits as a signed one."""
    return value - (1 << 64) if value >> 63 else value


def parse(body: bytes) -> Clock | None:
    """The clock of a TIME_CONV record without its header; None if it has none, as from an unpatched perf."""
    if len(body) < _RECORD.size:
        return None
    shift_, mult_, zero, time, cycles, nsec, mono, real, mult, shift, tai, error, flags = _RECORD.unpack_from(
        body
    )
    made = Clock(
        time, mono, real, tai, error, bool(flags & STEP), cycles, nsec, mult, shift, mult_, shift_, signed(zero)
    )  # fmt: skip
    return made


def summary(clocks: Iterable[Clock]) -> str:
    """One line about them."""
    given = list(clocks)
    updates = sum(1 for c in given if c.mult)
    steps = sum(1 for c in given if c.mult and c.step)
    said = (
        f"{updates:,} updates of the kernel's clocks" if updates else f"{len(given):,} readings of the clocks"
    )
    if not updates:
        said += f", at most {max(c.error for c in given):,} ns off"
    return said + (f"; the clock was set {steps} times" if steps else "")


def _bracket(tsc_before: int, tsc_after: int, mono: int, real: int, tai_offset: int) -> list[str]:
    clocks = (("realtime", real), ("monotonic", mono), ("tai", real + tai_offset * NS))
    return [f"B\t{name}\t{tsc_before}\t{ns}\t{tsc_after}" for name, ns in clocks]


def clock_tsv(clocks: Iterable[Clock], until: int) -> list[str]:
    """Equivalent lines of clock.tsv (Documentation/formats.md), up to ``until`` of perf's time.

    An update becomes two exact readings: the clocks with the previous parameters just before it, and
    with its own parameters at its time. In between they are straight lines. It is no K record, since perf does not record
    CLOCK_BOOTTIME.
    """
    given = sorted(c for c in clocks if c.usable)
    if not given:
        return []
    first = given[0]
    khz = (10**6 << first.time_shift) // first.time_mult
    lines = [
        f"#nsight-clock 1 tsc_khz={khz} clocksource=tsc",
        f"C\t{first.time_mult}\t{first.time_shift}\t{first.time_zero}",
    ]
    before: Clock | None = None
    last = 0
    for clock in given:
        tsc = clock.tsc(clock.time)
        if before is not None and before.mult and last < tsc - 1:
            lines += _bracket(tsc - 1, tsc - 1, *before.at(tsc - 1), before.tai_offset)
        if clock.mult:
            lines += _bracket(tsc, tsc, *clock.at(tsc), clock.tai_offset)
        else:
            half = ((clock.error << clock.time_shift) + clock.time_mult - 1) // clock.time_mult
            lines += _bracket(tsc - half, tsc + half, clock.mono, clock.real, clock.tai_offset)
        before, last = clock, tsc
    if before is not None and before.mult and until > before.time:
        tsc = before.tsc(until)
        lines += _bracket(tsc, tsc, *before.at(tsc), before.tai_offset)
    return lines
