# SPDX-License-Identifier: GPL-2.0-only
"""The layout of perf.data, as far as tests need it to damage files or write small ones."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

DATA = Path(__file__).parent / "data"
LOOPBACK = DATA / "loopback.data"
FORMATS = DATA / "formats"

# struct perf_file_header: magic, size, attr_size, then (offset, size) of attrs, data, event_types
DATA_OFFSET_AT, DATA_SIZE_AT = 40, 48

SAMPLE, LOST, COMM, FORK, SWITCH_CPU_WIDE, AUXTRACE, COMPRESSED = 9, 2, 3, 7, 15, 71, 81

TID, TIME, CPU, RAW, IDENTIFIER = 1 << 1, 1 << 2, 1 << 7, 1 << 10, 1 << 16
SAMPLE_TYPE = TID | TIME | CPU | RAW | IDENTIFIER
SAMPLE_ID_ALL, USE_CLOCKID = 1 << 18, 1 << 25

# ids of the committed formats
SCHED_SWITCH, SCHED_PROCESS_FORK = 0x174, 0x16E


def data_range(content: bytes) -> tuple[int, int]:
    """Start and end of the records."""
    start, size = struct.unpack_from("<QQ", content, DATA_OFFSET_AT)
    return start, start + size


def killed(content: bytes, missing: int = 0) -> bytes:
    """The file as a killed perf leaves it: without the size of the data, and with nothing after the data."""
    _start, end = data_range(content)
    cut = bytearray(content[: end - missing])
    struct.pack_into("<Q", cut, DATA_SIZE_AT, 0)
    return bytes(cut)


def record(kind: int, body: bytes, misc: int = 0) -> bytes:
    """One record."""
    assert len(body) % 8 == 0
    return struct.pack("<IHH", kind, misc, 8 + len(body)) + body


def trailer(time: int, tid: int, cpu: int, identifier: int) -> bytes:
    """What sample_id_all appends to non-sample records, for SAMPLE_TYPE."""
    return struct.pack("<iiQIIQ", tid, tid, time, cpu, 0, identifier)


def sample(identifier: int, time: int, tid: int, cpu: int, raw: bytes) -> bytes:
    """One sample of SAMPLE_TYPE."""
    padded = raw + bytes(-(len(raw) + 4) % 8)
    return record(SAMPLE, struct.pack("<QiiQIII", identifier, tid, tid, time, cpu, 0, len(padded)) + padded)


def switch_raw(prev: int, state: int, next_: int, names: tuple[bytes, bytes] = (b"prev", b"next")) -> bytes:
    """Raw data of sched_switch in the committed format."""
    common = struct.pack("<HBBi", SCHED_SWITCH, 0, 0, prev)
    return common + struct.pack("<16siiq16sii", names[0], prev, 120, state, names[1], next_, 120)


def fork_raw(parent: int, child: int, name_at: int, name_size: int) -> bytes:
    """Raw data of sched_process_fork: names are where a location (offset, size) points."""
    common = struct.pack("<HBBi", SCHED_PROCESS_FORK, 0, 0, parent)
    fixed = common + struct.pack("<IiIi", 0, parent, name_at | name_size << 16, child)
    return fixed + b"child\0\0\0"


def make_file(
    records: Iterable[bytes],
    clockid: int | None = 1,
    events: tuple[int, ...] = (SCHED_SWITCH, SCHED_PROCESS_FORK),
) -> bytes:
    """A perf.data file without features; event n has the id 100 + n."""
    flags = SAMPLE_ID_ALL | (USE_CLOCKID if clockid is not None else 0)
    attr_size, header_size = 128, 104
    ids_at = header_size + len(events) * (attr_size + 16)
    attrs = b""
    for number, config in enumerate(events):
        attr = struct.pack("<IIQQQQQ", 2, attr_size, config, 1, SAMPLE_TYPE, 0, flags)
        attr += bytes(92 - len(attr)) + struct.pack("<i", clockid or 0)
        attrs += attr + bytes(attr_size - len(attr)) + struct.pack("<QQ", ids_at + 8 * number, 8)
    ids = b"".join(struct.pack("<Q", 100 + n) for n in range(len(events)))
    data = b"".join(records)
    header = b"PERFILE2" + struct.pack(
        "<QQQQQQQQ", header_size, attr_size + 16, header_size, len(attrs), ids_at + len(ids), len(data), 0, 0
    )
    return header + bytes(32) + attrs + ids + data
