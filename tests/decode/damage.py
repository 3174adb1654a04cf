# SPDX-License-Identifier: GPL-2.0-only
"""perf.data files that are damaged or of another kind, each made by changing a good one."""

from __future__ import annotations

import struct

AUXTRACE_INFO, AUXTRACE, COMPRESSED = 70, 71, 81
COMM, SWITCH_CPU_WIDE = 3, 15
#: Features of the header: perf_header in tools/perf/util/header.h
FEATURE_CPUID, FEATURE_AUXTRACE = 9, 18


def records(data: bytes) -> list[tuple[int, int, int]]:
    """(offset, type, size) of each record."""
    at, size = struct.unpack_from("<QQ", data, 40)
    end, found = at + size, []
    while at < end:
        kind, _, length = struct.unpack_from("<IHH", data, at)
        found.append((at, kind, length))
        at += length
        if kind == AUXTRACE:
            at += struct.unpack_from("<Q", data, found[-1][0] + 8)[0]
    return found


def info_at(data: bytes) -> int:
    return next(at for at, kind, _ in records(data) if kind == AUXTRACE_INFO)


def without_pt(data: bytearray) -> None:
    # type of a record that means nothing here
    struct.pack_into("<I", data, info_at(data), 68)


def arm(data: bytearray) -> None:
    struct.pack_into("<I", data, info_at(data) + 8, 3)


def snapshot(data: bytearray) -> None:
    struct.pack_into("<Q", data, info_at(data) + 16 + 8 * 8, 1)


def last_pieces(data: bytes) -> tuple[tuple[int, int], tuple[int, int]]:
    """(offset, size) of the last two AUXTRACE records of the buffer that has most of them; their data begin 48 bytes later."""
    of: dict[int, list[tuple[int, int]]] = {}
    for at, kind, _ in records(data):
        if kind == AUXTRACE and (size := struct.unpack_from("<Q", data, at + 8)[0]):
            of.setdefault(struct.unpack_from("<I", data, at + 40)[0], []).append((at, size))
    first, second = max(of.values(), key=len)[-2:]
    return first, second


def overlapping_snapshots(data: bytearray) -> None:
    """The last piece is a later snapshot of the same buffer: it begins with half of the previous piece's data."""
    (first, n_first), (second, n_second) = last_pieces(data)
    known = min(n_first, n_second) // 2 & ~7
    begin, end = first + 48 + n_first - known, first + 48 + n_first
    data[second + 48 : second + 48 + n_second] = (
        data[begin:end] + data[second + 48 : second + 48 + n_second - known]
    )
    struct.pack_into("<Q", data, second + 16, 1 << 40)  # perf's offsets of snapshots have no meaning
    snapshot(data)


def without_the_end(data: bytearray) -> None:
    """What ``overlapping_snapshots`` holds, in one piece: padding stands for what it has no room for."""
    (_, n_first), (second, n_second) = last_pieces(data)
    known = min(n_first, n_second) // 2 & ~7
    data[second + 48 + n_second - known : second + 48 + n_second] = bytes(known)


def snapshots_apart(data: bytearray) -> None:
    """Some data between the last two pieces was overwritten."""
    (_, n_first), (second, n_second) = last_pieces(data)
    lost = min(n_first, n_second) // 2 & ~7
    data[second + 48 : second + 48 + n_second] = data[second + 48 + lost : second + 48 + n_second] + bytes(
        lost
    )
    struct.pack_into("<Q", data, second + 16, 1 << 40)
    snapshot(data)


def no_tsc_clock(data: bytearray) -> None:
    struct.pack_into("<Q", data, info_at(data) + 16 + 8 * 4, 0)


def no_tsc_packets(data: bytearray) -> None:
    """intel_pt/tsc=0/: each TSC packet is padding, and the event says so."""
    info = info_at(data)
    pmu, bit = (struct.unpack_from("<Q", data, info + 16 + 8 * word)[0] for word in (0, 5))
    at_attrs, size = struct.unpack_from("<QQ", data, 24)
    for at in range(at_attrs, at_attrs + size, 144):
        kind, _, config = struct.unpack_from("<IIQ", data, at)
        if kind == pmu:
            struct.pack_into("<Q", data, at + 8, config & ~bit)
    for at, kind, length in records(data):
        if kind != AUXTRACE:
            continue
        begin = at + length
        end = begin + struct.unpack_from("<Q", data, at + 8)[0]
        while (begin := data.find(b"\x02\x82" * 8, begin, end)) >= 0:
            tsc = data.index(b"\x19", begin + 16)
            assert tsc < begin + 20  # behind a CYC packet
            data[tsc : tsc + 8] = bytes(8)
            begin = tsc


