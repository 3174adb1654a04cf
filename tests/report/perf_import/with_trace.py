# SPDX-License-Identifier: GPL-2.0-only
"""A capture of Intel PT and BPF as perf alone would have recorded it: its message events and clock readings are in perf.data."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from nsight_report import clocks
from nsight_report.clocks import clock_readings
from recording import TRACING_DATA, Recording

AUXTRACE_INDEX = 18  # header feature: offsets within the file, which change
NS = 10**9
NAMES = tuple(
    n for n in Recording().names if n.split(":")[0] in ("timekeeping", "sock", "net", "raw_syscalls")
)


def _samples(capture: Path) -> Recording:
    """Tracepoints with the contents of clock.tsv and events.tsv."""
    made = Recording(names=NAMES)
    readings = clock_readings.load(capture / "clock.tsv")
    known = clocks.ClockMap(clocks.build(readings)[0])
    states = readings.polled
    times, _, good = known.convert_masked(states.tsc_now, "tsc", "perf")
    for i in np.flatnonzero(good).tolist():
        shift = int(states.shift[i])
        real, mono = (int(states.sec[i, c]) * NS + (int(states.snsec[i, c]) >> shift) for c in (0, 1))
        made.sample(
            "timekeeping:timekeeping_update", int(times[i]), cycle_last=int(states.cycle_last[i]),
            mult=int(states.mult[i]), shift=shift, base_mono=mono, base_real=real,
            xtime_nsec=int(states.snsec[i, 1]) & ((1 << shift) - 1), tai_offset=37, cs_id=4,
        )  # fmt: skip
    rows = [line.split("\t") for line in (capture / "events.tsv").read_text().splitlines()]
    rows = sorted((row for row in rows if len(row) == 24 and row[11] == "6"), key=lambda row: int(row[1]))
    stamps = np.array([[int(row[1]), int(row[8])] for row in rows])
    perf, _, good = known.convert_masked(stamps.ravel(), "boottime", "perf")
    perf, good = perf.reshape(-1, 2), good.reshape(-1, 2)
    cookies: dict[tuple[str, str, str], int] = {}
    waiting: dict[int, list[tuple[int, int, int]]] = {}
    for number, row in enumerate(rows):
        if not good[number, 0]:
            continue
        at, cpu, pid, tid = int(perf[number, 0]), int(row[2]), int(row[3]), int(row[4])
        cookie = cookies.setdefault((row[10], row[15], row[18]), len(cookies) + 1)
        ends = {
            "sport": int(row[15]),
            "dport": int(row[18]),
            "family": 2,
            "protocol": 6,
            "sock_cookie": cookie,
        }
        pos, length = int(row[19]), int(row[20])
        if row[0] == "A" and length:
            made.sample(
                "net:netif_receive_skb", at, cpu=cpu, tid=tid, pid=pid, skbaddr=number + 1, len=length + 52
            )
            waiting.setdefault(cookie, []).append((number + 1, pos, length))
        elif row[0] == "H":
            for skb, first, size in waiting.pop(cookie, []):
                made.sample(
                    "sock:sock_data_queued",
                    at,
                    cpu=cpu,
                    tid=tid,
                    pid=pid,
                    skbaddr=skb,
                    pos=first,
                    len=size,
                    **ends,
                )
        elif row[0] == "R" and length > 0 and not int(row[23]) & 2:
            if good[number, 1]:
                made.sample(
                    "raw_syscalls:sys_enter", int(perf[number, 1]), cpu=cpu, tid=tid, pid=pid,
                    args=struct.pack("<q40x", int(row[7])),
                )  # fmt: skip
            made.sample("sock:sock_data_read", at, cpu=cpu, tid=tid, pid=pid, pos=pos, len=length, **ends)
            made.sample("raw_syscalls:sys_exit", at, cpu=cpu, tid=tid, pid=pid, ret=length)
    return made


def add_events(source: Path, capture: Path, target: Path) -> None:
    """Write the perf.data ``source`` with events of ``capture`` to ``target``."""
    old, made = source.read_bytes(), _samples(capture)
    size, attr_size, attrs_at, attrs_len, data_at, data_len = struct.unpack_from("<6Q", old, 8)
    features = struct.unpack_from("<Q", old, 72)[0]
    new = made.content()
    new_size, new_attrs_at, new_attrs_len, new_data_at, new_data_len = struct.unpack_from("<5Q", new, 16)
    assert new_size == attr_size
    n_old, n_new = attrs_len // attr_size, new_attrs_len // attr_size
    ids_at = size + attrs_len + new_attrs_len
    attrs, ids = b"", b""
    for data, begin, n in ((old, attrs_at, n_old), (new, new_attrs_at, n_new)):
        for at in range(begin, begin + n * attr_size, attr_size):
            offset, length = struct.unpack_from("<QQ", data, at + attr_size - 16)
            attrs += data[at : at + attr_size - 16] + struct.pack("<QQ", ids_at + len(ids), length)
            ids += data[offset : offset + length]
    records = old[data_at : data_at + data_len] + new[new_data_at : new_data_at + new_data_len]
    sections, table_at = {}, data_at + data_len
    for bit in range(64):
        if features >> bit & 1:
            offset, length = struct.unpack_from("<QQ", old, table_at)
            table_at += 16
            sections[bit] = old[offset : offset + length]
    sections.pop(AUXTRACE_INDEX)
    sections[TRACING_DATA] = made.sections()[TRACING_DATA]
    begin = ids_at + len(ids)
    at = begin + len(records) + 16 * len(sections)
    table, bodies = b"", b""
    for bit in sorted(sections):
        table += struct.pack("<QQ", at + len(bodies), len(sections[bit]))
        bodies += sections[bit]
    head = bytearray(old[:size])
    struct.pack_into("<6Q", head, 8, size, attr_size, size, len(attrs), begin, len(records))
    struct.pack_into("<Q", head, 72, sum(1 << bit for bit in sections))
    target.write_bytes(bytes(head) + attrs + ids + records + table + bodies)
