# SPDX-License-Identifier: GPL-2.0-only
"""perf.data as perf record leaves it on a kernel with kernel-patches/: made by hand, with its formats inside."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

TID, TIME, CPU, RAW, IDENTIFIER = 1 << 1, 1 << 2, 1 << 7, 1 << 10, 1 << 16
SAMPLE_TYPE = TID | TIME | CPU | RAW | IDENTIFIER
SAMPLE_ID_ALL, USE_CLOCKID = 1 << 18, 1 << 25
SAMPLE, LOST, AUXTRACE_INFO, AUXTRACE, TIME_CONV = 9, 2, 70, 71, 79
TRACING_DATA = 1  # header features
ARCH, OSRELEASE = 6, 4
NS = 10**9

_COMMON = "hHBBi"
# Field, its C type in a format file, its struct code.
_SOCK = (
    ("skaddr", "const void *", "Q"), ("skbaddr", "const void *", "Q"), ("sock_cookie", "__u64", "Q"),
    ("hwtstamp", "__s64", "q"), ("tstamp", "__s64", "q"), ("pos", "__u32", "I"), ("len", "__u32", "I"),
    ("sport", "__u16", "H"), ("dport", "__u16", "H"), ("family", "__u16", "H"), ("protocol", "__u16", "H"),
)  # fmt: skip
_ADDRESSES = (
    ("skaddr", "const void *", "Q"), ("sport", "__u16", "H"), ("dport", "__u16", "H"), ("family", "__u16", "H"),
    ("saddr[4]", "__u8", "4s"), ("daddr[4]", "__u8", "4s"), ("saddr_v6[16]", "__u8", "16s"),
    ("daddr_v6[16]", "__u8", "16s"), ("sock_cookie", "__u64", "Q"),
)  # fmt: skip
_SWITCH = (
    ("prev_comm[16]", "char", "16s"), ("prev_pid", "pid_t", "i"), ("prev_prio", "int", "i"),
    ("prev_state", "long", "q"), ("next_comm[16]", "char", "16s"), ("next_pid", "pid_t", "i"),
    ("next_prio", "int", "i"),
)  # fmt: skip
EVENTS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "timekeeping:timekeeping_update": (
        ("cycle_last", "u64", "Q"), ("xtime_nsec", "u64", "Q"), ("base_mono", "s64", "q"),
        ("base_real", "s64", "q"), ("mult", "u32", "I"), ("shift", "u32", "I"), ("tai_offset", "s32", "i"),
        ("clock_was_set_seq", "u32", "I"), ("action", "u32", "I"), ("tk_id", "u16", "H"), ("cs_id", "u16", "H"),
    ),
    "sock:sock_data_queued": _SOCK,
    "sock:sock_data_read": _SOCK,
    "net:netif_receive_skb": (
        ("skbaddr", "void *", "Q"), ("len", "unsigned int", "I"), ("name", "__data_loc char[]", "I"),
    ),
    "tcp:tcp_rcv_space_adjust": _ADDRESSES,
    "sock:inet_sock_set_state": (
        ("skaddr", "const void *", "Q"), ("oldstate", "int", "i"), ("newstate", "int", "i"), ("sport", "__u16", "H"),
        ("dport", "__u16", "H"), ("family", "__u16", "H"), ("protocol", "__u16", "H"), ("saddr[4]", "__u8", "4s"),
        ("daddr[4]", "__u8", "4s"), ("saddr_v6[16]", "__u8", "16s"), ("daddr_v6[16]", "__u8", "16s"),
    ),
    "sched:sched_switch": _SWITCH,
    "raw_syscalls:sys_enter": (("id", "long", "q"), ("args[6]", "unsigned long", "48s")),
    "raw_syscalls:sys_exit": (("id", "long", "q"), ("ret", "long", "q")),
}  # fmt: skip


def _layout(fields: tuple[tuple[str, str, str], ...]) -> list[tuple[str, str, str, int, int]]:
    """Name, type, code, offset, size of each field, aligned as a C compiler does."""
    at, made = 8, []
    for name, kind, code in fields:
        size = struct.calcsize("<" + code)
        align = 1 if ("char" in kind and "[" in name) or kind == "__u8" else min(size, 8)
        at = -(-at // align) * align
        made.append((name, kind, code, at, size))
        at += size
    return made


def format_text(name: str, number: int) -> str:
    """The tracefs format of an event."""
    lines = [f"name: {name.split(':')[1]}", f"ID: {number}", "format:"]
    common = (("unsigned short common_type", 0, 2, 0), ("unsigned char common_flags", 2, 1, 0),
              ("unsigned char common_preempt_count", 3, 1, 0), ("int common_pid", 4, 4, 1))  # fmt: skip
    lines += [f"\tfield:{t};\toffset:{o};\tsize:{s};\tsigned:{x};" for t, o, s, x in common]
    lines.append("")
    for field_name, kind, code, at, size in _layout(EVENTS[name]):
        signed = int(code.islower() and code[-1] != "s")
        lines.append(f"\tfield:{kind} {field_name};\toffset:{at};\tsize:{size};\tsigned:{signed};")
    return "\n".join([*lines, "", 'print fmt: ""', ""])


def record(kind: int, body: bytes, misc: int = 0) -> bytes:
    """One record."""
    body += bytes(-len(body) % 8)
    return struct.pack("<IHH", kind, misc, 8 + len(body)) + body


def time_conv(mult: int, shift: int, zero: int, clock: bytes = b"") -> bytes:
    """PERF_RECORD_TIME_CONV; ``clock``: the part that kernel-patches/perf appends."""
    return record(TIME_CONV, struct.pack("<QQQQQ8x", shift, mult, zero, 0, 0) + clock)


def clock(
    time: int, *, mono: int, real: int, cycles: int = 0, mult: int = 0, shift: int = 0, nsec: int = 0,
    tai: int = 37, error: int = 0, step: bool = False,
) -> bytes:  # fmt: skip
    """The fields of the patched perf's clock map."""
    return struct.pack("<QQQqqIIiIII", time, cycles, nsec, mono, real, mult, shift, tai, error, int(step), 0)


