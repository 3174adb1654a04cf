# SPDX-License-Identifier: GPL-2.0-only
"""Clock readings (clock.tsv) as arrays; the file's format is in Documentation/formats.md.

A recording that was cut ends in the middle of a line: the incomplete line is left out and
counted, and so is every line that is not one of the known records; what a lost line means for the
time around it is decided by ``nsight_report.clocks.build``, which needs to know where it was.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .. import files
from ..errors import BadInput
from ..losses import Ledger

I64 = npt.NDArray[np.int64]

# Clocks of a V or K record, in the order of their fields.
TIMEKEEPER_DOMAINS = ("realtime", "monotonic", "boottime", "tai")

MAX_BYTES = 1 << 29  # three hours of updates at HZ=250

_HEADER = re.compile(rb"#nsight-clock (\d{1,9}) tsc_khz=(\d{1,12}) clocksource=([\w.-]{1,64})")
# Below 9e18, so that every number fits a signed 64-bit integer.
_N = rb"(?:\d{1,18}|[1-8]\d{18})"
_LINES = {
    b"V": re.compile(rb"V(?:\t" + _N + rb"){3}\t-?\d{1,9}(?:\t" + _N + rb"){11}"),
    b"K": re.compile(rb"K(?:\t" + _N + rb"){3}\t-?\d{1,9}(?:\t" + _N + rb"){11}"),
    b"B": re.compile(rb"B\t(?:realtime|monotonic|boottime|tai|monotonic_raw)(?:\t" + _N + rb"){3}"),
    b"P": re.compile(rb"P\tphc:[\w.-]{1,64}\t(?:precise|extended|offset)(?:\t" + _N + rb"){3}"),
    b"C": re.compile(rb"C\t\d{1,10}\t\d{1,3}\t-?" + _N),
    b"E": re.compile(rb"E(?:\t" + _N + rb"){5}"),
}


@dataclass
class States:
    """Timekeeper states, one per update, in the order published.

    ``sec`` and ``snsec`` have a column per domain of ``TIMEKEEPER_DOMAINS``; ``snsec`` is in
    ns shifted left by ``shift``. ``gap_before`` marks a state before which lines were lost.
    """

    tsc_prev: I64
    tsc_now: I64
    seq: I64
    mode: I64
    cycle_last: I64
    mult: I64
    shift: I64
    sec: I64
    snsec: I64
    gap_before: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.tsc_now)

    def take(self, rows: npt.NDArray[np.bool_] | I64) -> States:
        """The chosen rows."""
        return States(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


@dataclass
class Brackets:
    """Paired readings of one clock: it showed ``ns`` somewhere in [before, after].

    ``before`` and ``after`` are TSC values for B records and CLOCK_REALTIME (ns) for P records.
    """

    before: I64
    ns: I64
    after: I64

    def __len__(self) -> int:
        return len(self.ns)


@dataclass
class Readings:
    """Everything in one clock.tsv, and what was lost while reading it."""

    tsc_khz: int
    clocksource: str
    polled: States
    probed: States
    brackets: dict[str, Brackets] = field(default_factory=dict)
    phcs: dict[str, Brackets] = field(default_factory=dict)
    perf: tuple[int, int, int] | None = None  # time_mult, time_shift, time_zero
    end: tuple[int, ...] | None = None  # polls, updates, missed, cpu_ns, wall_ns; None: cut
    ledger: Ledger = field(default_factory=lambda: Ledger("clocks"))


def _integers(lines: list[bytes], skip: int, n_columns: int) -> I64:
    """The fields after the first ``skip`` of lines of one kind, all numbers: one row per line."""
    text = b"\t".join(line.split(b"\t", skip)[skip] for line in lines)
    return np.fromstring(text, np.int64, sep="\t").reshape(len(lines), n_columns)


def _states(lines: list[bytes], gaps: list[bool]) -> States:
    n = _integers(lines, 1, 15)
    prev, now, seq, mode, cycle_last, mult, shift = n[:, :7].T
    return States(prev, now, seq, mode, cycle_last, mult, shift, n[:, 7::2], n[:, 8::2], np.array(gaps, bool))


def _in_order(s: States) -> States:
    """Probed states by time: bpftrace writes each core's lines when it reads that core's buffer."""
    return s.take(np.argsort(s.tsc_now, kind="stable"))


def _by_domain(lines: list[bytes], first: int) -> dict[str, Brackets]:
    names = np.array([line.split(b"\t", 2)[1].decode("ascii") for line in lines], dtype=object)
    n = _integers(lines, first, 3)
    return {
        str(name): Brackets(*(n[names == name, i] for i in range(3)))
        for name in dict.fromkeys(names.tolist())
    }


def load(path: Path) -> Readings:
    """Read ``clock.tsv``.

    Raises BadInput if it is not such a file, has an unknown version, or has no usable
    record. Lost lines are in ``Readings.ledger``.
    """
    return parse(read(path), str(path))


def read(path: Path) -> bytes:
    """The contents of ``clock.tsv``; BadInput if they cannot be read, or are too large."""
    try:
        with files.opened(path) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", "record again with nsight-record") from error
    if len(data) > MAX_BYTES:
        raise BadInput(f"{path}: larger than {MAX_BYTES >> 20} MiB", "record for a shorter time")
    return data


def parse(data: bytes, name: str = "clock.tsv") -> Readings:
    """Like ``load``, for the file's contents. ``name`` is for messages."""
    *lines, tail = data.split(b"\n")
    header = _HEADER.fullmatch(lines[0]) if lines else None
    if not header:
        raise BadInput(
            f"{name}: not a recording of clock readings", "its first line is '#nsight-clock 1 ...'"
        )
    if int(header[1]) != 1:
        raise BadInput(
            f"{name}: version {int(header[1])} of the format is unknown", "use a newer nsight-report"
        )

    kinds: dict[bytes, list[bytes]] = {kind: [] for kind in _LINES}
    gaps: dict[bytes, list[bool]] = {b"V": [], b"K": []}
    lost: Counter[bytes] = Counter()
    gap = {b"V": False, b"K": False}
    for line in lines[1:]:
        kind = line[:1]
        pattern = _LINES.get(kind)
        if pattern is None or not pattern.fullmatch(line):
            if kind != b"#" or line.startswith(b"#nsight-clock"):
                lost[kind] += 1
                # The unreadable line may have been a state of the timekeeper.
                gap = {b"V": True, b"K": True}
            continue
        kinds[kind].append(line)
        if kind in gaps:
            gaps[kind].append(gap[kind])
            gap[kind] = False

    readings = Readings(
        tsc_khz=int(header[2]),
        clocksource=header[3].decode("ascii"),
        polled=_states(kinds[b"V"], gaps[b"V"]),
        probed=_in_order(_states(kinds[b"K"], gaps[b"K"])),
        brackets=_by_domain(kinds[b"B"], 2),
        phcs=_by_domain(kinds[b"P"], 3),
    )
    if kinds[b"C"]:
        mult, shift, zero = (int(cell) for cell in kinds[b"C"][0].split(b"\t")[1:])
        readings.perf = (mult, shift, zero)
    if kinds[b"E"]:
        readings.end = tuple(int(cell) for cell in kinds[b"E"][-1].split(b"\t")[1:])

    ledger = readings.ledger
    ledger.add("clock_reading_not_understood", sum(lost.values()))
    if readings.end is None:
        ledger.add("clock_readings_cut", 1, tail=" (an incomplete last line was left out)" if tail else "")
    elif tail:
        ledger.add("clock_reading_incomplete", 1)
    if not (len(readings.polled) or len(readings.probed) or readings.brackets):
        raise BadInput(
            f"{name}: no clock reading in it", "record again; nsight-clock prints on stderr what failed"
        )
    return readings
