# SPDX-License-Identifier: GPL-2.0-only
"""Small valid inputs: the files of a capture, and the beginnings of the corpora."""

from __future__ import annotations

import functools
import json
from typing import Any

#: Those of a capture that Python reads by itself.
CAPTURE_FILES = ("manifest.json", "clock.tsv", "events.tsv", "tables/stages.json")

#: 2 GHz, half a ns a cycle.
SHIFT, MULT = 23, 1 << 22
#: Monotonic ns of TSC 2 * START_NS.
START_NS = 5_000_000_000_000
WALL_NS = 1_790_000_000_000_000_000
US, MS = 1_000, 1_000_000
_COMM = ("65686361636d656d", "64")  # memcached
_ENDS = {"laddr_hi": "0", "laddr_lo": "100000a", "raddr_hi": "0", "raddr_lo": "200000a"}


def manifest(**changes: Any) -> dict[str, Any]:
    """As nsight-record writes it, with most of the data that a report reads."""
    return {
        "format": "nsight-capture", "version": 1, "state": "complete", "mode": "tracepoints", "recorder_pid": 700,
        "host": {"hostname": "db7", "kernel": "6.12.1", "cpu_model": "Example CPU", "n_cpus": 2, "clocksource": "tsc",
                 "idle_states": [{"latency_us": 2}, {"latency_us": 133, "disabled": True}]},
        "command": ["nsight-record", "-d", "1", "--port", "11211"], "syscall_names": {"0": "read", "232": "epoll_wait"},
        "nics": [{"name": "eth0", "ifindex": 2, "phc": 0, "coalescing": {"rx_coalesce_usecs": 3}}],
        "throttled": [{"pids": [7, 8]}], "tools": {"perf": {"pid": 701, "version": "6.12", "argv": ["perf", "record"]}},
        "start": {"monotonic_ns": START_NS - 10 * MS, "realtime_ns": WALL_NS}, "stop": {"monotonic_ns": START_NS + 1000 * MS},
        "stopped_by": "duration", "losses": [{"tool": "perf", "what": "lost", "count": 3}], **changes,
    }  # fmt: skip


def imported() -> dict[str, Any]:
    """As ``nsight-report import`` writes it."""
    told = {
        "stage": "record",
        "cause": "clocks not recorded",
        "severity": "info",
        "count": 1,
        "detail": "",
        "remedy": "",
    }
    return manifest(
        state="cut", imported={"from": "perf.data", "losses": [told]}, stopped_by="error: perf ended"
    )


def state(tsc: int, seq: int, ns: int, kind: str = "V") -> str:
    """A line of clock.tsv: the timekeeper at ``tsc``, when CLOCK_MONOTONIC was ``ns``."""
    fields = [tsc - 100, tsc, seq, 1, tsc - 200, MULT, SHIFT]
    for at in (ns + WALL_NS, ns, ns, ns + WALL_NS + 37 * 10**9):
        fields += [at // 10**9, (at % 10**9) << SHIFT]
    return "\t".join([kind, *map(str, fields)])


def clock_tsv(*more: str) -> bytes:
    """Readings of a second around START_NS, and ``more`` lines."""
    tsc = 2 * START_NS
    lines = ["#nsight-clock 1 tsc_khz=2000000 clocksource=tsc", "C\t1073741824\t31\t0"]
    lines += [
        state(tsc + 2 * at, 100 + 2 * n, START_NS + at) for n, at in enumerate((-400 * MS, 0, 400 * MS))
    ]
    lines += [
        f"B\tmonotonic\t{tsc + 2 * at}\t{START_NS + at}\t{tsc + 2 * at + 300}" for at in (-MS, 700 * MS)
    ]
    return "\n".join([*lines, *more, "E\t10\t3\t0\t1000\t1000000", ""]).encode()


def event(kind: str, ts: int, **changes: Any) -> str:
    """A line of 24 fields."""
    row: dict[str, Any] = {
        "kind": kind, "ts": ts, "cpu": 1, "pid": 10, "tid": 11, "comm0": _COMM[0], "comm1": _COMM[1], "fd": -1,
        "call_ts": 0, "sk": "ffff888100000000", "netns": 4026531840, "proto": 6, "family": 2, "laddr_hi": "0",
        "laddr_lo": "100000a", "lport": 11211, "raddr_hi": "0", "raddr_lo": "200000a", "rport": 40000, "seq": 7, "len": 0,
        "hw": 0, "sw": 0, "aux": 0,
    }  # fmt: skip
    return "\t".join(map(str, (row | changes).values()))


def requests(n: int, proto: int = 6) -> list[str]:
    """``n`` requests and replies: arrival, hand-off, read, send, hand to the driver."""
    lines = []
    for number in range(n):
        at, seq = START_NS + number * 100 * US, 1000 + 30 * number
        own = {"proto": proto, "fd": 9}
        lines += [
            event("A", at, seq=seq, len=30, cpu=0, aux=0x218, sw=at - 50, **own),
            event("H", at + 3 * US, seq=seq + 30, cpu=0, **own),
            event("R", at + 9 * US, seq=seq, len=30, call_ts=at + 8 * US, **own),
            event("S", at + 20 * US, seq=seq, len=40, call_ts=at + 19 * US, **own),
            event("X", at + 21 * US, seq=seq, len=40, aux=0x218, **own),
        ]
    return lines


def message(kind: str = "R", at: int = START_NS, **changes: Any) -> str:
    """A line of 28 fields: a message whole."""
    row: dict[str, Any] = {
        "kind": kind, "ts": at + 9 * US, "cores": "200010003", "thread": "a0000000b", "comm0": _COMM[0], "comm1": _COMM[1],
        "fd": 4, "call_ts": at + 8 * US, "sk": "ffff888100000000", "socket": "f00000630602", **_ENDS, "ports": "2bcb9c40",
        "seq": 1000, "len": 10, "p_ts": at, "p_range": (1010 << 32) | 10, "p_hw": 0, "p_sw": 77, "p_aux": 0x118,
        "h_ts": at + 3 * US, "p_laddr_hi": "0", "p_laddr_lo": "0", "p_raddr_hi": "0", "p_raddr_lo": "0", "p_peer": "0",
    }  # fmt: skip
    return "\t".join(map(str, (row | changes).values()))


def events_tsv(lines: list[str], version: int = 1, clock: str = "monotonic") -> bytes:
    """A whole file of these lines."""
    head = ["Attaching 12 probes...", f"#nsight-events {version} clock={clock}"]
    return "\n".join([*head, *lines, "@n[R]: 2", "@n[ack]: 4", "Lost 3 events", "#end", ""]).encode()


@functools.cache
def capture() -> dict[str, bytes]:
    """The files of a capture that has ten requests."""
    content = [json.dumps(manifest()).encode(), clock_tsv(), events_tsv(requests(10)), b"{}"]
    return dict(zip(CAPTURE_FILES, content, strict=True))