@dataclass
class Recording:
    """A perf.data that is being built; ``clockid`` None: perf's default clock."""

    clockid: int | None = None
    names: tuple[str, ...] = tuple(EVENTS)
    formats: bool = True
    records: list[bytes] = field(default_factory=list)

    def sample(
        self, name: str, ts: int, *, cpu: int = 0, tid: int = 0, pid: int | None = None, **values: int | bytes
    ) -> None:
        """Add a sample; fields that are not given are 0."""
        number = self.names.index(name)
        layout = _layout(EVENTS[name])
        raw = bytearray(-(-(layout[-1][3] + layout[-1][4]) // 4) * 4)
        struct.pack_into("<HBBi", raw, 0, 1000 + number, 0, 0, tid)
        for field_name, _kind, code, at, _size in layout:
            value = values.pop(field_name.partition("[")[0], b"" if code.endswith("s") else 0)
            struct.pack_into("<" + code, raw, at, value)
        assert not values, values
        raw += bytes(-(len(raw) + 4) % 8)
        head = struct.pack("<QiiQIII", 100 + number, tid if pid is None else pid, tid, ts, cpu, 0, len(raw))
        self.records.append(record(SAMPLE, head + bytes(raw)))

    def lost(self, ts: int, n: int, cpu: int = 0) -> None:
        """Add the kernel's record of events that did not fit."""
        self.records.append(record(LOST, struct.pack("<QQiiQIIQ", 100, n, 0, 0, ts, cpu, 0, 100)))

    def content(self) -> bytes:
        """The file."""
        attr_size, header_size = 128, 104
        flags = SAMPLE_ID_ALL | (USE_CLOCKID if self.clockid is not None else 0)
        ids_at = header_size + len(self.names) * (attr_size + 16)
        attrs = b""
        for number in range(len(self.names)):
            attr = struct.pack("<IIQQQQQ", 2, attr_size, 1000 + number, 1, SAMPLE_TYPE, 0, flags)
            attr += bytes(92 - len(attr)) + struct.pack("<i", self.clockid or 0)
            attrs += attr + bytes(attr_size - len(attr)) + struct.pack("<QQ", ids_at + 8 * number, 8)
        ids = b"".join(struct.pack("<Q", 100 + n) for n in range(len(self.names)))
        data = b"".join(self.records)
        data_at = ids_at + len(ids)
        sections = self.sections()
        features, bodies, at = 0, b"", data_at + len(data) + 16 * len(sections)
        table = b""
        for bit in sorted(sections):
            features |= 1 << bit
            table += struct.pack("<QQ", at + len(bodies), len(sections[bit]))
            bodies += sections[bit]
        header = b"PERFILE2" + struct.pack(
            "<QQQQQQQQQ",
            header_size,
            attr_size + 16,
            header_size,
            len(attrs),
            data_at,
            len(data),
            0,
            0,
            features,
        )
        return header + bytes(24) + attrs + ids + data + table + bodies

    def sections(self) -> dict[int, bytes]:
        """Header features."""

        def text(value: str) -> bytes:
            return struct.pack("<I", len(value) + 1) + value.encode() + b"\0"

        made = {OSRELEASE: text("7.2.0-nsight"), ARCH: text("x86_64")}
        if self.formats:
            systems: dict[str, list[bytes]] = {}
            for number, name in enumerate(self.names):
                body = format_text(name, 1000 + number).encode()
                systems.setdefault(name.split(":")[0], []).append(struct.pack("<Q", len(body)) + body)
            data = b"\x17\x08\x44tracing0.6\0" + bytes([0, 8]) + struct.pack("<I", 4096)
            data += b"header_page\0" + struct.pack("<Q", 0) + b"header_event\0" + struct.pack("<Q", 0)
            data += struct.pack("<II", 0, len(systems))
            for system, bodies in systems.items():
                data += system.encode() + b"\0" + struct.pack("<I", len(bodies)) + b"".join(bodies)
            made[TRACING_DATA] = data
        return made

    def write(self, path: Path) -> Path:
        """The file at ``path``."""
        path.write_bytes(self.content())
        return path


def mapped(address: str) -> bytes:
    """An IPv4 address in the form of saddr_v6."""
    return bytes(10) + b"\xff\xff" + bytes(int(part) for part in address.split("."))


def join(records: Iterable[bytes]) -> bytes:
    """Consecutive records."""
    return b"".join(records)
