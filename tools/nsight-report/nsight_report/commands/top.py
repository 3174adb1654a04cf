# SPDX-License-Identifier: GPL-2.0-only
"""``nsight-report top``: causes, or slow messages, ranked."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.text import Text

from ..errors import UsageError
from ..export.terminal import bar, columns, print_table
from ..names import printable
from ..report_text import no_cause
from ..summary import peer_of
from ..tables.data_frames import cause_names, each, record
from ..units import counted, duration, percent
from .parsers import CAUSE_KEYS, MESSAGE_KEYS

if TYPE_CHECKING:
    from ..capture_tables import CaptureTables


def check(args: argparse.Namespace) -> None:
    """Raises UsageError for a sort order that the rows do not have, before anything is computed."""
    keys = CAUSE_KEYS if args.by == "cause" else MESSAGE_KEYS
    if args.sort not in keys:
        raise UsageError(
            f"--by {args.by} cannot be sorted by {args.sort}", f"--sort is one of {', '.join(keys)}"
        )


def make(capture: CaptureTables, args: argparse.Namespace) -> dict[str, Any]:
    """The object of ``top --json``."""
    rows = _causes(capture, args.sort) if args.by == "cause" else _messages(capture, args.sort)
    return {
        "capture": str(capture.path),
        "slow": capture.options.slow,
        "n_slow": len(capture.coverage),
        "by": args.by,
        "sort": args.sort,
        "n_rows": len(rows),
        "rows": rows[: args.rows] if args.rows else rows,
    }


_CAUSE_ORDER = {
    "deviation": "total_deviation_ns",
    "pervasiveness": "n_messages",
    "median": "median_deviation_ns",
    "max": "max_deviation_ns",
}


def _causes(capture: CaptureTables, sort: str) -> list[dict[str, Any]]:
    n = max(len(capture.coverage), 1)
    by = [_CAUSE_ORDER[sort], "total_deviation_ns"]
    return [
        {
            **record(c, "cause", "n_messages"),
            "pervasiveness": float(c.n_messages / n),
            **record(c, "median_deviation_ns", "max_deviation_ns", "total_deviation_ns", "share"),
        }
        for c in each(capture.causes.sort_values(by, ascending=False, kind="stable"))
    ]


def _messages(capture: CaptureTables, sort: str) -> list[dict[str, Any]]:
    names = ["message_id", "first_ns", "comm", "direction", "request_type", "raddr", "rport", "conn_id"]
    ids = capture.coverage["message_id"].to_numpy(np.int64)
    coverage = capture.coverage.merge(capture.diagnosed_messages.rows(ids, names), on="message_id")
    by, ascending = {
        "deviation": (["deviation_ns"], False),
        "coverage": (["coverage", "message_id"], True),
        "time": (["first_ns"], True),
    }[sort]
    anomalies = capture.anomalies
    sums = anomalies.groupby([anomalies["message_id"].astype("int64"), cause_names(anomalies)])[
        "deviation_ns"
    ].sum()
    ordered = sums.sort_values(ascending=False, kind="stable")
    own: dict[int, dict[str, int]] = {}
    for key, ns in zip(ordered.index.tolist(), ordered.tolist()):
        own.setdefault(int(key[0]), {})[str(key[1])] = int(ns)
    return [
        {
            **record(m, "message_id", "first_ns", "latency_ns", "baseline_latency_ns", "deviation_ns"),
            **record(m, "coverage", "comm", "conn_id"),
            "peer": peer_of(m),
            "causes": own.get(int(m.message_id), {}),
        }
        for m in each(coverage.sort_values(by, ascending=ascending, kind="stable"))
    ]


def print_for_people(made: dict[str, Any], console: Console) -> None:
    """The same as a table."""
    what = "Causes" if made["by"] == "cause" else "Messages"
    order = {
        "deviation": "total delay" if made["by"] == "cause" else "delay",
        "pervasiveness": "number of messages",
        "median": "median delay",
        "max": "largest delay",
        "coverage": "coverage, the least explained first",
        "time": "time",
    }[made["sort"]]
    console.print(
        Text(f"{what} of {printable(made['capture'], 200)}, slow {made['slow']} ({counted(made['n_slow'], 'message')}), by {order}",
             style="bold"),
        soft_wrap=True,
    )  # fmt: skip
    if not made["rows"]:
        console.print("  none" + ("" if made["n_slow"] else ": no message is among the slow messages"))
        return
    (_print_causes if made["by"] == "cause" else _print_messages)(made["rows"], console)
    rest = made["n_rows"] - len(made["rows"])
    if rest:
        console.print(f"  {rest:,} more: -n 0 prints all", style="dim")


def _print_causes(rows: list[dict[str, Any]], console: Console) -> None:
    table = columns(console, "cause", ">share", "", ">messages", ">of slow", ">median", ">max", ">total")
    for r in rows:
        table.add_row(
            Text(printable(r["cause"])), percent(r["share"]), bar(console, r["share"]), f"{r['n_messages']:,}",
            percent(r["pervasiveness"]), duration(r["median_deviation_ns"]), duration(r["max_deviation_ns"]),
            duration(r["total_deviation_ns"]),
        )  # fmt: skip
    print_table(console, table)


def _print_messages(rows: list[dict[str, Any]], console: Console) -> None:
    table = columns(console, ">message", ">latency", ">usual", ">explained", "application", "peer", "causes")
    for r in rows:
        largest = [f"{printable(c)} +{duration(ns)}" for c, ns in list(r["causes"].items())[:1]]
        more = [f"{len(r['causes']) - 1} more"] if len(r["causes"]) > 1 else []
        table.add_row(
            str(r["message_id"]), duration(r["latency_ns"]), duration(r["baseline_latency_ns"]),
            percent(r["coverage"]), Text(printable(r["comm"])), Text(printable(r["peer"])),
            Text(", ".join(largest + more) or no_cause(r["coverage"])),
        )  # fmt: skip
    print_table(console, table)
