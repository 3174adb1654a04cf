# SPDX-License-Identifier: GPL-2.0-only
"""Writes the record files of tools/bpf/record.h, one record per call. ``records`` is in units of 16 bytes."""

from __future__ import annotations

import json
import re
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from nsight_report.capture import native
from nsight_report.capture.perf_data import EVENT
from nsight_report.capture.perf_data import KINDS as KINDS_OF_EVENTS
from nsight_report.capture.raw_records import STAMP

ROOT = Path(__file__).resolve().parents[3]
HEADER = (ROOT / "tools" / "bpf" / "record.h").read_text()

#: Types by name, as the header numbers them.
TYPES = ("NONE", *re.findall(r"^\tX\((\w+), \d+, ", HEADER, re.M))
TYPE = {name: number for number, name in enumerate(TYPES)}
NO_CPU = 0xFFFFFFFF
MESSAGE, V6, HW, SHORT = 0x80, 1, 2, 0x20
KINDS = "AHRSXTO"
RECORDS, COUNTS, END = 1, 2, 3
ZSTD = 1
WAS_THERE, NEW, RENAMED, EXEC = range(4)
SATURATED = (1 << 40) - 1
_TIME = (1 << 48) - 1


def record(type_: int, ts: int, *words: int, lap: int = 1) -> bytes:
    """A record of this type: its first word and the following words, padded to units."""
    body = struct.pack(f"<{1 + len(words)}Q", type_ | lap << 8 | (ts & _TIME) << 16, *words)
    return body + bytes(-len(body) % 16)


def pad(units: int, lap: int = 1) -> bytes:
    """Padding for the rest of a page."""
    return record(TYPE["PAD"], 0, units, lap=lap) + bytes(16 * (units - 1))


def switch(ts: int, prev: int, next_: int, state: int = 1) -> bytes:
    return record(TYPE["SWITCH"], ts, next_ | prev << 22 | state << 44)


def switch_syscall(
    ts: int, prev: int, next_: int, entered: int, number: int, argument: int = 0, state: int = 1
) -> bytes:
    word = next_ | prev << 22 | state << 44
    return record(TYPE["SWITCH_SYSCALL"], ts, word, (entered & _TIME) | number << 48, argument)


def waking(ts: int, woken: int, waker: int, cpu: int, new: bool = False, untraced: bool = False) -> bytes:
    return record(TYPE["WAKING"], ts, woken | waker << 22 | cpu << 44 | new << 60 | untraced << 61)


def migrate(ts: int, tid: int, to: int, origin: int) -> bytes:
    return record(TYPE["MIGRATE"], ts, tid | to << 22 | origin << 38)


def pair(name: str, begin: int, end: int, what: int) -> bytes:
    """SOFTIRQ, IRQ, VECTOR or IDLE."""
    return record(TYPE[name], end, min(end - begin, SATURATED) | what << 40)


def syscall(begin: int, end: int, tid: int, number: int, argument: int = 0, result: int = 0) -> bytes:
    word = min(end - begin, SATURATED) | tid << 40
    return record(
        TYPE["SYSCALL"], end, word, (argument & _TIME) | (number & 0xFFFF) << 48, result & (1 << 64) - 1
    )


def fault(ts: int, address: int, code: int, user: bool) -> bytes:
    return record(TYPE["FAULT"], ts, (address & _TIME) | code << 48 | user << 63)


def task(ts: int, tid: int, pid: int, name: bytes, why: int = WAS_THERE, parent: int = 0) -> bytes:
    return record(
        TYPE["TASK"],
        ts,
        tid | pid << 32,
        *struct.unpack("<QQ", name.ljust(16, b"\0")[:16]),
        why | parent << 32,
    )


def exit_(ts: int, tid: int, pid: int) -> bytes:
    return record(TYPE["EXIT"], ts, tid | pid << 32)


def block_io(begin: int, end: int, operation: int, error: int, size: int, device: int, sector: int) -> bytes:
    return record(
        TYPE["BLOCK"], end, (end - begin) | operation << 40 | error << 48, size | device << 32, sector
    )


def frequency(ts: int, khz: int, cpu: int) -> bytes:
    return record(TYPE["FREQUENCY"], ts, khz | cpu << 32)


def steal(ts: int, ns: int, cpu: int) -> bytes:
    return record(TYPE["STEAL"], ts, ns | cpu << 48)


