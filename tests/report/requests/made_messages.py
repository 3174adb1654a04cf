# SPDX-License-Identifier: GPL-2.0-only
"""Hand-made messages of connections, in the form of table ``messages``, and the requests that are made from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from machinery.made_up.tables import Row, message, table
from nsight_report.requests.build import build
from nsight_report.tables.messages import Messages

SERVER_TID = 100


def received(conn: int, first: int, handoff: int, read: int, **over: object) -> Row:
    """Reached the NIC at ``first``, the socket at ``handoff``; the read returned at ``read``."""
    return message(0, first, handoff, read, conn_id=conn, lport=11211, rport=40000 + conn) | over


def sent(conn: int, call: int, driver: int | None, **over: object) -> Row:
    """The send call was entered at ``call`` and returned 200 later; its last byte reached the driver at ``driver``."""
    last = call + 200 if driver is None else driver
    return received(conn, call, call, call) | {
        "direction": "tx", "first_ns": call, "last_ns": last, "latency_ns": last - call, "nic_ns": None, "nic_source": "none",
        "arrival_ns": None, "arrival_last_ns": None, "handoff_ns": None, "handoff_cpu": None, "call_ns": call, "last_call_ns": call,
        "app_ns": call + 200, "driver_ns": driver, "timestamps": "sd",
    } | over  # fmt: skip


def as_messages(rows: list[Row]) -> pa.Table:
    """Rows in the table's order, numbered in that order; ``name`` of a row is left out."""
    rows = sorted(rows, key=lambda r: (r["first_ns"], r["last_ns"]))
    return table("messages", [{**row, "message_id": i} for i, row in enumerate(rows)])


def join(
    rows: list[Row], tmp_path: Path, framing: str | None = None
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """``(rows of table requests, losses by key)``."""
    written, lost = build(Messages(as_messages(rows)), tmp_path, framing)
    made = written if isinstance(written, pa.Table) else pq.read_table(written.path)
    return made.to_pylist(), {r["key"]: r["count"] for r in lost.to_pylist()}
