# SPDX-License-Identifier: GPL-2.0-only
"""Clock readings (clock.tsv) from the timekeeper's events in perf.data.

The kernel reports each state right after it has published it, in perf's clock. This time is converted to cycles
with perf's own conversion or, for a file in CLOCK_MONOTONIC, with the state itself, whatever the counter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..capture.perf_data import CODE, WIDE_CODE, Decoded
from ..clocks import clock_readings, fixed
from ..errors import BadInput
from ..losses import Ledger
from .advice import CLOCKS, TSC_ONLY

I64 = npt.NDArray[np.int64]
NS = 1_000_000_000
CORE_TIMEKEEPER = 0
# How far the counter may be from cycle_last when a state is published: an update is due at each tick, a core
# without ticks may be late by seconds.
_MAX_CYCLES = 1 << 40
_SAME_RATE = 0.02  # NTP and adjtimex() slew a clock by less; another counter's rate differs by more
_OF_RECORDER = re.compile(rb"^[VBPK]\t.*$", re.MULTILINE)


@dataclass
class Updates:
    """States of the core timekeeper in the order published; times are perf's.

    ``v`` are the values of native/tracepoint_events.h; readings of a patched perf have mult 0. ``rejected``: times of states
    that no kernel writes; those states are not included.
    """

    ts: I64
    v: I64
    rejected: I64

    @property
    def mult(self) -> I64:
        return self.v[:, 4]

    def states(self) -> Updates:
        """Without readings."""
        return Updates(self.ts[self.mult > 0], self.v[self.mult > 0], self.rejected)


def updates(wide: npt.NDArray[np.void]) -> Updates:
    """From the tracepoint, else from perf's own records of it."""
    rejected = np.zeros(0, np.int64)
    for kind in ("timekeeping_update", "clock_map"):
        rows = wide[wide["kind"] == WIDE_CODE[kind]]
        v = rows["v"].astype(np.int64)
        core = v[:, 8] == CORE_TIMEKEEPER
        good = core & (v[:, 4] >= 0) & (v[:, 4] < 1 << 32)
        good &= (v[:, 5] >= 0) & (v[:, 5] <= 32) & (v[:, 0] >= 0) & (v[:, 1] >= 0) & (v[:, 1] < 1 << 62)
        good &= (np.abs(v[:, 2]) < 1 << 62) & (np.abs(v[:, 3]) < 1 << 62) & (np.abs(v[:, 6]) < 1 << 16)
        if kind == "timekeeping_update":
            good &= v[:, 4] > 0
        ts = rows["ts"].astype(np.int64)
        rejected = np.concatenate((rejected, ts[core & ~good]))
        if good.any():
            return Updates(ts[good], v[good], rejected)
    return Updates(np.zeros(0, np.int64), np.zeros((0, 11), np.int64), rejected)


def clock_tsv(
    decoded: Decoded, wide: npt.NDArray[np.void], name: str, beside: Path | None, ledger: Ledger
) -> str:
    """The text of clock.tsv; ``beside``: one that nsight-clock wrote meanwhile, whose readings are added.

    Raises BadInput if nothing shows how perf's clock and CLOCK_MONOTONIC relate.
    """
    found = updates(wide)
    ledger.add("clock_update_impossible", len(found.rejected))
    conversion = _conversion(decoded.info)
    if decoded.clock not in ("perf", "monotonic"):
        raise BadInput(
            f"{name}: recorded in the clock {decoded.clock}",
            "record without -k, or with -k CLOCK_MONOTONIC",
        )
    lines: list[str] = []
    khz, source = 0, "tsc"
    ends = _ends(decoded, wide)
    end = ends[1] + 1  # the map is exclusive there, and the last event belongs to it
    if decoded.clock == "monotonic":
        if not (found.mult > 0).any():
            return _identity(ends, ledger)
        found = found.states()
        tsc = _cycles(found, found.ts)
        last = _cycles(found, np.full(len(found.ts), end))[-1:]
        khz = _khz(int(found.mult[-1]), int(found.v[-1, 5]))
        lines = _states(found, tsc, last, _lost_before(decoded, found.ts), ledger)
    else:
        if conversion is None:
            raise BadInput(
                f"{name}: perf's clock is not based on the TSC on that machine, so its times cannot be converted",
                TSC_ONLY,
            )
        if not len(found.ts):
            raise BadInput(
                f"{name}: nothing shows how perf's clock and the system clocks relate: "
                "no timekeeping:timekeeping_update, no clock map",
                CLOCKS,
            )
        mult, shift, zero = conversion
        khz = _khz(mult, shift)
        lines.append(f"C\t{mult}\t{shift}\t{zero}")
        tsc = _tsc(found.ts, conversion)
        last = _tsc(np.array([end]), conversion)
        if (found.mult > 0).any():
            states = found.states()
            tsc = tsc[found.mult > 0]
            _check_counter(states, tsc, conversion, name)
            lines += _states(states, tsc, last, _lost_before(decoded, states.ts), ledger)
        else:
            lines += _readings(found, tsc, conversion)
    if beside is not None:
        lines += _beside(beside, khz)
    return "\n".join(
        [f"#nsight-clock 1 tsc_khz={khz} clocksource={source}", *lines, f"E\t0\t{len(found.ts)}\t0\t0\t0", ""]
    )


