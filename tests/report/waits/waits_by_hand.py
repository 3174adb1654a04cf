# SPDX-License-Identifier: GPL-2.0-only
"""Threads, cores and waits made from a few rows, and pieces of chains in a form that is easy to compare."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
from machinery.made_up.tables import table
from nsight_report.waits import Activity, explain

Row = dict[str, Any]
NAMES = {10: "server", 20: "worker", 30: "flusher", 40: "hog"}


def ran(tid: int, start: int, end: int, cpu: int = 0, state: str = "running") -> Row:
    return {"tid": tid, "pid": tid, "comm": NAMES.get(tid, ""), "start_ns": start, "end_ns": end, "state": state, "cpu": cpu}  # fmt: skip


def on(cpu: int, start: int, end: int, kind: str, symbol: str = "", tid: int = 0) -> Row:
    comm = NAMES.get(tid, "swapper" if tid == 0 else "")
    return {"cpu": cpu, "start_ns": start, "end_ns": end, "kind": kind, "symbol": symbol, "tid": tid, "pid": tid, "comm": comm}  # fmt: skip


def waited(
    tid: int, start: int, end: int, place: str, by: int = -1, state: str = "sleeping", **over: Any
) -> Row:
    """By default thread ``by`` woke it, on core 1."""
    return {
        "tid": tid, "start_ns": start, "end_ns": end, "state": state, "place": place, "arg": 0, "cpu": 0,
        "waker_tid": by, "waker_comm": NAMES.get(by, ""), "waker_cpu": 1, "context": "thread" if by > 0 else "",
        "symbol": NAMES.get(by, ""), "from_thread": False, "device": -1, "operation": "", "nbytes": 0, "io_ns": 0, **over,
    }  # fmt: skip


def activity(
    states: list[Row], contexts: list[Row], waits: list[Row], throttled: tuple[int, ...] = ()
) -> Activity:
    """Thread states: those given, and one for each wait."""
    asleep = [ran(w["tid"], w["start_ns"], w["end_ns"], w["cpu"], w["state"]) for w in waits]
    return Activity(
        table("thread_states", [*states, *asleep]),
        table("contexts", contexts),
        table("waits", waits),
        throttled,
    )


def intervals(*rows: tuple[int, int, int]) -> pd.DataFrame:
    """(tid, start, end), numbered."""
    return pd.DataFrame(
        [(i, *row) for i, row in enumerate(rows)], columns=["interval_id", "tid", "start_ns", "end_ns"]
    )


def chains(asked: pd.DataFrame, of: Activity, **options: Any) -> tuple[pa.Table, dict[str, int]]:
    """Pieces, and losses by key."""
    pieces, lost = explain(asked, of, **options)
    return pieces, {row["key"]: row["count"] for row in lost.to_pylist()}


def told(pieces: pa.Table) -> list[tuple[Any, ...]]:
    """(depth, thread, start, end, kind, name)."""
    return [
        (r["depth"], r["tid"], r["start_ns"], r["end_ns"], r["kind"], r["name"]) for r in pieces.to_pylist()
    ]
