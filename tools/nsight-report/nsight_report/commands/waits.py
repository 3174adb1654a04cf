# SPDX-License-Identifier: GPL-2.0-only
"""``nsight-report waits``: what a thread did and waited for, through the threads that woke it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
from rich.console import Console
from rich.text import Text

from ..errors import BadInput, UsageError
from ..export.terminal import columns, print_table
from ..names import printable
from ..tables.data_frames import column, to_pandas, words
from ..timeline.recording import host_beside
from ..units import counted, duration, percent
from ..waits import Activity, explain
from ..waits import summary as chains
from ..waits.tiles import WAITING

if TYPE_CHECKING:
    from ..api import Capture

#: Tables that it needs: recordings without messages have them, too.
NEEDS = ("thread_states", "contexts", "waits")
_STATES = ("tid", "pid", "comm", "start_ns", "end_ns", "state")


def make(capture: Capture, args: argparse.Namespace) -> dict[str, Any]:
    """The object of ``waits --json``."""
    states, contexts, waits = (capture.pipeline.stored(name) for name in NEEDS)
    activity = Activity(states, contexts, waits, host_beside(states, capture.manifest).throttled)
    begin, end = activity.span()
    if begin == end:
        raise BadInput(
            f"{capture.path} contains no thread states",
            "record the scheduler's events, as nsight-record does",
        )
    first = begin if args.since is None else begin + args.since
    last = end if args.until is None else min(begin + args.until, end)
    if first >= last:
        raise UsageError(
            f"nothing was recorded from {duration(first - begin)} to {duration(last - begin)}",
            f"the recording is {duration(end - begin)} long; --from and --to are since its begin",
        )
    made = {"capture": str(capture.path), "origin_ns": begin, "from_ns": first - begin, "to_ns": last - begin}
    threads = _threads(capture, first, last)
    if args.thread is None:
        return {**made, "n_threads": len(threads), "threads": threads[: args.rows] if args.rows else threads}
    tid = _chosen(threads, args.thread)
    asked = pd.DataFrame({"interval_id": [0], "tid": [tid], "start_ns": [first], "end_ns": [last]})
    pieces, lost = explain(asked, activity, args.depth)
    least = (last - first) * args.least // 100
    return {
        **made,
        "thread": next(thread for thread in threads if thread["tid"] == tid),
        "depth": args.depth,
        "chains": chains.top(pieces, args.rows or None),
        "tree": [node.plain() for node in chains.tree(pieces, least)],
        "longest": _longest(pieces, begin, args),
        "losses": lost.select(["key", "cause", "severity", "count", "detail"]).to_pylist(),
    }


def _threads(capture: Capture, first: int, last: int) -> list[dict[str, Any]]:
    """Every thread; those that waited longest within the time come first."""
    parts = []
    for table in capture.pipeline.stored("thread_states").batches(_STATES):
        f = to_pandas(table)
        low, high = (column(f[name]).clip(first, last) for name in ("start_ns", "end_ns"))
        plain = {"tid": column(f["tid"]), "pid": column(f["pid"]), "comm": words(f["comm"])}
        part = pd.DataFrame({**plain, "state": words(f["state"]), "ns": high - low})
        parts.append(part[part["ns"] > 0])
    every = pd.concat(parts, ignore_index=True)
    every["what"] = (
        every["state"].where(~every["state"].isin(WAITING), "waiting").replace("throttled", "runnable")
    )
    spent = every.pivot_table("ns", "tid", "what", "sum", fill_value=0)
    who = every.drop_duplicates("tid", keep="last").set_index("tid")
    spent = spent.reindex(columns=["running", "runnable", "waiting"], fill_value=0)
    found = zip(spent.index.tolist(), who.loc[spent.index, ["pid", "comm"]].to_numpy(), spent.to_numpy())
    rows = [
        {
            "tid": int(tid),
            "pid": int(pid),
            "comm": str(comm),
            "running_ns": int(running),
            "runnable_ns": int(runnable),
            "waiting_ns": int(waiting),
        }
        for tid, (pid, comm), (running, runnable, waiting) in found
    ]
    return sorted(rows, key=lambda r: (-r["running_ns"] - r["runnable_ns"], r["tid"]))


def _chosen(threads: list[dict[str, Any]], wanted: str) -> int:
    """A thread by its number, or by a name that no other thread has."""
    found = [t["tid"] for t in threads if wanted in (str(t["tid"]), t["comm"])]
    if len(found) == 1:
        return int(found[0])
    if not found:
        raise UsageError(
            f"no thread {wanted!r} was there at that time", "without --thread, the command lists threads"
        )
    numbers = ", ".join(map(str, found[:20]))
    raise UsageError(f"{counted(len(found), 'thread')} called {wanted!r}", f"--thread takes one of {numbers}")


def _longest(pieces: pa.Table, begin: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The longest waits of the thread itself, each with its tree."""
    f = to_pandas(pieces.filter(pa.array(pieces["depth"].to_numpy() == 0)))
    f = f[np.isin(words(f["doing"]), WAITING)]
    length = column(f["end_ns"]) - column(f["start_ns"])
    order = np.argsort(-length, kind="stable")[: args.longest]
    ids, starts = column(f["piece_id"])[order], column(f["start_ns"])[order]
    return [
        {
            "start_ns": int(start) - begin,
            "ns": int(ns),
            "arg": int(arg),
            "tree": [node.plain() for node in chains.tree(chains.below(pieces, int(piece)), int(ns) * args.least // 100)],
        }
        for piece, start, ns, arg in zip(ids, starts, length[order], column(f["arg"])[order])
    ]  # fmt: skip


# -- for people -------------------------------------------------------------------------------


def print_for_people(made: dict[str, Any], console: Console) -> None:
    """The same as text."""
    span = (
        f"from {duration(made['from_ns'])} to {duration(made['to_ns'])} of {printable(made['capture'], 200)}"
    )
    if "threads" in made:
        console.print(Text(f"{counted(made['n_threads'], 'thread')} {span}, the busiest first", style="bold"))
        _print_threads(made, console)
        return
    t = made["thread"]
    console.print(
        Text(f"{printable(t['comm'])}[{t['tid']}] of process {t['pid']}, {span}", style="bold"),
        soft_wrap=True,
    )
    whole = max(made["to_ns"] - made["from_ns"], 1)
    _print_tree(made["tree"], whole, console)
    for wait in made["longest"]:
        console.print()
        title = f"Waited {duration(wait['ns'])} from {duration(wait['start_ns'])} on"
        console.print(Text(title, style="bold"))
        _print_tree(wait["tree"], max(wait["ns"], 1), console)
    if made["losses"]:
        console.print()
    for loss in made["losses"]:
        console.print(
            Text(f"  {loss['severity']}: {loss['cause']}: {loss['count']:,}, {loss['detail']}", style="dim"),
            soft_wrap=True,
        )


def _print_threads(made: dict[str, Any], console: Console) -> None:
    table = columns(console, ">thread", ">process", "name", ">running", ">ready", ">waiting")
    for t in made["threads"]:
        table.add_row(
            str(t["tid"]), str(t["pid"]), Text(printable(t["comm"])), duration(t["running_ns"]),
            duration(t["runnable_ns"]), duration(t["waiting_ns"]),
        )  # fmt: skip
    print_table(console, table)
    rest = made["n_threads"] - len(made["threads"])
    if rest > 0:
        console.print(f"  {rest:,} more: -n 0 prints all", style="dim")
    console.print("  next: --thread with a number or name shows what it waited for", style="dim")


def _print_tree(nodes: list[dict[str, Any]], whole: int, console: Console, depth: int = 0) -> None:
    for node in nodes:
        which = "which " if depth and not node["rest"] else ""
        times = f" ({node['n']:,} times)" if node["n"] > 1 else ""
        guess = "" if node["sure"] == "measured" else f" [{node['sure']}]"
        share = f"{duration(node['ns']):>9} {percent(node['ns'] / whole):>4}"
        text = f"{'  ' * depth}{which}{printable(node['text'], 200)}{times}{guess}"
        console.print(Text(f"  {share}  {text}"), soft_wrap=True)
        _print_tree(node["below"], whole, console, depth + 1)
