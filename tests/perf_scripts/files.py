# SPDX-License-Identifier: GPL-2.0-only
"""Copies of a capture with faults in its perf.data."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

COMM, LOST, AUX, SWITCH = 3, 2, 11, 15
THROTTLE, LOST_SAMPLES, COMPRESSED = 5, 13, 81
AUXTRACE_INFO, AUXTRACE = 70, 71


class Damaged:
    """A copy of a capture whose perf.data can be changed."""

    def __init__(self, capture: Path, directory: Path) -> None:
        self.directory = directory
        shutil.copytree(capture / "capture.nsight", directory / "capture.nsight")
        (directory / "symfs").symlink_to(capture / "symfs")
        self.path = directory / "capture.nsight/perf.data/data"
        self.data = bytearray(self.path.read_bytes())

    def records(self, *wanted: int) -> Iterator[tuple[int, int]]:
        """Offset and size of each record of these types, AUX data not counted."""
        at, size = struct.unpack_from("<QQ", self.data, 40)
        end = at + size
        while at < end:
            kind, _, length = struct.unpack_from("<IHH", self.data, at)
            if kind in wanted:
                yield at, length
            at += length
            if kind == AUXTRACE:
                at += struct.unpack_from("<Q", self.data, at - length + 8)[0]

    def put(self, at: int, layout: str, *values: int) -> None:
        """Overwrite."""
        struct.pack_into("<" + layout, self.data, at, *values)

    def time_at(self, at: int, length: int) -> int:
        """Time of a record, which ends with tid, time, cpu and identifier."""
        return struct.unpack_from("<Q", self.data, at + length - 24)[0]

    def write(self, size: int | None = None) -> Path:
        """Write it, complete or cut; returns the directory of the capture."""
        self.path.write_bytes(self.data[:size])
        return self.directory