def compressed(data: bytearray) -> None:
    struct.pack_into("<I", data, records(data)[2][0], COMPRESSED)


def pipe(data: bytearray) -> None:
    struct.pack_into("<Q", data, 8, 16)


def big_endian(data: bytearray) -> None:
    data[:8] = data[7::-1]


def another_machine(data: bytearray) -> None:
    at = data.index(b"x86_64\0")
    data[at : at + 7] = b"ppc64le"


def no_magic(data: bytearray) -> None:
    data[:8] = b"PERFTEXT"


def no_aux_data(data: bytearray) -> None:
    for at, kind, _ in records(bytes(data)):
        if kind == AUXTRACE:
            # of size 0; its former data become one record without meaning
            size = struct.unpack_from("<Q", data, at + 8)[0]
            struct.pack_into("<Q", data, at + 8, 0)
            place = at + 48
            while size:
                length = min(size, 65528)
                struct.pack_into("<IHH", data, place, 68, 0, length)
                place, size = place + length, size - length


def feature_at(data: bytes, feature: int) -> int:
    """Position of a feature's offset and size in the header's table."""
    start, size = struct.unpack_from("<QQ", data, 40)
    bitmap = int.from_bytes(data[72:104], "little")
    assert bitmap >> feature & 1
    return int(start + size + 16 * (bitmap & ((1 << feature) - 1)).bit_count())


def amd(data: bytearray) -> None:
    without_pt(data)
    at, size = struct.unpack_from("<QQ", data, feature_at(data, FEATURE_CPUID))
    text = b"AuthenticAMD,25,80,0\0"
    struct.pack_into("<I", data, at, size - 4)
    data[at + 4 : at + size] = text.ljust(size - 4, b"\0")[: size - 4]


def i386(data: bytearray) -> None:
    at = data.index(b"x86_64\0")
    data[at : at + 7] = b"i686\0\0\0"


def no_auxtrace_feature(data: bytearray) -> None:
    """As if the header had not been written again: the bit is off, and its row in the table is missing."""
    at = feature_at(data, FEATURE_AUXTRACE)
    start, size = struct.unpack_from("<QQ", data, 40)
    bitmap = int.from_bytes(data[72:104], "little")
    end = start + size + 16 * bitmap.bit_count()
    data[at : end - 16] = data[at + 16 : end]
    data[72:104] = (bitmap & ~(1 << FEATURE_AUXTRACE)).to_bytes(32, "little")


def unknown_records(data: bytearray) -> None:
    """Record types of a future perf and a future kernel: 20 of each."""
    comms = [at for at, kind, _ in records(bytes(data)) if kind == COMM]
    for place, at in enumerate(comms[:40]):
        struct.pack_into("<I", data, at, 200 if place % 2 else 40)


def guest(data: bytearray) -> None:
    """One address space is that of a virtual machine: bit 0 of its PIP packets (NR) is set."""
    found: dict[int, list[int]] = {}
    for at, kind, length in records(bytes(data)):
        if kind != AUXTRACE:
            continue
        begin = at + length
        end = begin + struct.unpack_from("<Q", data, at + 8)[0]
        while (begin := data.find(b"\x02\x43", begin, end)) >= 0:
            # without the bit that distinguishes the kernel's page tables from the process's
            root = int.from_bytes(data[begin + 2 : begin + 8], "little") & ~(1 << 11)
            found.setdefault(root, []).append(begin + 2)
            begin += 2
    for at in max(found.values(), key=len):
        data[at] |= 1


def cut(data: bytearray) -> None:
    """perf was killed before it wrote trace data."""
    first = next(at for at, kind, _ in records(bytes(data)) if kind == AUXTRACE)
    del data[first:]
    struct.pack_into("<Q", data, 48, 0)


def empty(data: bytearray) -> None:
    del data[:]


def damaged_header(data: bytearray) -> None:
    struct.pack_into("<QQ", data, 24, 1 << 60, 1 << 40)
