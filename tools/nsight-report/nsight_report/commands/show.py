# SPDX-License-Identifier: GPL-2.0-only
"""``nsight-report show``: one message, from its timestamps to the calls that took its time."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from rich.console import Console
from rich.text import Text

from ..errors import BadInput, UsageError
from ..export.selection import marks, no_message
from ..export.terminal import bar, columns, print_table
from ..names import printable
from ..report_text import no_cause
from ..requests.figures import NAMES, OF_CLIENT
from ..stage import REQUEST, thing
from ..tables.data_frames import each, plain, record
from ..timeline.calls_of_message import calls_of
from ..units import bounded, duration, percent
from . import hands
from .call_tree import lines, tree

if TYPE_CHECKING:
    from ..capture_tables import CaptureTables

_NEAR = 8  # overlapping messages that are listed
_FACTS = (
    "message_id", "direction", "conn_id", "laddr", "lport", "raddr", "rport", "nbytes", "request_type", "comm", "pid",
    "tid", "fd", "first_ns", "last_ns", "latency_ns", "timestamps", "n_in_read", "retransmitted", "copy_lost",
)  # fmt: skip
_REQUEST = (
    "request_id", "role", "join", "last_message_id", "reply_message_id", "last_reply_message_id", "parent_request_id",
    "latency_ns", "receive_dur_ns", "queue_dur_ns", "service_dur_ns", "transmit_dur_ns",
)  # fmt: skip
_NEIGHBOUR = (
    "message_id", "conn_id", "direction", "first_ns", "last_ns", "latency_ns", "tid", "app_cpu", "comm",
)  # fmt: skip
_CALL = ("side", "kind", "name", "ns", "self_ns", "n_calls", "cause")
_EVIDENCE = (
    "anomaly", "subject", "kind", "located", "deviation_ns", "took_ns", "observed_ns", "baseline_ns", "start_ns", "end_ns", "cpu",
    "other_message_id", "path", "n_calls", "baseline_n_calls",
)  # fmt: skip


def make(capture: CaptureTables, args: argparse.Namespace) -> dict[str, Any]:
    """The object of ``show --json``."""
    message = _message(capture, args.message)
    number = int(message["message_id"])
    rows = capture.diagnosed_messages.rows(np.array([number]))
    row = next(each(rows))
    parts = capture.intervals(rows)[0]
    calls = calls_of(parts, capture.calls_around(rows))
    anomalies = capture.anomalies[capture.anomalies["message_id"] == number]
    roots = tree(calls, anomalies)
    least = int(message["latency_ns"]) * args.least // 100
    roles = capture.compared.loc[capture.compared["message_id"] == number, "role"].astype(str).tolist()
    if capture.other is not None:  # the baseline is from that capture, which has its own message numbers
        roles = [role for role in roles if role == "slow"]
    request = _request(capture, message)
    return {
        "capture": str(capture.path),
        "request": request,
        "request_work": hands.make(capture, request),
        "message": {name: plain(message[name]) for name in _FACTS},
        "role": roles[0] if roles else None,
        "slow": capture.options.slow,
        **_covered(capture, number),
        "marks": [
            {"name": m.name, "ns": m.ns, "since_first_ns": m.ns - int(message["first_ns"]), "cpu": m.cpu}
            for m in marks(row)
        ],
        "segments": [_segment(part, calls) for part in parts],
        "causes": [
            {"cause": f"{a.category} ({a.side})", **record(a, *_EVIDENCE)}
            for a in each(anomalies.sort_values("deviation_ns", ascending=False, kind="stable"))
        ],
        "calls": [
            {"depth": depth, **record(node, *_CALL)} for root in roots for node, depth in root.walk(least)
        ],
        "ways": capture.ways.packets_of(number),
        "ways_problem": capture.ways.problem or None,
        "neighbours": _neighbours(capture, message),
    }


def _message(capture: CaptureTables, text: str) -> pd.Series[Any]:
    if text == "slowest":
        coverage = capture.coverage
        if not len(coverage):
            raise BadInput(
                f"{capture.path}: no message is selected by --slow {capture.options.slow}",
                "choose others with --slow, or give a message's number",
            )
        slowest = coverage.sort_values("latency_ns", ascending=False, kind="stable")["message_id"].iloc[0]
        return capture.message(int(slowest))
    if not text.isdecimal() or len(text) > 18:
        hint = "nsight-report show CAPTURE MESSAGE" if Path(text).is_dir() else "give its number, or slowest"
        raise UsageError(f"{text!r} is not a message ID", hint)
    try:
        return capture.message(int(text))
    except KeyError:
        raise no_message(int(text), capture.diagnosed_messages.num_rows) from None


def _request(capture: CaptureTables, message: pd.Series[Any]) -> dict[str, Any] | None:
    """The request that contains the message, or the first of several that may contain it."""
    number, conn = int(message["message_id"]), int(message["conn_id"])

    def around(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
        inside = (rows["request_id"] <= number) & (rows["last_reply_message_id"] >= number)
        return (inside & (rows["conn_id"] == conn)).to_numpy(bool)

    rows = capture.stored_requests.columns(("conn_id", *_REQUEST), around)
    ends = rows[["request_id", "last_message_id", "reply_message_id", "last_reply_message_id"]]
    rows = rows[(ends == number).any(axis=1)] if (ends == number).any(axis=None) else rows
    for row in each(rows.head(1)):
        named = {name: getattr(row, name) for name in _REQUEST}
        return {name: v if isinstance(v, str) else None if v == -1 else int(v) for name, v in named.items()}
    return None


def _covered(capture: CaptureTables, number: int) -> dict[str, Any]:
    names = ("baseline_latency_ns", "deviation_ns", "explained_ns", "located_ns", "coverage")
    rows = capture.coverage[capture.coverage["message_id"] == number]
    return {name: plain(rows.iloc[0][name]) if len(rows) else None for name in names}


def _segment(part: Any, calls: pd.DataFrame) -> dict[str, Any]:
    begins = calls["within_start_ns"]
    own = calls[(calls["cpu"] == part.cpu) & (begins >= part.start_ns) & (begins < part.end_ns)]
    gap = own["kind"].astype(str) == "gap"
    known = int(own["within_self_ns"].sum()) - int(own.loc[gap, "within_self_ns"].sum())
    outer = own[~own["parent_id"].isin(own["call_id"])]
    sums = outer.groupby([outer["kind"].astype(str), outer["symbol"].astype(str)])["within_dur_ns"].sum()
    return {
        "side": part.side,
        "cpu": part.cpu,
        "start_ns": part.start_ns,
        "dur_ns": part.end_ns - part.start_ns,
        "known_ns": known,
        "on_core": [
            {"kind": str(kind), "name": str(name), "ns": int(ns)}
            for (kind, name), ns in sums.sort_values(ascending=False, kind="stable").items()  # type: ignore[misc]
            if ns
        ],
    }


def _neighbours(capture: CaptureTables, message: pd.Series[Any]) -> dict[str, Any]:
    """The messages before and after on its connection, and messages in progress meanwhile on its thread or core."""
    number, first, last, tid, conn = (
        int(message[n]) for n in ("message_id", "first_ns", "last_ns", "tid", "conn_id")
    )
    core = -2 if pd.isna(message["app_cpu"]) else int(message["app_cpu"])  # -1: unknown for another message

    def same_connection(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
        return ((rows["conn_id"] == conn) & (rows["direction"] == message["direction"])).to_numpy(bool)

    def at_the_time(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
        shared = (rows["tid"] == tid) | (rows["app_cpu"] == core)
        under_way = (rows["first_ns"] < last) & (rows["last_ns"] > first) & (rows["message_id"] != number)
        return (shared & under_way & (rows["direction"] == message["direction"])).to_numpy(bool)

    every = capture.diagnosed_messages.columns(
        _NEIGHBOUR, lambda rows: same_connection(rows) | at_the_time(rows)
    )
    same = every[same_connection(every)]
    before = same[(same["first_ns"] <= first) & (same["message_id"] < number)].tail(1)
    after = same[(same["first_ns"] >= first) & (same["message_id"] > number)].head(1)
    meanwhile = every[at_the_time(every)].sort_values("last_ns", kind="stable")

    def brief(m: Any) -> dict[str, Any]:
        return {
            **record(m, "message_id", "latency_ns"),
            "began_ns": int(m.first_ns) - first,
            "ended_ns": int(m.last_ns) - first,
            "comm": str(m.comm),
            "same_thread": bool(m.tid == tid),
        }

    ahead = meanwhile[meanwhile["last_ns"] <= last]
    return {
        "before": next((brief(m) for m in each(before)), None),
        "after": next((brief(m) for m in each(after)), None),
        "n_meanwhile": len(meanwhile),
        "n_finished_first": len(ahead),
        "meanwhile": [brief(m) for m in each(meanwhile.head(_NEAR))],
    }


# -- for people -------------------------------------------------------------------------------


def print_for_people(made: dict[str, Any], console: Console) -> None:
    """The same as text."""
    m = made["message"]
    done = {"rx": "received by", "tx": "sent by", "interval": "interval of", REQUEST: "read by"}[
        m["direction"]
    ]
    what = thing(str(m["direction"]))
    title = (
        f"{what} {m['message_id']}: {duration(m['latency_ns'])}, {done} {printable(m['comm'])}[{m['tid']}]"
    )
    if m["request_type"]:
        title += f", {printable(m['request_type'])}"
    console.print(Text(title, style="bold"))
    if m["direction"] != "interval":
        peer = f"connection {m['conn_id']}: port {m['lport']}, peer {printable(m['raddr'])}:{m['rport']}"
        console.print(Text(f"  {peer}, fd {m['fd']}, {m['nbytes']:,} bytes"), soft_wrap=True)
    console.print(Text("  " + _standing(made)), soft_wrap=True)
    if made["request"]:
        console.print(Text("  " + _of_request(made["request"])), soft_wrap=True)
    hands.print_for_people(made["request_work"], console)
    _print_ways(made, console)
    _print_marks(made, console)
    _print_segments(made, console)
    _print_causes(made, console)
    _print_calls(made, console)
    _print_neighbours(made, console)


def _standing(made: dict[str, Any]) -> str:
    if made["coverage"] == 1 and not made["causes"]:
        return f"{no_cause(1)} (usual: {duration(made['baseline_latency_ns'])})"
    if made["coverage"] is not None:
        beyond = sum(c["took_ns"] - c["deviation_ns"] for c in made["causes"])
        return (
            f"{duration(made['deviation_ns'])} more than usual ({duration(made['baseline_latency_ns'])}); the causes "
            f"below explain {percent(made['coverage'])} of it, locate {duration(made['located_ns'])}, and leave "
            f"{duration(made['deviation_ns'] - made['explained_ns'] - made['located_ns'])}"
            + (
                f"; {duration(beyond)} of what they took was offset by savings elsewhere"
                if beyond > 0
                else ""
            )
        )
    number = made["message"]["message_id"]
    is_baseline = made["role"] == "baseline"
    what = "it is a baseline message" if is_baseline else "it is not among the slow messages"
    return f"{what}, so its causes were not analysed (slow {made['slow']}; --slow id:{number} explains it)"


def _of_request(r: dict[str, Any]) -> str:
    order = OF_CLIENT if r["role"] == "client" else NAMES
    parts = ", ".join(f"{name} {duration(r[f'{name}_dur_ns'])}" for name in order)
    parent = "" if r["parent_request_id"] is None else f", sent during request {r['parent_request_id']}"
    whose = "sent" if r["role"] == "client" else "received"
    return f"request {r['request_id']}, {whose}{parent}: {duration(r['latency_ns'])} ({parts}), reply from message {r['reply_message_id']} on"


def _title(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold"))


def _print_ways(made: dict[str, Any], console: Console) -> None:
    """What nsight-capsule saw of its packets: before it arrived, or after it was sent."""
    if made["ways_problem"]:
        console.print(
            Text(f"  its packets are unknown: {printable(made['ways_problem'], 400)}"), soft_wrap=True
        )
    if not made["ways"]:
        return
    received = made["message"]["direction"] == "rx"
    _title(console, "Way of its packets before it arrived" if received else "Way of its packets")
    table = columns(console, ">packet", ">time", "layer", "what", "")
    for way in made["ways"]:
        again = ", sent again" if way["again"] else ""
        table.add_row(
            f"{way['packet']:,}", bounded(way["latency_ns"], way["bound_ns"]), f"whole{again}", "", ""
        )
        for layer in way["layers"]:
            share = layer["ns"] / way["latency_ns"] if way["latency_ns"] else 0.0
            table.add_row(
                "", bounded(layer["ns"], layer["bound_ns"]), Text(printable(layer["layer"])), Text(printable(layer["what"])), bar(console, share)
            )  # fmt: skip
    print_table(console, table)


def _print_marks(made: dict[str, Any], console: Console) -> None:
    _title(console, "Timestamps")
    table = columns(console, "timestamp", ">since the first", ">step", "core", "")
    last = 0
    whole = max(made["message"]["latency_ns"], 1)
    for mark in made["marks"]:
        at = mark["since_first_ns"]
        core = "" if mark["cpu"] is None else f"core {mark['cpu']}"
        table.add_row(
            mark["name"], duration(at), duration(at - last), core, bar(console, (at - last) / whole)
        )
        last = at
    print_table(console, table)


def _print_segments(made: dict[str, Any], console: Console) -> None:
    _title(console, "On its cores")
    names = {"R": "(R) receive core", "A": "(A) application core", "T": "(T) transmit, core"}
    for s in made["segments"]:
        unknown = s["dur_ns"] - s["known_ns"]
        blank = f", {duration(unknown)} untraced" if unknown > 0 else ""
        console.print(f"  {names[s['side']]} {s['cpu']}: {duration(s['dur_ns'])}{blank}")
        for part in s["on_core"][:6]:
            kind = "" if part["kind"] in ("idle", part["name"]) else f"{part['kind']} "
            console.print(
                Text(f"      {duration(part['ns']):>8}  {kind}{printable(part['name'])}"), soft_wrap=True
            )
    if not made["segments"]:
        console.print("  no timestamp tells which core it was on")


def _print_causes(made: dict[str, Any], console: Console) -> None:
    if made["coverage"] is None or (made["coverage"] == 1 and not made["causes"]):
        return
    _title(console, "Causes, with where they show")
    first = made["message"]["first_ns"]
    for c in made["causes"]:
        console.print(
            Text(f"  {printable(c['cause'])} +{duration(c['deviation_ns'])}", style="red")
            + Text(f"  {_claim(c)}", style="default"),
            soft_wrap=True,
        )
        span = duration(c["end_ns"] - c["start_ns"])
        core = "no core" if c["cpu"] < 0 else f"core {c['cpu']}"
        where = f"longest interval: {span} from {_signed(c['start_ns'] - first)} on {core}"
        if c["other_message_id"] >= 0:
            where += f", in the processing of message {c['other_message_id']}"
        console.print(Text("      " + where), soft_wrap=True)
        if c["path"] and c["kind"] != "wait":
            how = "mostly in" if c["kind"] in ("thread", "sibling") else "called through"
            console.print(Text(f"      {how} {printable(c['path'], 400)}", style="dim"), soft_wrap=True)
    if not made["causes"]:
        console.print("  " + no_cause(made["coverage"]))


def _claim(c: dict[str, Any]) -> str:
    if c["kind"] == "wait" and c["path"]:
        return f"{printable(c['path'], 400)} ({duration(c['observed_ns'])}, usually {duration(c['baseline_ns'])})"
    subject = printable(c["subject"])
    spent = f"{duration(c['observed_ns'])}, usually {duration(c['baseline_ns'])}"
    if c["anomaly"] == "frequent":
        return f"{subject} was called {c['n_calls']} times, usually {c['baseline_n_calls']} ({spent})"
    words = {
        "context": f"{c['kind']} {subject}" if c["kind"] != subject else subject,
        "unexpected": f"{subject}, which usual messages do not call",
        "slower": f"{subject} took longer",
        "gap": f"CPU idle or stalled: {subject}",
        "hol": f"{subject} was busy with another message of the same application",
        "interference": f"{subject} was busy with another application's message",
    }
    return f"{words.get(c['anomaly'], subject)} ({spent})"


def _print_calls(made: dict[str, Any], console: Console) -> None:
    if not made["calls"]:
        return
    _title(console, "Where the time went (! marks a cause)")
    for text, cause in lines(made["calls"], max(made["message"]["latency_ns"], 1)):
        console.print(Text(text, style="red" if cause else ""), no_wrap=True, overflow="ellipsis", crop=True)


def _print_neighbours(made: dict[str, Any], console: Console) -> None:
    near = made["neighbours"]
    _title(console, "Neighbours")
    for name in ("before", "after"):
        n = near[name]
        if n:
            began = f"began {duration(abs(n['began_ns']))} {'earlier' if n['began_ns'] < 0 else 'later'}"
            console.print(
                f"  {name} it on the connection: message {n['message_id']}, {duration(n['latency_ns'])}, {began}"
            )
    if not near["n_meanwhile"]:
        console.print("  no other message was under way on its thread or core")
        return
    console.print(
        f"  under way meanwhile on its thread or core: {near['n_meanwhile']:,}; of these {near['n_finished_first']:,} "
        "were read before it"
    )
    for n in near["meanwhile"]:
        whose = "" if n["same_thread"] else f", {printable(n['comm'])}"
        console.print(
            Text(
                f"      message {n['message_id']}: from {_signed(n['began_ns'])} to {_signed(n['ended_ns'])}{whose}"
            ),
            soft_wrap=True,
        )
    if near["n_meanwhile"] > len(near["meanwhile"]):
        console.print(f"      and {near['n_meanwhile'] - len(near['meanwhile']):,} more", style="dim")


def _signed(ns: int) -> str:
    return ("+" if ns >= 0 else "") + duration(ns)
