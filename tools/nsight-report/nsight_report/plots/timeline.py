# SPDX-License-Identifier: GPL-2.0-only
"""The lifetime of one message (Figs. 5 and 8 of the paper): what its cores did from stamp to stamp.

``rows`` collects everything that is drawn, so that the CSV beside the figure is the evidence.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from ..frames import each
from ..units import duration

# What is drawn at most; beyond it the shortest boxes are left out, and the title says so.
_MOST_BOXES = 4000
_MOST_MESSAGES = 10
_MARGIN = 0.04  # of the lifetime, shown before and after it

COLUMNS = (
    "what",
    "lane",
    "cpu",
    "depth",
    "kind",
    "name",
    "start_ns",
    "end_ns",
    "start_known",
    "end_known",
    "note",
)

_MARKS = {
    "rx": (("nic_ns", "NIC"), ("arrival_ns", "arrival"), ("handoff_ns", "hand-off"), ("app_ns", "read")),
    "tx": (
        ("call_ns", "send call"),
        ("app_ns", "send done"),
        ("driver_ns", "driver"),
        ("completion_ns", "NIC done"),
    ),
}


def rows(
    message: pd.Series[Any], calls: pd.DataFrame, messages: pd.DataFrame, anomalies: pd.DataFrame
) -> pd.DataFrame:
    """What is drawn for ``message`` (a row of messages): calls of its cores, its stamps, its anomalies,
    and the messages of the same thread or core that were under way.

    ``what`` is call, mark, anomaly or message; times are clipped to the lifetime and its margin.
    """
    first, last = int(message["first_ns"]), int(message["last_ns"])
    margin = max(int((last - first) * _MARGIN), 200)
    low, high = first - margin, last + margin
    found = [
        *_calls(message, calls, low, high),
        *_anomalies(message, anomalies, low, high),
        *_marks(message),
        *_messages(message, messages, low, high),
    ]
    return pd.DataFrame(found, columns=list(COLUMNS)).astype(
        {"cpu": "Int32", "depth": "Int32", "start_ns": "Int64", "end_ns": "Int64"}
    )


def lanes(message: pd.Series[Any]) -> dict[int, str]:
    """Core to lane name: the receive core (R) and the application core (A), which may be one."""
    receive, app = message["recv_cpu"], message["app_cpu"]
    if pd.isna(receive) and pd.isna(app):
        return {}
    if pd.isna(receive):
        return {int(app): "A"}
    if pd.isna(app) or int(receive) == int(app):
        return {int(receive): "R and A"}
    return {int(receive): "R", int(app): "A"}


def _calls(message: pd.Series[Any], calls: pd.DataFrame, low: int, high: int) -> list[dict[str, Any]]:
    lane = lanes(message)
    ends = calls["start_ns"] + calls["dur_ns"]
    hit = calls[(calls["start_ns"] < high) & (ends > low) & calls["cpu"].isin(list(lane))]
    left_out = len(hit) - _MOST_BOXES
    hit = hit.nlargest(_MOST_BOXES, "dur_ns", keep="first").sort_values(["cpu", "start_ns", "depth"])
    found = []
    for c in each(hit):
        own = c.kind == "thread" and c.tid == message["tid"]
        found.append(
            {
                "what": "call",
                "lane": lane[int(c.cpu)],
                "cpu": c.cpu,
                "depth": c.depth,
                "kind": "own thread" if own else c.kind,
                "name": c.symbol,
                "start_ns": max(int(c.start_ns), low),
                "end_ns": min(int(c.start_ns + c.dur_ns), high),
                "start_known": "cut" if c.start_ns < low else c.start_known,
                "end_known": "cut" if c.start_ns + c.dur_ns > high else c.end_known,
                "note": "",
            }
        )
    if left_out > 0:
        found.append(_row("left out", name=f"{left_out:,} shorter calls", start_ns=low, end_ns=high))
    return found


def _anomalies(message: pd.Series[Any], anomalies: pd.DataFrame, low: int, high: int) -> list[dict[str, Any]]:
    own = anomalies[anomalies["message_id"] == message["message_id"]]
    own = own[(own["start_ns"] < high) & (own["end_ns"] > low)].sort_values("deviation_ns", ascending=False)
    return [
        _row(
            "anomaly",
            lane=str(a.side),
            cpu=a.cpu,
            kind=str(a.anomaly),
            name=f"{a.category} ({a.side})",
            start_ns=max(int(a.start_ns), low),
            end_ns=min(int(a.end_ns), high),
            note=f"+{duration(int(a.deviation_ns))}",
        )
        for a in each(own)
    ]


def _marks(message: pd.Series[Any]) -> list[dict[str, Any]]:
    found = []
    for column, name in _MARKS[str(message["direction"])]:
        at = message[column]
        if pd.isna(at):
            continue
        error = message["nic_error_ns"] if column == "nic_ns" else 0
        error = 0 if pd.isna(error) else int(error)
        found.append(
            _row("mark", name=name, start_ns=int(at) - error, end_ns=int(at) + error,
                 note=f"+/- {duration(error)}" if error else "")
        )  # fmt: skip
    return found


def _messages(message: pd.Series[Any], messages: pd.DataFrame, low: int, high: int) -> list[dict[str, Any]]:
    """Messages of the same thread or application core that overlap, those read last before ours first."""
    same = (messages["tid"] == message["tid"]) | (messages["app_cpu"] == message["app_cpu"]).fillna(False)
    hit = messages[
        same
        & (messages["first_ns"] < high)
        & (messages["last_ns"] > low)
        & (messages["message_id"] != message["message_id"])
        & (messages["direction"] == message["direction"])
    ]
    left_out = len(hit) - _MOST_MESSAGES
    distance = (hit["last_ns"] - message["last_ns"]).abs()
    hit = hit.loc[distance.sort_values(kind="stable").index[:_MOST_MESSAGES]].sort_values("first_ns")
    found = [
        _row(
            "message",
            cpu=m.app_cpu,
            depth=i,
            name=f"message {m.message_id}",
            start_ns=max(int(m.first_ns), low),
            end_ns=min(int(m.last_ns), high),
            start_known="cut" if m.first_ns < low else "measured",
            end_known="cut" if m.last_ns > high else "measured",
            note=str(m.comm),
        )
        for i, m in enumerate(each(hit))
    ]
    if left_out > 0:
        found.append(_row("left out", name=f"{left_out:,} other messages", start_ns=low, end_ns=high))
    return found


def _row(what: str, **values: Any) -> dict[str, Any]:
    return {**dict.fromkeys(COLUMNS, ""), "cpu": pd.NA, "depth": pd.NA, **values, "what": what}
