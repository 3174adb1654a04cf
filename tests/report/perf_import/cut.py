# SPDX-License-Identifier: GPL-2.0-only
"""A short piece of a perf.data recorded without BPF, small enough to be committed.

    python tests/report/perf_import/cut.py PERF_DATA CLOCK_TSV SECONDS_BEFORE SECONDS_AFTER OUTDIR

keeps the time around the moment at which the clock was set: OUTDIR/guest.data.xz and the paired and PHC readings
of the same time, OUTDIR/guest.tsv.xz. It drops mappings, perf's host data except kernel and architecture, and
everything after the formats in the tracing data.
"""

from __future__ import annotations

import lzma
import struct
import sys
from pathlib import Path

NS = 10**9
IDENTIFIER, IP, TID, TIME, ADDR, ID, STREAM, CPU = (
    1 << 16, 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 6, 1 << 9, 1 << 7,
)  # fmt: skip
SAMPLE, TIME_CONV, FIRST_USER = 9, 79, 64
DROPPED = (1, 10, 16, 17, 18, 80)  # mappings, namespaces, symbols, programs; features
TRACING_DATA, OSRELEASE, ARCH = 1, 4, 6


def until_formats(data: bytes) -> bytes:
    """Tracing data with the event formats, and nothing after them."""
    at = data.index(b"\0", 10) + 1 + 6
    for _ in range(2):
        at = data.index(b"\0", at) + 1
        at += 8 + struct.unpack_from("<Q", data, at)[0]
    ftrace = at
    n = struct.unpack_from("<I", data, at)[0]
    at += 4
    for _ in range(n):
        at += 8 + struct.unpack_from("<Q", data, at)[0]
    begin = at
    n_systems = struct.unpack_from("<I", data, at)[0]
    at += 4
    for _ in range(n_systems):
        at = data.index(b"\0", at) + 1
        n_events = struct.unpack_from("<I", data, at)[0]
        at += 4
        for _ in range(n_events):
            at += 8 + struct.unpack_from("<Q", data, at)[0]
    # no kallsyms, no printk formats, no command lines
    return data[:ftrace] + struct.pack("<I", 0) + data[begin:at] + struct.pack("<IIQ", 0, 0, 0)


def sample_time(record: bytes, kind: int, sample_type: int) -> int:
    """The time of a record; 0: before the recording."""
    if kind == SAMPLE:
        at = 8 + 8 * sum(bool(sample_type & bit) for bit in (IDENTIFIER, IP, TID))
    else:
        at = len(record) - 8 * sum(bool(sample_type & bit) for bit in (TIME, ID, STREAM, CPU, IDENTIFIER))
    return int(struct.unpack_from("<Q", record, at)[0])


def main(source: Path, clock: Path, before: float, after: float, out: Path) -> None:
    """Write the cut piece."""
    data = source.read_bytes()
    _size, attr_size, attrs_at, attrs_len, data_at, data_len = struct.unpack_from("<6Q", data, 8)
    sample_type = struct.unpack_from("<Q", data, attrs_at + 24)[0]
    features = struct.unpack_from("<Q", data, 72)[0]
    sections, at = {}, data_at + data_len
    for bit in range(64):
        if features >> bit & 1:
            offset, length = struct.unpack_from("<QQ", data, at)
            at += 16
            if bit in (TRACING_DATA, OSRELEASE, ARCH):
                sections[bit] = data[offset : offset + length]
    sections[TRACING_DATA] = until_formats(sections[TRACING_DATA])

    records, conversion, step = [], (1, 0, 0), 0
    at = data_at
    while at < data_at + data_len:
        kind, _misc, size = struct.unpack_from("<IHH", data, at)
        record = data[at : at + size]
        at += size
        if kind in DROPPED:
            continue
        if kind == TIME_CONV:
            shift, mult, zero = struct.unpack_from("<QQq", record, 8)
            conversion = (mult, shift, zero)
            time = 0
            if size >= 120:  # with a clock
                time, flags = (struct.unpack_from(f, record, o)[0] for f, o in (("<Q", 56), ("<I", 112)))
                step = time if flags & 1 else step
        elif kind >= FIRST_USER:
            time = 0
        else:
            time = sample_time(record, kind, sample_type)
        records.append((time, kind, record))
    assert step, "the clock was not set"
    low, high = step - int(before * NS), step + int(after * NS)
    kept = b"".join(record for time, kind, record in records if not time or low <= time <= high)

    attrs_end = attrs_at + attrs_len
    ids_at = min(
        struct.unpack_from("<Q", data, o + attr_size - 16)[0] for o in range(attrs_at, attrs_end, attr_size)
    )
    head = bytearray(data[:data_at])
    assert ids_at < data_at
    bits = sum(1 << bit for bit in sections)
    struct.pack_into("<Q", head, 48, len(kept))
    struct.pack_into("<4Q", head, 72, bits, 0, 0, 0)
    table, bodies, at = b"", b"", data_at + len(kept) + 16 * len(sections)
    for bit in sorted(sections):
        table += struct.pack("<QQ", at + len(bodies), len(sections[bit]))
        bodies += sections[bit]
    (out / "guest.data.xz").write_bytes(lzma.compress(bytes(head) + kept + table + bodies, preset=9))

    mult, shift, zero = conversion
    first, last = (((ns - zero) << shift) // mult for ns in (low, high))
    lines, wall = [], [0, 0]
    readings = clock.read_text().splitlines()
    for line in readings:
        if line.startswith("B\trealtime"):
            tsc, ns = (int(word) for word in line.split("\t")[2:4])
            wall = [ns if tsc <= first or not wall[0] else wall[0], ns if tsc <= last else wall[1]]
    for line in readings:
        words = line.split("\t")
        if (
            line.startswith("#nsight-clock")
            or (words[0] == "P" and wall[0] <= int(words[3]) <= wall[1])
            or (words[0] == "B" and first <= int(words[2]) <= last)
        ):
            lines.append(line)
    (out / "guest.tsv.xz").write_bytes(lzma.compress(("\n".join(lines) + "\n").encode(), preset=9))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]), Path(sys.argv[5]))
