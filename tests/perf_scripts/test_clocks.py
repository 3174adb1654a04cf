# SPDX-License-Identifier: GPL-2.0-only
"""nsight.py on a file with a clock map: the clock.tsv that it writes describes the clock exactly."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from nsight_report.clocks import clock_readings
from nsight_report.clocks.build import build
from nsight_report.clocks.convert import ClockMap

from . import files, runs

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "perf-scripts"))

from nsight_perf import clocks

pytestmark = pytest.mark.tools

TIME_CONV = 79
REAL = 1_700_000_000 * clocks.NS
ZERO = -593_845_649


def body(**given: int) -> bytes:
    """A TIME_CONV record without its header: perf's time is TSC + ZERO."""
    put = {
        "mono": 0,
        "real": REAL,
        "tai": 37,
        "error": 0,
        "flags": 0,
        "cycles": 0,
        "nsec": 0,
        "mult": 0,
        "shift": 0,
    }
    put |= given
    head = struct.pack("<3Q2QBB6x", 31, 1 << 31, ZERO % (1 << 64), 0, 0, 1, 0)
    return head + struct.pack(
        "<3Q2q2Ii2II", put["time"], put["cycles"], put["nsec"], put["mono"], put["real"], put["mult"], put["shift"],
        put["tai"], put["error"], put["flags"], 0,
    )  # fmt: skip


def converted(lines: list[str], tsc: list[int], domain: str = "realtime") -> list[int]:
    """Convert with the report's own clock map of such a clock.tsv."""
    readings = clock_readings.parse("\n".join(lines).encode() + b"\n")
    table, _ = build(readings)
    out, _, ok = ClockMap(table).convert_masked(np.array(tsc), "tsc", domain)
    assert ok.all()
    return [int(v) for v in out]


def test_record_of_an_unpatched_perf_has_no_clock():
    assert clocks.parse(body(time=1)[:48]) is None


def test_zero_of_perf_time_may_be_negative():
    made = clocks.parse(body(time=1_000_000_000))
    assert made
    assert made.time_zero == ZERO
    assert made.tsc(made.time) == made.time - ZERO


def test_updates_are_converted_as_the_kernel_does():
    # 1 cycle is 1 ns + 2^-10 ns from 2 s on, and 1 ns - 2^-10 ns from 3 s on.
    zero = 2 * clocks.NS - ZERO
    first = {"time": 2 * clocks.NS, "cycles": zero, "mono": 5, "mult": (1 << 23) + (1 << 13), "shift": 23}
    then = 5 + clocks.NS + (clocks.NS >> 10)
    second = {
        "time": 3 * clocks.NS, "cycles": zero + clocks.NS, "mono": then, "real": REAL + then - 5,
        "mult": (1 << 23) - (1 << 13), "shift": 23,
    }  # fmt: skip
    known = [clocks.parse(body(**second)), clocks.parse(body(**first))]
    lines = clocks.clock_tsv([k for k in known if k], 4 * clocks.NS)
    at = [zero, zero + 1024, zero + clocks.NS - 1, zero + clocks.NS, zero + clocks.NS + 2048]
    expected = [REAL, REAL + 1025, REAL + then - 5 - 1, REAL + then - 5, REAL + then - 5 + 2046]
    assert np.abs(np.array(converted(lines, at)) - expected).max() <= 1


def test_clock_that_is_set_is_not_interpolated():
    zero = 2 * clocks.NS - ZERO
    plain = {"mult": 1 << 23, "shift": 23}
    first = {"time": 2 * clocks.NS, "cycles": zero, **plain}
    set_back = {
        "time": 3 * clocks.NS,
        "cycles": zero + clocks.NS,
        "mono": clocks.NS,
        "real": REAL - clocks.NS,
        "flags": 1,
    }
    known = [clocks.parse(body(**first)), clocks.parse(body(**set_back, **plain))]
    lines = clocks.clock_tsv([k for k in known if k], 4 * clocks.NS)
    got = converted(lines, [zero + clocks.NS // 2, zero + clocks.NS + 1000])
    assert np.abs(np.array(got) - [REAL + clocks.NS // 2, REAL - clocks.NS + 1000]).max() <= 1


@pytest.fixture
def with_clock(captures, tmp_path) -> Path:
    """A capture whose perf.data says that CLOCK_REALTIME is perf's time and REAL."""
    made = files.Damaged(
        captures["quiet"] if "quiet" in captures else next(iter(captures.values())), tmp_path / "c"
    )
    at, size = struct.unpack_from("<QQ", made.data, 40)
    records = b"".join(
        struct.pack("<IHH", TIME_CONV, 0, 120) + body(time=t, mono=t, real=REAL + t, error=20)
        for t in (0, 1 << 40)
    )
    insert(made.data, at, size, records)
    return made.write()


def insert(data: bytearray, at: int, size: int, records: bytes) -> None:
    """Insert records at the beginning, and adjust the offsets in the header and in the index of the trace."""
    shift = len(records)
    bits = [i for i in range(256) if int.from_bytes(data[72:104], "little") >> i & 1]
    table = at + size
    for place, bit in enumerate(bits):
        entry = table + 16 * place
        offset, length = struct.unpack_from("<QQ", data, entry)
        if bit == 18:  # HEADER_AUXTRACE
            for i in range(offset + 8, offset + length, 16):
                struct.pack_into("<Q", data, i, struct.unpack_from("<Q", data, i)[0] + shift)
        struct.pack_into("<Q", data, entry, offset + shift)
    struct.pack_into("<Q", data, 48, size + shift)
    data[at:at] = records


def test_script_writes_the_clock_of_the_file(with_clock, tmp_path):
    out = tmp_path / "clock.tsv"
    done = runs.by_script(with_clock, "--clock", out)
    assert done.returncode == 0, done.stderr
    assert "2 readings of the clocks, at most 20 ns off; written to" in done.stdout
    assert converted(out.read_text().splitlines(), [10**9 - ZERO]) == [REAL + 10**9]


def test_script_says_that_there_is_no_clock(captures, tmp_path):
    out = tmp_path / "clock.tsv"
    done = runs.by_script(next(iter(captures.values())), "--clock", out)
    assert done.returncode == 0, done.stderr
    assert "no clock in the recording" in done.stdout
    assert not out.exists()