def _khz(mult: int, shift: int) -> int:
    return (10**6 << shift) // mult


def _conversion(info: dict[str, Any]) -> tuple[int, int, int] | None:
    """time_mult, time_shift, time_zero of perf's clock."""
    conv = info.get("time_conv")
    if not conv or not 0 < conv["mult"] < 1 << 32 or conv["shift"] > 32:
        return None
    zero = conv["zero"] - (1 << 64 if conv["zero"] >> 63 else 0)
    return (conv["mult"], conv["shift"], zero) if abs(zero) < 1 << 62 else None


def _ends(decoded: Decoded, wide: npt.NDArray[np.void]) -> tuple[int, int]:
    """First and last time of the file."""
    timed = decoded.events["ts"][decoded.events["ts"] > 0]
    both = [int(a[i]) for a in (timed, wide["ts"]) if len(a) for i in (0, -1)]
    return (min(both), max(both)) if both else (0, 0)


def _tsc(ns: I64, conversion: tuple[int, int, int]) -> I64:
    mult, shift, zero = conversion
    n = len(ns)
    return fixed.unscale(
        ns - zero, np.full(n, mult, np.int64), np.zeros(n, np.int64), np.full(n, shift, np.int64)
    )


def _cycles(u: Updates, monotonic: I64) -> I64:
    """The counter value at each of these times of CLOCK_MONOTONIC, from each state."""
    shift = u.v[:, 5]
    frac = u.v[:, 1] & (np.left_shift(1, shift) - 1)
    ns = monotonic - u.v[:, 2] - (u.v[:, 1] >> shift)
    return u.v[:, 0] + fixed.unscale(np.clip(ns, -(1 << 50), 1 << 50), u.mult, frac, shift)


def _check_counter(u: Updates, tsc: I64, conversion: tuple[int, int, int], name: str) -> None:
    """Refuse states of a counter other than the base of perf's clock."""
    rate = u.mult / np.exp2(u.v[:, 5].astype(float))
    perf_rate = conversion[0] / 2.0 ** conversion[1]
    since = tsc - u.v[:, 0]
    same = (np.abs(rate / perf_rate - 1) < _SAME_RATE) & (since > -_MAX_CYCLES) & (since < _MAX_CYCLES)
    if not same.any():
        raise BadInput(
            f"{name}: the kernel's clocksource was not the TSC, the base of perf's clock", TSC_ONLY
        )


def _lost_before(decoded: Decoded, ts: I64) -> npt.NDArray[np.bool_]:
    """States before which perf reports lost events, which may have been updates; the last entry is the file's end.

    The kernel writes this report shortly before or after the next event of that core, so the state after it counts too.
    """
    lost = decoded.events["ts"][decoded.events["kind"] == CODE["lost"]].astype(np.int64)
    at = np.searchsorted(ts, lost, side="left")
    found = np.zeros(len(ts) + 1, bool)
    found[at], found[np.maximum(at - 1, 0)] = True, True
    return found


