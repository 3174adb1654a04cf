# SPDX-License-Identifier: GPL-2.0-only
"""The calls of one message as a tree: calls with one name under one caller are one node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ..export.call_events import names
from ..names import printable, thread_name
from ..units import duration, percent

_WIDE = 0.95  # share of its caller's time from which both share a line
_LINES = 60


@dataclass
class Node:
    """Calls of ``name`` through one path; times within the message, in ns."""

    side: str
    kind: str
    name: str
    cause: str | None = None
    ns: int = 0
    self_ns: int = 0
    n_calls: int = 0
    children: dict[tuple[str, str], Node] = field(default_factory=dict)

    def walk(self, least_ns: int) -> Iterator[tuple[Node, int]]:
        """The node and the nodes below it that took ``least_ns`` or more, longest first, with their depth below it."""
        ahead = [(self, 0)]  # no recursion: a parser's own can be deeper than Python's
        while ahead:
            node, depth = ahead.pop()
            if node.ns >= least_ns:
                yield node, depth
                children = sorted(node.children.values(), key=lambda c: -c.ns)
                ahead += [(child, depth + 1) for child in reversed(children)]


def tree(calls: pd.DataFrame, anomalies: pd.DataFrame) -> list[Node]:
    """The outermost nodes, in order of side and time. ``calls``: from ``calls_of``; ``anomalies``: of the message."""
    causes = {
        (str(a.side), str(a.subject)): f"{a.category} ({a.side})"
        for a in anomalies.itertuples(index=False)
        if a.anomaly not in ("hol", "interference")  # their subject is a thread's whole time
    }
    which, shown = names(calls)
    asked = [thread_name(text) for _, text in shown]
    roots: dict[tuple[str, str, str], Node] = {}
    place: dict[tuple[str, int], Node] = {}
    columns = ("side", "call_id", "parent_id", "within_dur_ns", "within_self_ns")
    for side, call, parent, ns, own, name in zip(*(calls[c].tolist() for c in columns), which.tolist()):
        kind, text = shown[name]
        caller = place.get((side, parent))
        if caller is None:
            node = roots.setdefault(
                (side, kind, text), Node(side, kind, text, causes.get((side, asked[name])))
            )
        else:
            node = caller.children.setdefault(
                (kind, text), Node(side, kind, text, causes.get((side, asked[name])))
            )
        node.ns += ns
        node.self_ns += own
        node.n_calls += 1
        place[side, call] = node
    order = {"R": 0, "A": 1, "T": 2}
    return sorted(roots.values(), key=lambda n: (order.get(n.side, 3), -n.ns))


def lines(calls: list[dict[str, Any]], whole_ns: int) -> Iterator[tuple[str, str | None]]:
    """Lines for the nodes of ``show --json``, with the cause if one is marked. Callers that do nothing else share a line."""
    levels: dict[int, int] = {}  # depth in the tree to depth on paper
    shown, i = 0, 0
    while i < len(calls) and shown < _LINES:
        head = last = calls[i]
        parts, cause = [_text(head)], head["cause"]
        while i + 1 < len(calls) and _same_time(last, calls[i + 1]):
            i += 1
            last = calls[i]
            parts.append(_text(last))
            cause = cause or last["cause"]
        level = levels[head["depth"] - 1] + 1 if head["depth"] else 0
        levels |= dict.fromkeys(range(head["depth"], last["depth"] + 1), level)
        if len(parts) > 4:
            parts = [*parts[:2], f"... {len(parts) - 3} more ...", parts[-1]]
        times = f" x{last['n_calls']:,}" if last["n_calls"] > 1 else ""
        mark = "!" if cause else " "
        text = f"{mark} {duration(head['ns']):>8} {percent(head['ns'] / whole_ns):>4}  {'  ' * level}"
        side = f"({head['side']}) " if head["depth"] == 0 else ""
        note = f"   <- {printable(cause)}" if cause else ""
        yield f"{text}{side}{' > '.join(parts)}{times}{note}", cause
        shown += 1
        i += 1
    if i < len(calls):
        yield f"  and {len(calls) - i:,} more: see --json, or --least", None


def _text(call: dict[str, Any]) -> str:
    kind = (
        ""
        if call["kind"] in ("function", "gap", "stall") or call["kind"] == call["name"]
        else f"{call['kind']} "
    )
    return kind + printable(call["name"], 60)


def _same_time(caller: dict[str, Any], callee: dict[str, Any]) -> bool:
    below = callee["depth"] == caller["depth"] + 1
    return bool(below and callee["ns"] >= _WIDE * caller["ns"] and callee["n_calls"] == caller["n_calls"])
