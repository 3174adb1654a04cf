# SPDX-License-Identifier: GPL-2.0-only
"""Small hand-written ``events`` tables: one call per event, defaults for what does not matter."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from nsight_report import lifetimes
from nsight_report.tables import schema
from nsight_report.tables.intervals import IntervalTable

SERVER, CLIENT = ("10.0.0.1", 11211), ("10.0.0.2", 40000)
SYN, ACK, FIN, PSH = 0x02, 0x10, 0x01, 0x08


class Recording:
    """Events of a server (netns 1, socket 0x100) and, for X of the peer, of its client (netns 2)."""

    def __init__(self, proto: int = 6) -> None:
        self.proto = proto
        self.rows: list[dict[str, Any]] = []

    def event(self, kind: str, ts: int, **fields: Any) -> Recording:
        """Append one event; ``seq`` is taken modulo 2**32."""
        local, remote = fields.pop("local", SERVER), fields.pop("remote", CLIENT)
        row: dict[str, Any] = {
            "kind": kind,
            "ts_ns": ts,
            "cpu": 0,
            "pid": 0,
            "tid": 0,
            "comm": "swapper/0",
            "fd": -1,
            "call_ns": None,
            "sk": 0,
            "netns": 1,
            "proto": self.proto,
            "family": 2,
            "laddr": local[0],
            "lport": local[1],
            "raddr": remote[0],
            "rport": remote[1],
            "seq": 0,
            "len": 0,
            "hw_timestamp": 0,
            "sw_timestamp": 0,
            "ifindex": 0,
            "flags": 0,
        }
        row.update(fields)
        row["seq"] %= 1 << 32
        self.rows.append(row)
        return self

    def arrive(self, ts: int, seq: int, length: int, **fields: Any) -> Recording:
        """A at the server."""
        return self.event("A", ts, **({"seq": seq, "len": length, "ifindex": 2, "flags": ACK | PSH} | fields))

    def peer_sends(self, ts: int, seq: int, length: int, **fields: Any) -> Recording:
        """X at the client, in the client's namespace."""
        own = {
            "seq": seq,
            "len": length,
            "ifindex": 3,
            "flags": ACK | PSH,
            "netns": 2,
            "local": CLIENT,
            "remote": SERVER,
        }
        return self.event("X", ts, **(own | fields))

    def hand_off(self, ts: int, rcv_nxt: int, **fields: Any) -> Recording:
        """H at the server."""
        return self.event("H", ts, **({"seq": rcv_nxt, "sk": 0x100} | fields))

    def read(self, ts: int, seq: int, length: int, **fields: Any) -> Recording:
        """R at the server, by thread 7 on core 1."""
        own = {
            "seq": seq,
            "len": length,
            "sk": 0x100,
            "cpu": 1,
            "pid": 6,
            "tid": 7,
            "comm": "memcached",
            "fd": 9,
            "call_ns": ts - 5,
        }
        return self.event("R", ts, **(own | fields))

    def send(self, ts: int, seq: int, length: int, **fields: Any) -> Recording:
        """S at the server, by thread 7 on core 1."""
        own = {
            "seq": seq,
            "len": length,
            "sk": 0x100,
            "cpu": 1,
            "pid": 6,
            "tid": 7,
            "comm": "memcached",
            "fd": 9,
            "call_ns": ts - 30,
        }
        return self.event("S", ts, **(own | fields))

    def drive(self, ts: int, seq: int, length: int, **fields: Any) -> Recording:
        """X at the server."""
        return self.event(
            "X",
            ts,
            **({"seq": seq, "len": length, "ifindex": 2, "flags": ACK | PSH, "cpu": 1, "tid": 7} | fields),
        )

    def table(self) -> pa.Table:
        """The events in time order."""
        rows = sorted(self.rows, key=lambda row: row["ts_ns"])
        plain = pa.schema(
            [
                pa.field(c.name, pa.string() if pa.types.is_dictionary(c.type) else c.type)
                for c in schema.TABLES["events"].columns
            ]
        )
        return schema.conform("events", pa.Table.from_pylist(rows, schema=plain))

    def build(
        self, options: lifetimes.LifetimeOptions | None = None
    ) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """Messages as rows, losses as {cause: count}."""
        with tempfile.TemporaryDirectory() as scratch:
            messages, losses = lifetimes.build(IntervalTable(self.table()), Path(scratch), options)
            rows = pq.read_table(messages.path).to_pylist()
        return rows, {row["cause"]: row["count"] for row in losses.to_pylist()}