def _states(u: Updates, tsc: I64, last: I64, gap: npt.NDArray[np.bool_], ledger: Ledger) -> list[str]:
    """K lines, and one more for how long the last state is known to have been in force."""
    ledger.add("clock_updates_lost", int(np.count_nonzero(gap)))
    gap = gap.copy()
    gap[np.searchsorted(u.ts, u.rejected, side="left")] = True
    v = np.concatenate((u.v, u.v[-1:]))
    now = np.concatenate((tsc, np.maximum(last, tsc[-1:])))
    previous = np.concatenate((tsc[:1], now[:-1]))
    if not gap[-1]:
        previous[-1] = now[-1]  # nothing was published: the last line is in force until then
    # A lost update counts as two missed ones: then only the rate of the clock is known there.
    seq = 2 * np.cumsum(1 + 2 * gap.astype(np.int64))
    source = np.append(v[:-1, 9], v[-1, 9])
    kinds, counts = np.unique(source, return_counts=True)
    mode = (source == kinds[np.argmax(counts)]).astype(np.int64)
    shift = v[:, 5]

    def split(base: I64) -> tuple[I64, I64]:
        ns = base + (v[:, 1] >> shift)  # whole seconds first: xtime_nsec alone may be more than one
        frac = v[:, 1] & (np.left_shift(1, shift) - 1)
        return ns // NS, np.left_shift(ns % NS, shift) + frac

    real, mono = split(v[:, 3]), split(v[:, 2])
    tai = split(v[:, 3] + v[:, 6] * NS)
    zero = np.zeros(len(v), np.int64)
    columns = (
        previous, now, seq, mode, v[:, 0], v[:, 4], shift, *real, *mono, zero, zero, *tai,
    )  # fmt: skip
    return _lines("K", np.column_stack(columns))


def _lines(kind: str, rows: I64, *words: str) -> list[str]:
    """Lines of clock.tsv."""
    if not len(rows):
        return []
    frame = pd.DataFrame(rows)
    for word in (*reversed(words), kind):
        frame.insert(0, word, word)
    return [frame.to_csv(sep="\t", header=False, index=False, lineterminator="\n").rstrip("\n")]


def _readings(u: Updates, tsc: I64, conversion: tuple[int, int, int]) -> list[str]:
    """B lines of a patched perf that had no tracepoint: readings with an error."""
    mult, shift, _zero = conversion
    error = np.clip(u.v[:, 1], 0, NS)
    half = -(-(error << shift) // mult) if shift < 32 else error
    lines = []
    for domain, ns in (
        ("realtime", u.v[:, 3]),
        ("monotonic", u.v[:, 2]),
        ("tai", u.v[:, 3] + u.v[:, 6] * NS),
    ):
        rows = np.column_stack((tsc - half, ns, tsc + half))
        lines += _lines("B", rows[(rows[:, 0] >= 0) & (rows[:, 1] >= 0)], domain)
    return lines


def _identity(ends: tuple[int, int], ledger: Ledger) -> str:
    """A file in CLOCK_MONOTONIC without other clock information: that clock serves as its own counter."""
    ledger.add("clocks_not_recorded", 1)
    lines = [f"B\tmonotonic\t{ns}\t{ns}\t{ns}" for ns in (max(ends[0] - 1000, 0), ends[1] + 1000)]
    return "\n".join(
        ["#nsight-clock 1 tsc_khz=1000000 clocksource=monotonic", *lines, "E\t0\t0\t0\t0\t0", ""]
    )


def _beside(path: Path, khz: int) -> list[str]:
    """The records of another clock.tsv of the same time, if it is based on the same counter."""
    data = clock_readings.read(path)
    other = clock_readings.parse(data, str(path)).tsc_khz
    if other and abs(other / khz - 1) > _SAME_RATE:
        raise BadInput(
            f"{path}: readings of a counter of {other} kHz, but that of the recording has {khz} kHz",
            "give readings that nsight-clock took on the recorded machine meanwhile, with the TSC as clocksource",
        )
    return [b"\n".join(_OF_RECORDER.findall(data)).decode("ascii", "replace")]
