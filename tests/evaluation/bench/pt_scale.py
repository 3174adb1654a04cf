# SPDX-License-Identifier: GPL-2.0-only
"""Turns a recording into one with N times as many cores, each with the same trace: to measure how cost grows with size."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

AUX, SWITCHES, AUXTRACE = 11, (14, 15), 71
FEATURE_AUXTRACE = 18
HEADER_BYTES = 104


def features(data: bytes) -> dict[int, bytes]:
    """Sections of the header's features by number."""
    start, size = struct.unpack_from("<QQ", data, 40)
    bits = int.from_bytes(data[72:HEADER_BYTES], "little")
    found, at = {}, start + size
    for feature in range(256):
        if bits >> feature & 1:
            offset, length = struct.unpack_from("<QQ", data, at)
            found[feature] = data[offset : offset + length]
            at += 16
    return found


def cores(data: bytes) -> int:
    """How many cores have trace in a perf.data file, numbered from 0 on."""
    at, size = struct.unpack_from("<QQ", data, 40)
    end, most = at + size, 0
    while at < end:
        kind, _, length = struct.unpack_from("<IHH", data, at)
        if kind == AUXTRACE:
            most = max(most, struct.unpack_from("<i", data, at + 40)[0])
            at += struct.unpack_from("<Q", data, at + 8)[0]
        at += length
    return most + 1


def multiply(source: Path, target: Path, n_copies: int) -> None:
    """Write the perf.data directory ``source`` to ``target`` with ``n_copies`` of each core.

    Records of a core end with tid, time, cpu and identifier, 8 bytes each, as perf record -a writes them.
    """
    shutil.copytree(source, target)
    data = (source / "data").read_bytes()
    n_cores = cores(data)
    start, size = struct.unpack_from("<QQ", data, 40)
    out = bytearray(data[:start])
    index = []  # offset and header of each AUXTRACE record
    at = start
    while at < start + size:
        kind, _, length = struct.unpack_from("<IHH", data, at)
        whole = length + (struct.unpack_from("<Q", data, at + 8)[0] if kind == AUXTRACE else 0)
        copies = n_copies if kind in (AUX, AUXTRACE, *SWITCHES) else 1
        for copy in range(copies):
            record = bytearray(data[at : at + whole])
            fields = (32, 40) if kind == AUXTRACE else (length - 16,)  # idx and cpu; cpu
            for field in fields if copy else ():
                core = struct.unpack_from("<I", record, field)[0] + copy * n_cores
                struct.pack_into("<I", record, field, core)
            if kind == AUXTRACE:
                index.append((len(out), length))
            out += record
        at += whole
    kept = features(data)
    if FEATURE_AUXTRACE in kept:
        entries = b"".join(struct.pack("<QQ", *entry) for entry in index)
        kept[FEATURE_AUXTRACE] = struct.pack("<Q", len(index)) + entries
    struct.pack_into("<Q", out, 48, len(out) - start)
    where = len(out) + 16 * len(kept)
    for section in kept.values():
        out += struct.pack("<QQ", where, len(section))
        where += len(section)
    out += b"".join(kept.values())
    (target / "data").write_bytes(out)
