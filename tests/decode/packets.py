# SPDX-License-Identifier: GPL-2.0-only
"""Recordings of Intel PT that are written packet by packet: a program of four instructions, and perf.data around its trace.

One tick of TSC is 1 ns, and one cycle too. ``main`` calls ``leaf``, goes round a loop of one jump and begins again:

    0x401000 main:  call leaf        e8 1b 00 00 00
    0x401005        jne 0x401005     75 fe
    0x401007        jmp main         eb f7
    0x401020 leaf:  ret              c3
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

MAIN, LOOP, LEAF = 0x401000, 0x401005, 0x401020
PROGRAM = "/program"
PID, PMU, RATIO = 7, 8, 20
CYC, MTC, TSC, NO_RETURN_COMPRESSION, BRANCH = 1 << 1, 1 << 9, 1 << 10, 1 << 11, 1 << 13
NO_CPU = 0xFFFFFFFF

#: Name, begin, end.
Functions = Iterable[tuple[str, int, int]]

OVF, PSBEND = b"\x02\xf3", b"\x02\x23"
DAMAGED = b"\x02\xff"


def tsc(at: int) -> bytes:
    return b"\x19" + at.to_bytes(7, "little")


def cyc(n: int) -> bytes:
    """Cycles, of up to 12 bits."""
    return bytes([n << 3 & 0xFF | 3]) if n < 32 else bytes([n << 3 & 0xF8 | 7, n >> 5 << 1])


def address(kind: int, ip: int) -> bytes:
    return bytes([kind | 3 << 5]) + ip.to_bytes(6, "little")


def tip(ip: int) -> bytes:
    return address(0x0D, ip)


def fup(ip: int) -> bytes:
    return address(0x1D, ip)


def enable(ip: int) -> bytes:
    return address(0x11, ip)


def disable(ip: int) -> bytes:
    return address(0x01, ip)


def tnt(*taken: bool) -> bytes:
    """Up to 6 branches."""
    payload = 1
    for bit in taken:
        payload = payload << 1 | bit
    return bytes([payload << 1])


def psb(at: int | None, ip: int = MAIN) -> bytes:
    """A whole PSB+; ``at``: TSC, if it tells one."""
    time = tsc(at) if at is not None else b""
    return b"\x02\x82" * 8 + time + bytes([2, 3, RATIO, 0]) + b"\x99\x01" + fup(ip) + PSBEND


def loop(rounds: int, step: int) -> bytes:
    """Run the loop the given number of times, ``step`` cycles (below 4096) each, and continue."""
    return (cyc(step) + tnt(True)) * rounds


CODE = b"\xe8\x1b\0\0\0\x75\xfe\xeb\xf7".ljust(LEAF - MAIN, b"\0") + b"\xc3"


def elf(
    code: bytes = CODE, functions: Functions = (("main", MAIN, LOOP + 4), ("leaf", LEAF, LEAF + 1))
) -> bytes:
    """A program of up to 256 bytes and 9 functions (name, begin, end), its code at file offset 0x1000."""
    names, symbols = b"\0", b"\0" * 24
    for name, begin, end in functions:
        symbols += struct.pack("<IBBHQQ", len(names), 0x12, 0, 1, begin, end - begin)
        names += name.encode() + b"\0"
    section_names = b"\0.text\0.symtab\0.strtab\0"
    parts = [(0x1000, bytes(code)), (0x1100, symbols), (0x1200, names), (0x1300, section_names)]
    sections = b"\0" * 64
    sections += struct.pack("<IIQQQQIIQQ", 1, 1, 6, MAIN, 0x1000, len(code), 0, 0, 16, 0)
    sections += struct.pack("<IIQQQQIIQQ", 7, 2, 0, 0, 0x1100, len(symbols), 3, 1, 8, 24)
    sections += struct.pack("<IIQQQQIIQQ", 15, 3, 0, 0, 0x1200, len(names), 0, 0, 1, 0)
    sections += struct.pack("<IIQQQQIIQQ", 15, 3, 0, 0, 0x1300, len(section_names), 0, 0, 1, 0)
    header = b"\x7fELF\2\1\1".ljust(16, b"\0")
    header += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, MAIN, 64, 0x1400, 0, 64, 56, 1, 64, 5, 4)
    header += struct.pack("<IIQQQQQQ", 1, 5, 0x1000, MAIN, MAIN, len(code), len(code), 4096)
    image = bytearray(0x1400) + sections
    image[: len(header)] = header
    for at, content in parts:
        image[at : at + len(content)] = content
    return bytes(image)


@dataclass
class Recording:
    """perf.data of ``traces``: by (cpu, tid) pieces of a buffer. ``cpu`` -1: a buffer of the thread's own."""

    traces: dict[tuple[int, int], list[bytes]]
    config: int = TSC | CYC | NO_RETURN_COMPRESSION
    cpuid: str | None = "GenuineIntel,6,85,7"
    snapshot: bool = False
    #: Data between pieces was overwritten.
    apart: bool = False
    #: TSC ticks per CTC tick, as a fraction, with ``MTC`` in ``config``.
    tsc_ctc: tuple[int, int] = (1, 1)
    program: bytes = field(default_factory=elf)
    #: Whether perf's clock can be computed from TSC; it cannot with perf record -k, or tsc=0.
    clock: bool = True
    #: Records beside the trace.
    extra: list[bytes] = field(default_factory=list)
    flags: int = field(default=1 << 5 | 1 << 6 | 1 << 18)  # user code, no hypervisor, sample_id_all

    def write(self, directory: Path) -> Path:
        """``directory``/perf.data, and the program below ``directory``/symfs."""
        (directory / "symfs").mkdir(parents=True, exist_ok=True)
        (directory / "symfs" / PROGRAM[1:]).write_bytes(self.program)
        path = directory / "perf.data"
        path.write_bytes(self.content())
        return path

    def content(self) -> bytes:
        records = self.records()
        attr = struct.pack("<IIQQQQQQ", PMU, 128, self.config, 1, SAMPLE, 4, self.flags, 0).ljust(128, b"\0")
        ids, at_attr = struct.pack("<Q", 1), 104 + 8
        at_data = at_attr + 128 + 16
        # perf needs to know which PMU and which event it is.
        event = struct.pack("<I", 1) + text("intel_pt//u") + ids
        features = {6: text("x86_64"), 18: b"", 12: struct.pack("<II", 1, 128) + attr + event}
        features |= {16: struct.pack("<II", 1, PMU) + text("intel_pt"), 7: struct.pack("<II", 64, 64)}
        if self.cpuid:
            features[9] = text(self.cpuid)
        # Where the trace data are, in perf's index of them.
        places, at = [], at_data
        for record in records:
            if record[:4] == struct.pack("<I", 71):
                places.append(struct.pack("<QQ", at, 48))
            at += len(record)
        features[18] = struct.pack("<Q", len(places)) + b"".join(places)
        table, body, at = b"", b"", at + 16 * len(features)
        for number in sorted(features):
            table += struct.pack("<QQ", at + len(body), len(features[number]))
            body += features[number]
        data = b"".join(records)
        bitmap = sum(1 << number for number in features)
        header = b"PERFILE2" + struct.pack("<QQQQQQQQ", 104, 144, at_attr, 144, at_data, len(data), 0, 0)
        header += bitmap.to_bytes(32, "little")
        return header + ids + attr + struct.pack("<QQ", 104, 8) + data + table + body

    def records(self) -> list[bytes]:
        per_cpu = any(cpu >= 0 for cpu, _ in self.traces)
        words = [
            PMU,
            0,
            1,
            0,
            int(self.clock),
            TSC,
            NO_RETURN_COMPRESSION,
            0,
            int(self.snapshot),
            int(per_cpu),
        ]
        words += [MTC, 0xF << 14, *self.tsc_ctc, CYC, RATIO, 0]
        records = [record(70, 0, struct.pack("<II17Q", 1, 0, *words))]
        for tid in sorted({tid for _, tid in self.traces}):
            ids = struct.pack("<IIQIIQ", PID, tid, 0, 0, 0, 1)
            comm = struct.pack("<II", PID, tid) + b"program\0"
            records.append(record(3, 1 << 13 if tid == PID else 0, comm + ids))
        ids = struct.pack("<IIQIIQ", PID, PID, 0, 0, 0, 1)
        name = PROGRAM.encode().ljust((len(PROGRAM) + 8) & ~7, b"\0")
        mapping = struct.pack("<IIQQQIIQQII", PID, PID, MAIN, 0x1000, 0x1000, 0, 0, 0, 0, 5, 2)
        records.append(record(10, 2, mapping + name + ids))
        for index, ((cpu, tid), pieces) in enumerate(self.traces.items()):
            ids = struct.pack("<IIQIIQ", PID, tid, 1, max(cpu, 0), 0, 1)
            records.append(record(12, 0, struct.pack("<II", PID, tid) + ids))
            offset = 0
            for piece in pieces:
                data = piece + bytes(-len(piece) % 8)
                core = cpu if cpu >= 0 else NO_CPU
                # perf took them at a time; 0 makes it crash
                head = struct.pack("<QQQIIII", len(data), offset, 1 << 20, index, tid, core, 0)
                records.append(struct.pack("<IHH", 71, 0, 48) + head + data)
                offset += len(data) + (1 << 40 if self.apart else 0)
        return records + self.extra


SAMPLE = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 7 | 1 << 16  # ip, tid, time, cpu, identifier


def record(kind: int, misc: int, body: bytes) -> bytes:
    return struct.pack("<IHH", kind, misc, 8 + len(body)) + body


def text(value: str) -> bytes:
    content = value.encode() + b"\0"
    content += bytes(-len(content) % 64)
    return struct.pack("<I", len(content)) + content
