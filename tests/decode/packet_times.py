#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Compare the times of nsight-decode's rows with an independent reader of the packets.

    packet_times.py PERF_DATA...
    packet_times.py --captures

PERF_DATA is a file or the directory of perf record --kcore; programs are where the recording says, or below ``symfs`` beside it. A row
whose target is only known from a packet (an interrupt, a system call, a return that is not compressed, ...) must have that packet: one
with its address, after the packet of the previous row, whose time equals the row's to 1 ns. Other rows must have the time of some packet
that records a branch or event. Prints a line for each recording. Exit code 0: all rows match; 1: some do not; 2: usage.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
import tempfile
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from machinery.pt_emulation.fixtures import unpack

from decode import parity, real
from decode.orders import reader

INFO, AUXTRACE = 70, 71
NO_CPU = 0xFFFFFFFF
#: Packets that record a row, by its kind.
PACKETS = dict.fromkeys(
    (parity.SYSCALL, parity.SYSRET, parity.INTERRUPT, parity.IRET, parity.SOFT), reader.TIP
)
PACKETS |= {parity.RETURN: reader.TIP, parity.BEGIN: reader.PGE, parity.END: reader.PGD}


@dataclass(frozen=True)
class Trace:
    """``buffers``: bytes by (cpu, or minus one; tid of a thread's own, or 0). The rest: how time is told, and perf's clock."""

    buffers: dict[tuple[int, int], bytes]
    nominal: int
    tsc_ctc: tuple[int, int]
    mtc: int | None
    compressed: bool
    shift: int
    mult: int
    zero: int

    def ns(self, tsc: int) -> int:
        """tsc_to_perf_time() of tools/perf/util/tsc.c."""
        high, low = tsc >> self.shift, tsc & ((1 << self.shift) - 1)
        return (self.zero + high * self.mult + (low * self.mult >> self.shift)) & ((1 << 64) - 1)


def trace(path: Path) -> Trace:
    """The packets of a recording."""
    data = (path / "data" if path.is_dir() else path).read_bytes()
    attr_size, at_attrs, attrs_size, at, size = struct.unpack_from("<QQQQQ", data, 16)
    buffers: dict[tuple[int, int], bytearray] = defaultdict(bytearray)
    words: tuple[int, ...] = ()
    end = at + size
    while at < end:
        kind, _, length = struct.unpack_from("<IHH", data, at)
        if kind == INFO:
            words = struct.unpack_from("<16Q", data, at + 16)
        elif kind == AUXTRACE:
            n, _, _, _, tid, cpu = struct.unpack_from("<QQQIII", data, at + 8)
            buffer = (-1, tid) if cpu == NO_CPU else (cpu, 0)
            buffers[buffer] += data[at + length : at + length + n]
            length += n
        at += length
    pmu, shift, mult, zero, clock, _, noretcomp, _, _, _, mtc_bit, mtc_bits, n, d, _, nominal = words
    config = 0
    for attr in range(at_attrs, at_attrs + attrs_size, attr_size):
        if struct.unpack_from("<I", data, attr)[0] == pmu:
            config = struct.unpack_from("<Q", data, attr + 8)[0]
    lowest = (mtc_bits & -mtc_bits).bit_length() - 1
    mtc = (config & mtc_bits) >> lowest if config & mtc_bit else None
    if not clock:
        shift, mult, zero = 0, 1, 0
    made = {buffer: bytes(content) for buffer, content in buffers.items()}
    return Trace(made, nominal, (n, d), mtc, not config & noretcomp, shift, mult, zero)


def _told(
    trace: Trace, content: bytes
) -> tuple[dict[tuple[str, int | None], list[tuple[int, int]]], list[int]]:
    """(place, ns) of packets with an address, by name and address, and ns of all packets that record a branch or event."""
    by_target, all_times = defaultdict(list), []
    at = content.find(reader.MAGIC)
    while at >= 0:
        try:
            found, stop = reader.packets(content, at), len(content)
        except reader.Damaged as damaged:
            stop = damaged.args[0]
            found = reader.packets(content[:stop], at)
        times = reader.times(found, trace.nominal, trace.tsc_ctc, trace.mtc)
        for packet, time in zip(found, times, strict=True):
            if packet.header or time is None:
                continue
            ns = trace.ns(time)
            if packet.name in (reader.TIP, reader.PGE, reader.PGD):
                target = None if packet.name == reader.PGD else packet.value
                by_target[packet.name, target].append((packet.at, ns))
            if packet.name in (reader.TNT, reader.TIP, reader.PGE, reader.PGD, reader.FUP, reader.OVF):
                all_times.append(ns)
        at = content.find(reader.MAGIC, stop)
    return by_target, all_times