def quota(ts: int, tid: int, ns: int) -> bytes:
    return record(TYPE["QUOTA"], ts, ns | tid << 40)


def memory(begin: int, end: int, tid: int, what: int) -> bytes:
    return record(TYPE["MEMORY"], end, (end - begin) | tid << 40 | what << 62)


def counters(ts: int, *grown: int) -> bytes:
    words = [value & (1 << 64) - 1 for value in grown]
    return record(TYPE["COUNTERS"], ts, *words, *(0,) * (5 - len(words)))


def drop(
    ts: int, reason: int, netns: int, size: int, code: int, sport: int = 0, dport: int = 0, proto: int = 0,
    ends: bytes = b"",
) -> bytes:  # fmt: skip
    """``ends``: source and destination address, of IPv4 or IPv6."""
    where = code & ((1 << 48) - 1) | proto << 48
    type_ = {0: "DROP", 8: "DROP_V4", 32: "DROP_V6"}[len(ends)]
    addresses = struct.unpack(f"<{len(ends) // 8}Q", ends)
    ports = size | sport << 32 | dport << 48
    return record(TYPE[type_], ts, reason | 8 << 16 | netns << 32, ports, where, *addresses)


def retransmit(ts: int, lport: int, rport: int, seq: int, sk: int, laddr: int = 0, raddr: int = 0) -> bytes:
    return record(TYPE["RETRANSMIT"], ts, lport | rport << 16 | seq << 32, sk, laddr | raddr << 32)


def others(ts: int, port: int, proto: int, packets: int) -> bytes:
    """Packets left out of the recording, in the softirq that ends next."""
    return record(TYPE["OTHERS"], ts, port | proto << 16 | packets << 32)


def reader(ts: int, port: int, proto: int, name: bytes) -> bytes:
    return record(TYPE["READER"], ts, port | proto << 16, *struct.unpack("<QQ", name.ljust(16, b"\0")[:16]))


def interval(
    begin: int, end: int, tid: int, number: int, begun_by: int = 0, on: int = 0, handover: int | None = None
) -> bytes:
    """One that thread ``begun_by`` began on core ``on`` and handed over; 0: ``tid`` did it alone."""
    handed = 0 if handover is None else handover - begin | 1 << 63
    return record(
        TYPE["INTERVAL"],
        end,
        min(end - begin, SATURATED) | tid << 40,
        number | begun_by << 16 | on << 38,
        handed,
    )


#: Types of two units.
TWO_UNITS = ("SWITCH_SYSCALL", "SYSCALL", "BLOCK", "DROP", "RETRANSMIT", "READER", "INTERVAL")
MESSAGE_FIELDS: dict[str, Any] = {
    "sk": 0, "seq": 0, "len": 0, "laddr": 0x0100000A, "raddr": 0x0200000A, "lport": 11211, "rport": 40000,
    "netns": 4026531840, "tid": 0, "fd": -1, "aux": 0, "proto": 6, "old_state": 0, "stamp": 0,
}  # fmt: skip


def message_type(kind: str, v6: bool = False, hw: bool = False) -> int:
    return MESSAGE | KINDS.index(kind) << 2 | (HW if hw else 0) | (V6 if v6 else 0)


def message(kind: str, ts: int, v6: tuple[int, ...] = (), hw: int | None = None, **fields: Any) -> bytes:
    """A timestamp; ``v6``: the four words of the addresses, ``hw``: the hardware stamp."""
    f = MESSAGE_FIELDS | fields
    head = message_type(kind, bool(v6), hw is not None) | 1 << 8 | (ts & _TIME) << 16
    made = struct.pack(
        "<QQIiIIHHIIiIBBHQ", head, f["sk"], f["seq"], f["len"], f["laddr"], f["raddr"], f["lport"], f["rport"],
        f["netns"], f["tid"], f["fd"], f["aux"], f["proto"], f["old_state"], 0, f["stamp"],
    )  # fmt: skip
    made += struct.pack(f"<{len(v6)}Q", *v6)
    return made if hw is None else made + struct.pack("<QQ", hw, 0)


