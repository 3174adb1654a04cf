# SPDX-License-Identifier: GPL-2.0-only
"""``nsight-report import``: a capture is made from any events that a perf.data can contain, and read again.

Input: flags, how many wide events follow, perf's conversion, wide events (112 bytes each), events (48 bytes each).
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import guard
import native_arrays
import numpy as np

with guard.instrumented():
    from nsight_report import clocks, manifest
    from nsight_report.capture import message_events
    from nsight_report.capture.perf_data import WIDE, Decoded
    from nsight_report.clocks import clock_readings
    from nsight_report.losses import Ledger
    from nsight_report.perf_import import capture

HEAD = struct.Struct("<BB6xQQQ")
DIRECTORY = guard.directory() / "made"
SCRATCH = guard.directory()
PATH = guard.directory() / "perf.data"
NOBODY = np.zeros(0, np.int64), np.zeros((0, 4), np.uint64)
MONOTONIC, CONVERTED, CUT, TRACE = 1, 2, 4, 8
NAMES = ("sock:sock_data_read", "sock:sock_data_queued", "sched:sched_switch")


def one(data: bytes) -> None:
    """Import the recording that ``data`` describes."""
    if len(data) < HEAD.size:
        return
    flags, n_wide, *conversion = HEAD.unpack_from(data)
    middle = HEAD.size + n_wide * WIDE.itemsize
    wide, events = native_arrays.wide(data[HEAD.size : middle]), native_arrays.events(data[middle:])
    clock = "monotonic" if flags & MONOTONIC else "perf"
    decoded = Decoded(events, native_arrays.STRINGS, clock, _info(flags, conversion, events))
    capture._check_messages(PATH, decoded, wide)
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir()
    ledger = Ledger("record")
    capture._fill(DIRECTORY, PATH, decoded, wide, capture._mode(decoded), None, NOBODY, ledger)
    ledger.table()
    _read(DIRECTORY)


def _read(made: Path) -> None:
    """Read it like a report, which may refuse the import."""
    manifest.load(made).losses().table()
    clocks.build(clock_readings.load(made / "clock.tsv"))
    message_events.load(made / "events.tsv", SCRATCH)


def _info(flags: int, conversion: list[int], events: np.ndarray[Any, Any]) -> dict[str, Any]:
    """perf-events.json as nsight-perfdata writes it."""
    timed = events["ts"][events["ts"] > 0]
    mult, shift, zero = conversion
    known = {"time_conv": {"mult": mult, "shift": shift, "zero": zero}} if flags & CONVERTED else {}
    return {
        "events": [{"name": name, "fate": "decoded"} for name in NAMES], "auxtrace_bytes": flags & TRACE, "auxtrace_type": 1,
        "first_ts": int(timed[0]) if len(timed) else 0, "last_ts": int(timed[-1]) if len(timed) else 0,
        "cut": bool(flags & CUT), "hostname": "h\x1b", "osrelease": "7.2", "arch": "x86_64", "nrcpus_online": 2,
        "perf_version": "7", "cmdline": ["perf", "record"], **known,
    }  # fmt: skip


PATH.write_bytes(b"PERFILE2")
guard.fuzz(one)