def unmatched(trace: Trace, rows: parity.Array) -> tuple[int, list[str]]:
    """How many rows have a packet of their own, and those whose packet has another time."""
    n, wrong = 0, []
    for (cpu, tid), content in trace.buffers.items():
        own = rows[(rows["cpu"] == cpu) if cpu >= 0 else (rows["tid"] == tid)]
        told, all_times = _told(trace, content)
        wrong += [
            f"{parity._where(row)}: the time of no packet" for row in own[~_near(own["time"], all_times)]
        ]
        last, highest = -1, 0
        for row in own:
            kind = PACKETS.get(int(row["kind"]))
            if kind is None or (row["kind"] == parity.RETURN and trace.compressed):
                continue
            n += 1
            places = told[kind, None if kind == reader.PGD else int(row["to"])]
            begin = bisect_left(places, (last + 1, 0))
            # Time never goes back on a core; the packets' time may, by a tick.
            near = (at for at, ns in places[begin:] if abs(max(ns, highest) - int(row["time"])) <= 1)
            at = next(near, None)
            if at is None:
                wrong.append(parity._where(row))
                continue
            last, highest = at, max(highest, int(row["time"]))
    return n, wrong


def _near(times: npt.NDArray[np.uint64], of: list[int]) -> npt.NDArray[np.bool_]:
    """Which times are in a list, to 1 ns."""
    known = np.unique(np.array([*of, 0, (1 << 64) - 1], np.uint64))
    at = np.searchsorted(known, np.maximum(times, 1))
    return np.minimum(known[at] - times, times - known[at - 1]) <= 1


def compare(path: Path, symfs: Path) -> tuple[int, list[str]]:
    """``unmatched`` of a recording."""
    with tempfile.TemporaryDirectory(prefix="nsight-times-") as scratch:
        stream = parity.by_native(path, symfs, Path(scratch))
    rows = stream.edges
    # Behind an overflow without a FUP's time of its own the begin has that of what tells it next.
    lost = stream.events["time"][np.isin(stream.events["code"], (1, 2))]
    begin = (rows["kind"] == parity.BEGIN) & (len(lost) > 0)
    return unmatched(trace(path), rows[~begin])


def name(path: Path) -> str:
    """Of a recording: its directory's."""
    parent = path.parent
    return (parent.parent if parent.name == "capture.nsight" else parent).name


def main() -> int:
    """Entry point."""
    p = argparse.ArgumentParser(prog="packet_times.py", description="Hold times of rows against the packets.")
    p.add_argument("recordings", nargs="*", metavar="PERF_DATA", type=Path)
    p.add_argument(
        "--captures", action="store_true", help="the committed captures, and the recordings of NSIGHT_PT_REAL"
    )
    args = p.parse_args()
    scratch = tempfile.TemporaryDirectory(prefix="nsight-real-")
    found = [(path, path.parent / "symfs") for path in args.recordings]
    if args.captures:
        shared = [unpack.shared(name) for name in unpack.names()]
        found += [(place / "capture.nsight/perf.data", place / "symfs") for place in shared]
        if place := os.environ.get(real.VARIABLE):
            found += [
                (path, path.parent / "symfs") for path in real.recordings(Path(place), Path(scratch.name))
            ]
    if not found:
        p.error("nothing to compare: name a perf.data, or --captures")
    failed = False
    for path, symfs in found:
        n, wrong = compare(path, symfs.resolve() if symfs.is_dir() else Path("/"))
        print(f"{name(path):<28}{n:>9,} rows with a packet of their own, {len(wrong)} rows of another time")
        for line in wrong[:5]:
            print(f"    {line}")
        failed = failed or bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