def short(kind: str, ts: int, v6: tuple[int, ...] = (), **fields: Any) -> bytes:
    """The short form of ``message``."""
    f = MESSAGE_FIELDS | fields
    of_packet = kind in "AX"
    last = f["tid"] | f["aux"] << 22 if of_packet else f["tid"]
    rest = ts - f["stamp"] if of_packet and f["stamp"] else 0 if of_packet else f["aux"]
    sk = f["sk"] & (1 << 48) - 1 | (f["fd"] & 0xFFFF) << 48
    made = struct.pack(
        "<QQIiIIHHIIi", message_type(kind, bool(v6)) | SHORT | 1 << 8 | (ts & _TIME) << 16, sk, f["seq"], f["len"],
        f["laddr"], f["raddr"], f["lport"], f["rport"], f["netns"], last | (f["proto"] == 17) << 31, rest,
    )  # fmt: skip
    return made + struct.pack(f"<{len(v6)}Q", *v6)


def header(cpu: int, magic: bytes = b"NSIGHTR1", version: int = 1) -> bytes:
    return struct.pack("<8sIIQQ", magic, version, cpu, 0, 0)


def block(
    content: bytes,
    time: int,
    number: int = 0,
    kind: int = RECORDS,
    flags: int = 0,
    stored: bytes | None = None,
    mark: int = 0x4B42534E,
) -> bytes:
    """A block; ``stored``: its contents in the file, compressed."""
    stored = content if stored is None else stored
    return struct.pack("<IHHIIQQ", mark, kind, flags, len(stored), len(content), time, number) + stored


def counts(
    time: int, tallies: dict[int, tuple[int, int]], probes: tuple[int, ...] = (0,) * 5, kind: int = END
) -> bytes:
    """A block of counts: the records produced and lost, for each type."""
    content = b"".join(struct.pack("<QQQ", type_, *of) for type_, of in tallies.items())
    content += struct.pack("<5Q", *probes)
    return block(content + bytes(-len(content) % 16), time, kind=kind)


def units_of_message(type_: int) -> int:
    """Of 16 bytes."""
    return 4 + 2 * bool(type_ & V6) + bool(type_ & HW) - bool(type_ & SHORT)


def split(content: bytes) -> list[bytes]:
    """The records of ``content``, which has no padding and no unknown ones."""
    units = dict.fromkeys(TWO_UNITS, 2) | {"TASK": 3, "COUNTERS": 3, "DROP_V4": 3, "DROP_V6": 4}
    made, at = [], 0
    while at < len(content):
        type_ = content[at]
        n = units_of_message(type_) if type_ >= MESSAGE else units.get(TYPES[type_], 1)
        made.append(content[at : at + 16 * n])
        at += 16 * n
    return made


def whole(cpu: int, content: bytes, time: int = 1_000_000) -> bytes:
    """A complete file of one block: all records produced are in it, and nothing was lost."""
    tallies: dict[int, tuple[int, int]] = {}
    for one in split(content):
        type_ = one[0] & ~SHORT if one[0] >= MESSAGE else one[0]
        tallies[type_] = (tallies.get(type_, (0, 0))[0] + 1, 0)
    return header(cpu) + block(content, time) + counts(time, tallies)


def write(directory: Path, machine: bytes | None = None, **cores: bytes) -> Path:
    """Directory ``records`` with these files: ``cpu0=...``."""
    records = directory / "records"
    records.mkdir(parents=True, exist_ok=True)
    for name, content in cores.items():
        (records / f"cpu-{name.removeprefix('cpu')}.records").write_bytes(content)
    if machine is not None:
        (records / "machine.records").write_bytes(machine)
    return records


def decode(records: Path, directory: Path, program: Path | None = None, only: str = "") -> Any:
    """Run nsight-rawdata: (events as tuples with the kind's name, timestamps, perf-events.json)."""
    directory.mkdir(exist_ok=True)
    options = [f"--only={only}"] if only else []
    subprocess.run(
        [program or native.find("nsight-rawdata"), *options, records, directory], check=True, timeout=60
    )
    info = json.loads((directory / "perf-events.json").read_text())
    events = [] if only == "messages" else np.fromfile(directory / "perf-events.bin", EVENT).tolist()
    stamps = np.zeros(0, STAMP) if only == "activity" else np.fromfile(directory / "messages.bin", STAMP)
    named = [(ts, KINDS_OF_EVENTS[kind], *rest[:3], *rest[4:]) for ts, kind, *rest in events]
    return named, stamps, info
