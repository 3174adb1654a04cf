# SPDX-License-Identifier: GPL-2.0-only
"""The data of a report page, as JSON: messages in columns, causes, and lifetimes of single messages.

Names in it come from the capture. ``embedded`` makes JSON that cannot end its script element.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..calls.stacks import SEPARATOR, mean_stacks
from ..names import printable
from ..plots import cdf, timeline
from ..plots.causes import details
from ..plots.figures import Sheet
from ..plots.folding import WRAPPER
from ..summary import peer_of, selected
from ..tables.data_frames import cause_names, each, words
from ..waits.phrases import certain, handed

#: Default number of lifetimes in a page: those of the slowest messages, and of the slowest of each cause.
MOST_LIFETIMES = 150
#: Byte limit for any requested number of lifetimes; less if the page would exceed MOST_BYTES.
MOST_LIFETIME_BYTES = 8_000_000
#: A page stays below 20 MB for any capture: messages, slowest, their evidence and figures leave room for lifetimes.
MOST_BYTES = 19_000_000
#: Number of messages in the chart besides the slowest: evenly spaced if there are more.
MOST_DOTS = 150_000
#: Number of slow messages in the page; beyond it, the less important ones are dots.
MOST_SLOW = 30_000
#: Bytes of evidence of what delayed each slow message; the less important ones have only the amount of each cause.
MOST_EVIDENCE_BYTES = 4_000_000
_PER_CAUSE = 3
_MOST_CONNECTIONS = 300  # in the filter; messages of other connections have none there
_TREE = 250  # maximum number of call paths in a message's call tree
_LEAST = 0.003  # minimum share of a message's latency for a call path in its tree
_NAME = 160

KINDS = (
    "own thread",
    "thread",
    "syscall",
    "softirq",
    "hardirq",
    "exception",
    "function",
    "stall",
    "idle",
    "gap",
    "absent",
)


def embedded(value: object) -> str:
    """``value`` as JSON for a script element: no character in it can end the element or begin a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def overview(sheet: Sheet) -> dict[str, Any]:
    """Everything but the lifetimes. Times in ns; ``id`` and ``first_us`` of messages as differences to the previous one."""
    capture = sheet.capture
    kept = chosen(sheet, MOST_SLOW)
    messages = _thinned(sheet.messages.sort_values("message_id"), kept)
    causes = _causes(sheet)
    number = {cause["name"]: i for i, cause in enumerate(causes)}
    connection, connections = _connections(messages)
    first = messages["first_ns"].to_numpy(np.int64)
    origin = int(first.min()) if len(first) else 0
    ids = messages["message_id"].to_numpy(np.int64)
    slowest, texts = _slow(sheet, number, kept)
    return {
        "messages": {
            "id": _steps(ids),
            "first_us": _steps((first - origin) // 1000),
            "latency": messages["latency_ns"].to_numpy(np.int64).tolist(),
            "connection": connection.tolist(),
            "recv_cpu": _core(messages["recv_cpu"]),
            "app_cpu": _core(messages["app_cpu"]),
        },
        "connections": connections,
        "n_connections": int(messages["conn_id"].nunique()),
        "causes": causes,
        "slow": slowest,
        "texts": texts,
        "captures": _captures(sheet),
        "mode": sheet.summary.mode,
        "name": printable(capture.name),
    }


def left_out(data: dict[str, Any], sheet: Sheet) -> list[str]:
    """What ``overview`` has no room for, in words."""
    slowest, n_slow = len(data["slow"]), len(sheet.capture.coverage)
    n_dots, n_others = len(data["messages"]["id"]) - slowest, len(sheet.messages) - slowest
    explained = sum("why" in slow for slow in data["slow"])
    found = []
    if slowest < n_slow:
        found.append(
            f"Balloons and list have {slowest:,} of the {n_slow:,} slow messages: the slowest, and the three that each "
            "cause delayed most; others are dots."
        )
    if n_dots < n_others:
        found.append(f"Grey dots are {n_dots:,} of {n_others:,} other messages, evenly spaced.")
    if explained < slowest:
        found.append(
            f"What exactly delayed a message is here for {explained:,} slow messages; for the others only how much each cause "
            "added, and nsight-report show tells the rest."
        )
    return found


def _thinned(messages: pd.DataFrame, slowest: list[int]) -> pd.DataFrame:
    """``messages`` with at most MOST_DOTS messages that are not among the slowest."""
    slow = messages["message_id"].isin(slowest).to_numpy(bool)
    others = np.flatnonzero(~slow)
    if len(others) <= MOST_DOTS:
        return messages
    spaced = others[np.linspace(0, len(others) - 1, MOST_DOTS).astype(np.int64)]
    return messages.iloc[np.sort(np.concatenate([np.flatnonzero(slow), spaced]))]


def _steps(values: npt.NDArray[np.int64]) -> list[int]:
    return np.diff(values, prepend=0).tolist()  # type: ignore[no-any-return]


def _core(cpus: pd.Series[Any]) -> list[int]:
    return cpus.fillna(-1).astype("int64").tolist()


def _causes(sheet: Sheet) -> list[dict[str, Any]]:
    names = list(sheet.look)
    every = sheet.capture.anomalies
    # Per message, not per interval, like the table's other columns.
    sums = every["deviation_ns"].astype("int64").groupby([cause_names(every), every["message_id"]]).sum()
    values = {str(name): group.tolist() for name, group in sums.groupby(level=0)}
    return [
        {
            "name": printable(name),
            "colour": look.colour,
            "marker": look.marker,
            "box": _box(values.get(name, [])),
        }
        for name, look in ((name, sheet.look[name]) for name in names)
    ]


def _box(values: list[int]) -> list[int]:
    """Minimum, 5th percentile, quartiles, 95th percentile, maximum."""
    return np.percentile(values, [0, 5, 25, 50, 75, 95, 100]).astype(int).tolist() if values else []


def _connections(messages: pd.DataFrame) -> tuple[npt.NDArray[np.int64], list[str]]:
    counts = messages["conn_id"].value_counts()
    kept = counts.index[:_MOST_CONNECTIONS].to_numpy(np.int64)
    ends = messages.drop_duplicates("conn_id").set_index("conn_id")
    labels = []
    for number in kept.tolist():
        of = ends.loc[number]
        to = "" if of["direction"] == "interval" else f" to port {of['lport']}"
        labels.append(printable(f"{peer_of(of)}{to}", 100))
    return pd.Index(kept).get_indexer(pd.Index(messages["conn_id"].to_numpy(np.int64))), labels


def _slow(sheet: Sheet, number: dict[str, int], kept: list[int]) -> tuple[list[dict[str, Any]], list[str]]:
    """Slow messages ``kept``, slowest first, each with what delayed it; and the texts, to which it refers by position.

    ``why``: anomalies, largest first: cause, ns, text, observed and usual ns, core, other message, text of the path. Where
    there is no more room for it, counted from the first of ``kept``, ``brief``: cause and ns.
    """
    texts = _Texts()
    anomalies = _Evidence(sheet.capture.anomalies, number, set(kept))
    told: dict[int, dict[str, Any]] = {}
    size = 0
    for slow in kept:
        if size + texts.size < MOST_EVIDENCE_BYTES:
            why = anomalies.why(slow, texts)
            size += len(embedded(why))
            told[slow] = {"why": why}
        else:
            told[slow] = {"brief": anomalies.brief(slow)}
    slowest = [
        {
            "id": int(c.message_id),
            "deviation": int(c.deviation_ns),
            "usual": int(c.baseline_latency_ns),
            "coverage": None if pd.isna(c.coverage) else round(float(c.coverage), 4),
            **told[int(c.message_id)],
        }
        for c in each(sheet.capture.coverage.sort_values("latency_ns", ascending=False, kind="stable"))
        if c.message_id in told
    ]
    return slowest, list(texts.places)


class _Texts:
    """Texts, each once; ``places``: position in the page's list of them, ``size`` in its bytes."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.size = 0

    def place(self, text: str) -> int:
        if text not in self.places:
            self.places[text] = len(self.places)
            self.size += len(embedded(text)) + 1
        return self.places[text]


class _Evidence:
    """Anomalies of some messages in plain types: a row of a DataFrame costs a millisecond."""

    def __init__(self, anomalies: pd.DataFrame, number: dict[str, int], wanted: set[int]) -> None:
        own = anomalies[anomalies["message_id"].isin(wanted)]
        own = own.sort_values("deviation_ns", ascending=False, kind="stable")
        self._rows_of = own.groupby(own["message_id"].to_numpy(np.int64)).indices
        self._cause = [number.get(printable(name), -1) for name in cause_names(own)]
        names = ("deviation_ns", "observed_ns", "baseline_ns", "cpu", "other_message_id")
        self._numbers = {name: own[name].fillna(-1).to_numpy(np.int64).tolist() for name in names}
        self._detail, self._path = words(details(own)).tolist(), words(own["path"]).tolist()

    def why(self, message: int, texts: _Texts) -> list[list[int]]:
        """See ``_slow``."""
        of = self._numbers
        return [
            [self._cause[i], of["deviation_ns"][i], texts.place(printable(self._detail[i], _NAME)), of["observed_ns"][i],
             of["baseline_ns"][i], of["cpu"][i], of["other_message_id"][i], texts.place(printable(self._path[i], 2 * _NAME))]
            for i in self._rows(message)
        ]  # fmt: skip

    def brief(self, message: int) -> list[list[int]]:
        """See ``_slow``."""
        found = Counter[int]()
        for i in self._rows(message):
            found[self._cause[i]] += self._numbers["deviation_ns"][i]
        return [[cause, ns] for cause, ns in found.most_common()]

    def _rows(self, message: int) -> list[int]:
        return [int(i) for i in self._rows_of.get(message, ())]


def _captures(sheet: Sheet) -> list[dict[str, Any]]:
    """The distribution of this capture, and of the one with which it is compared."""
    frames = [(sheet.capture, sheet.messages)]
    if sheet.capture.other is not None:
        frames.append((sheet.capture.other, selected(sheet.capture.other, ["latency_ns"])))
    return [
        {"name": printable(c.name), "n": len(m), "latency": rows["latency_ns"].tolist(),
         "percent": [round(p, 5) for p in rows["percent"].tolist()]}
        for c, m in frames
        for rows in (cdf.rows(m),)
    ]  # fmt: skip


def chosen(sheet: Sheet, most: int) -> list[int]:
    """Up to ``most`` messages whose lifetimes are in the page, the most important first."""
    rows = sheet.capture.coverage.sort_values("latency_ns", ascending=False, kind="stable")
    every = sheet.capture.anomalies
    worst = (
        pd.DataFrame({"id": every["message_id"], "cause": cause_names(every), "ns": every["deviation_ns"]})
        .sort_values("ns", ascending=False, kind="stable")
        .groupby("cause", sort=False)
        .head(_PER_CAUSE)
    )
    ids = [int(slow.row["message_id"]) for slow in sheet.summary.slowest]
    ids += [int(i) for i in worst["id"]] + [int(i) for i in rows["message_id"]]
    return list(dict.fromkeys(ids))[:most]


def lifetimes(sheet: Sheet, most: int | None = None, room: int | None = None) -> dict[int, str]:
    """The lifetimes of ``chosen`` messages as JSON: ``most`` (else MOST_LIFETIMES), or as many as fit in ``room``.

    ``room``: bytes, else MOST_LIFETIME_BYTES.
    """
    room = MOST_LIFETIME_BYTES if room is None else room
    usual = sheet.paths.stacks.set_index("path")["baseline_ns"] if sheet.paths.n_baseline else None
    numbers = np.array(chosen(sheet, MOST_LIFETIMES if most is None else most), np.int64)
    wanted = numbers[np.isin(numbers, sheet.messages["message_id"].to_numpy())].tolist()
    stored = sheet.capture.diagnosed_messages
    drawn = timeline.Timelines(stored.columns(timeline.OF_MESSAGES), sheet.capture.anomalies)
    made: dict[int, str] = {}
    # Neighbours in time are neighbours in the file.
    in_order = sorted(wanted)
    rows = stored.rows(np.array(in_order, np.int64))
    read = sheet.capture.lifetimes(in_order, timeline.OF_CALLS)
    where = sheet.capture.intervals(rows)
    hands = _hands(sheet.capture.work(in_order))
    for at, (number, calls) in enumerate(zip(in_order, read, strict=True)):
        message = rows.iloc[at]
        life = _lifetime(message, calls, drawn.parts(message, where[at], calls), usual)
        ways = _ways(sheet.capture.ways.packets_of(number))
        made[number] = embedded({**life, "ways": ways, "hands": hands.get(number, [])})
    sizes = np.cumsum([len(made[number]) for number in wanted])
    return {number: made[number] for number, size in zip(wanted, sizes) if size <= room}


def _hands(work: pd.DataFrame) -> dict[int, list[list[Any]]]:
    """For each request, the threads that had it, in turn: thread, ns since the read, ns, how it got the request, with which confidence.

    Left out for a request that one thread did, with nothing else in hand.
    """
    found: dict[int, list[list[Any]]] = {}
    for number, parts in work.groupby("request_id"):
        begin = int(parts["start_ns"].iloc[0])
        if len(parts) > 1 or parts["sure"].iloc[0] != "measured":
            found[int(str(number))] = [
                [printable(f"{p.comm}[{p.tid}]", _NAME), int(p.start_ns) - begin, int(p.end_ns - p.start_ns),
                 printable(handed(p.how), _NAME), certain(p.sure)]
                for p in each(parts)
            ]  # fmt: skip
    return found


def _ways(packets: list[dict[str, Any]]) -> list[list[Any]]:
    """For each packet of a message: number, ns, error bound (-1: unknown), whether it was sent again, layers: name, what, ns, bound."""

    def known(bound: int | None) -> int:
        return -1 if bound is None else bound

    return [
        [p["packet"], p["latency_ns"], known(p["bound_ns"]), p["again"],
         [[printable(of["layer"], _NAME), printable(of["what"], _NAME), of["ns"], known(of["bound_ns"])] for of in p["layers"]]]
        for p in packets
    ]  # fmt: skip


def _lifetime(
    message: pd.Series[Any], calls: pd.DataFrame, rows: list[timeline.Part], usual: pd.Series[float] | None
) -> dict[str, Any]:
    origin = int(message["first_ns"])
    track = timeline.tracks(message)
    order = {cpu: i for i, cpu in enumerate(track)}
    names: dict[str, int] = {}
    boxes: list[list[int]] = []
    parts = ("marks", "intervals", "anomalies", "others", "left_out")
    found: dict[str, list[Any]] = {name: [] for name in parts}
    for r in rows:
        what = r["what"]
        if what == "left out":
            found["left_out"].append(r["name"])
            continue
        start, end = int(r["start_ns"]) - origin, int(r["end_ns"]) - origin
        name = printable(r["name"], _NAME)
        if what == "call":
            inferred = not {"inferred", "missing"}.isdisjoint((r["start_known"], r["end_known"]))
            boxes.append(
                [order[r["cpu"]], r["level"], start, end, KINDS.index(r["kind"]) if r["kind"] in KINDS else 6,
                 names.setdefault(name, len(names)), (1 if inferred else 0) + (2 if r["red"] else 0)]
            )  # fmt: skip
        elif what == "mark":
            found["marks"].append([name, (start + end) // 2, (end - start) // 2])
        elif what == "interval":
            found["intervals"].append([order[int(r["cpu"])], start, end])
        elif what == "anomaly":
            core = timeline.track_of_cause(None if pd.isna(r["cpu"]) else int(r["cpu"]), r["track"], track)
            if core is not None:
                found["anomalies"].append([order[core], start, end, f"{name} {r['note']}"])
        else:
            found["others"].append([name, start, end])
    return {
        "latency": int(message["latency_ns"]),
        "tracks": [[int(cpu), side] for cpu, side in track.items()],
        "kinds": KINDS,
        "names": list(names),
        "boxes": boxes,
        **found,
        "tree": _tree(calls, int(message["latency_ns"]), usual),
    }


def _tree(calls: pd.DataFrame, latency: int, usual: pd.Series[float] | None) -> list[list[Any]]:
    """Call paths of one message, callers first: depth, name, ns, own ns, calls, usual ns (of baseline messages)."""
    stacks = mean_stacks([calls])
    stacks = stacks[stacks["total_ns"] >= latency * _LEAST]
    stacks = stacks.loc[stacks["total_ns"].nlargest(_TREE).index].sort_values("path", kind="stable")
    children: dict[str, list[Any]] = {}
    for s in each(stacks):
        children.setdefault(s.path.rpartition(SEPARATOR)[0], []).append(s)
    found: list[list[Any]] = []
    todo = [(s, 0) for s in reversed(children.get("", []))]
    while todo:
        s, depth = todo.pop()
        names, first = [s.name], s
        inside = children.get(s.path, [])
        # Callers that only call share a line.
        while depth and len(inside) == 1 and inside[0].total_ns >= WRAPPER * first.total_ns:
            s = inside[0]
            names.append(s.name)
            inside = children.get(s.path, [])
        name = printable(timeline.WRAPS.join(dict.fromkeys(names)), 2 * _NAME)
        known = None if usual is None else int(usual.get(first.path, 0.0))
        found.append([depth, name, int(first.total_ns), int(s.self_ns), int(first.n_calls), known])
        todo += [(child, depth + 1) for child in reversed(inside)]
    return found
