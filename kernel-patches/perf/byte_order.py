# SPDX-License-Identifier: GPL-2.0-only
"""perf.data files made by hand, in either byte order, whose records of the clocks a patched perf must read alike.

No recording is needed, so this runs on machines whose clock of events cannot be read. The files hold two samples of
cpu-clock and two PERF_RECORD_TIME_CONV: the kernel's parameters from 1,000 ns of perf's time on, a reading at 9,000 ns.
"""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

REAL = 1_700_000_000_000_000_000
TIME_CONV, SAMPLE = 79, 9
#: (CLOCK_REALTIME, CLOCK_TAI, CLOCK_MONOTONIC) of the samples at 5,000 and 9,500 ns. The first: 2 cycles are 1 ns, and
#: 8,000 cycles later the clock has moved by 8,000 * 2^22 / 2^23 ns. The second: 500 ns after the reading, 1 ns per ns.
EXPECTED = {
    "realtime": [REAL + 4_000, REAL + 8_600],
    "tai": [REAL + 4_000 + 37 * 10**9, REAL + 8_600 + 37 * 10**9],
    "monotonic": [54_000, 58_600],
}


def _time_conv(order: str, *, at: int, cycles: int, mono: int, real: int, mult: int, appended: int) -> bytes:
    """One record; ``appended`` bytes follow that a perf of today does not know."""
    shift, error = (23 if mult else 0), (0 if mult else 10)
    body = struct.pack(order + "5Q2B6x", 1, 1, 1_000, 0, 0, 1, 0)  # shift, mult, zero: 2 cycles are 1 ns
    body += struct.pack(order + "3Q2q2Ii2I4x", at, cycles, 0, mono, real, mult, shift, 37, error, 0)
    body += bytes(appended)
    return struct.pack(order + "IHH", TIME_CONV, 0, 8 + len(body)) + body


def perf_data(order: str, appended: int = 0) -> bytes:
    """The file; ``order`` as of struct: "<" or ">"."""
    records = _time_conv(
        order, at=1_000, cycles=0, mono=50_000, real=REAL, mult=1 << 22, appended=appended
    ) + _time_conv(order, at=9_000, cycles=0, mono=58_100, real=REAL + 8_100, mult=0, appended=appended)
    for time in (5_000, 9_500):
        records += struct.pack(order + "IHHQIIQ", SAMPLE, 2, 32, 0x1000, 1, 1, time)  # ip, pid, tid, time
    # struct perf_event_attr, version 0: software, 64 bytes, cpu-clock, period 1, IP | TID | TIME.
    attr = struct.pack(order + "IIQQQ", 1, 64, 0, 1, 1 | 2 | 4) + bytes(32)
    ids = struct.pack(order + "QQ", 0, 0)
    at_attr, at_data = 104, 104 + len(attr) + len(ids)
    magic = int.from_bytes(b"PERFILE2", "little")
    header = struct.pack(order + "3Q", magic, 104, len(attr) + len(ids))
    header += struct.pack(order + "6Q", at_attr, len(attr) + len(ids), at_data, len(records), 0, 0)
    # A file of the other byte order needs HEADER_HOSTNAME (3): perf finds the size of the words by it.
    host = struct.pack(order + "I", 4) + b"abc\0"
    at_host = at_data + len(records) + 16
    features = struct.pack(order + "4Q", 1 << 3, 0, 0, 0)
    return header + features + attr + ids + records + struct.pack(order + "QQ", at_host, len(host)) + host


def check(perf: Path, folder: Path) -> int:
    """Times that ``perf`` prints of the files; AssertionError with what differs. Returns how many were compared."""
    n = 0
    for order, name in (("<", "little"), (">", "big")):
        for appended in (0, 16):
            data = folder / f"{name}-{appended}.data"
            data.write_bytes(perf_data(order, appended))
            for clock, expected in EXPECTED.items():
                argv = [str(perf), "script", f"--clock={clock}", "-F", "time", "--ns", "-i", str(data)]
                done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
                times = [int(w.replace(".", "").rstrip(":")) for w in done.stdout.split()]
                assert times == expected, f"{data.name}: {clock}: {times}, not {expected}\n{done.stderr}"
                n += len(times)
    return n
