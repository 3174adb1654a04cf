# SPDX-License-Identifier: GPL-2.0-only
"""The lifetime of one message (Figs. 5 and 8 of the paper): what its cores did from timestamp to timestamp.

``rows`` collects everything that is drawn, so that the CSV beside the figure is the evidence. A core is drawn
while the message is on it: the receive core up to the hand-off, the application core from then on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..names import thread_name
from ..stage import REQUEST, thing
from ..tables.data_frames import words
from ..units import counted, duration
from .folding import fold

if TYPE_CHECKING:
    from ..capture_tables import CaptureTables
    from ..timeline.calls_of_message import Interval

Ints = npt.NDArray[np.int64]
Part = dict[str, Any]  # one of COLUMNS to its value

_MOST_MESSAGES = 10  # maximum number of other messages drawn; the title says how many are left out
UNKNOWN = "[unknown]"
WRAPS = " > "  # between the names of calls that share a box
_MOST_OF_IT = 0.8  # share of a cause's deviation: a shorter interval does not represent all of it
_MARGIN = 0.04  # of the lifetime, shown before and after it

COLUMNS = (
    "what",
    "track",
    "cpu",
    "depth",
    "level",
    "kind",
    "name",
    "start_ns",
    "end_ns",
    "start_known",
    "end_known",
    "red",
    "note",
)

#: Columns of messages that show which other messages existed.
OF_MESSAGES = ("message_id", "first_ns", "last_ns", "tid", "app_cpu", "direction", "comm")
#: Columns of calls that are used.
OF_CALLS = (
    "call_id",
    "parent_id",
    "cpu",
    "tid",
    "depth",
    "kind",
    "symbol",
    "start_ns",
    "dur_ns",
    "start_known",
    "end_known",
)

_MARKS = {
    "rx": (("nic_ns", "NIC"), ("arrival_ns", "arrival"), ("handoff_ns", "hand-off"), ("app_ns", "read")),
    "tx": (
        ("call_ns", "send call"),
        ("app_ns", "send done"),
        ("driver_ns", "driver"),
        ("completion_ns", "NIC done"),
    ),
    "interval": (("call_ns", "begin"), ("handoff_ns", "hand-over"), ("app_ns", "end")),
    REQUEST: (
        ("nic_ns", "NIC"), ("arrival_ns", "arrival"), ("handoff_ns", "hand-off"), ("read_ns", "read"), ("send_ns", "send call"),
        ("left_ns", "driver"), ("completion_ns", "NIC done"),
    ),
}  # fmt: skip


def rows(capture: CaptureTables, message_id: int) -> pd.DataFrame:
    """What is drawn for a message: its calls, its timestamps, its causes, and messages on the same thread or core at that time.

    ``what`` is call, mark, interval (of a core that is the message's), anomaly, message or left out; times are
    clipped to the lifetime and its margin. ``depth`` is that of the call, ``level`` the level of its box;
    ``red`` marks the calls that an anomaly of the message names. Raises KeyError if there is no such message.
    """
    lifetime = capture.lifetime(message_id)
    found = capture.diagnosed_messages.rows(np.array([message_id]))
    drawn = Timelines(capture.diagnosed_messages.columns(OF_MESSAGES), capture.anomalies)
    return as_table(drawn.parts(found.iloc[0], capture.intervals(found)[0], lifetime))


def as_table(parts: list[Part]) -> pd.DataFrame:
    """Parts of ``Timelines`` as ``rows``."""
    return pd.DataFrame(parts, columns=list(COLUMNS)).astype(
        {"cpu": "Int32", "depth": "Int32", "level": "Int32", "start_ns": "Int64", "end_ns": "Int64"}
    )


@dataclass(frozen=True)
class _Anomaly:
    """One row of ``anomalies`` in plain types."""

    side: str
    cpu: int | None
    anomaly: str
    category: str
    subject: str
    start_ns: int
    end_ns: int
    deviation_ns: int


class Timelines:
    """Makes the rows of many messages of a capture; the lookup tables are built once.

    Uses plain arrays, since a row of a DataFrame costs a millisecond.
    """

    def __init__(self, messages: pd.DataFrame, anomalies: pd.DataFrame) -> None:
        self._id, self._first, self._last, self._tid = (
            messages[c].to_numpy(np.int64) for c in ("message_id", "first_ns", "last_ns", "tid")
        )
        self._app_cpu = messages["app_cpu"].fillna(-1).to_numpy(np.int64)
        self._direction, self._comm = words(messages["direction"]), words(messages["comm"])
        names = ("start_ns", "end_ns", "deviation_ns")
        self._times = [anomalies[name].to_numpy(np.int64) for name in names]
        self._words = [words(anomalies[name]) for name in ("side", "anomaly", "category", "subject")]
        self._cpu = anomalies["cpu"].fillna(-1).to_numpy(np.int64)
        self._anomalies_of = anomalies.groupby(anomalies["message_id"].to_numpy(np.int64)).indices

    def parts(self, message: pd.Series[Any], where: list[Interval], lifetime: pd.DataFrame) -> list[Part]:
        """The content of ``rows`` for one message, row by row. ``where``: its ``Capture.intervals``."""
        low, high = window(message)
        own = self._anomalies(int(message["message_id"]))
        return [
            *_intervals(where),
            *_calls(message, lifetime, own),
            *_anomalies(own, low, high),
            *_marks(message),
            *self._others(message, low, high),
        ]

    def _anomalies(self, number: int) -> list[_Anomaly]:
        rows = self._anomalies_of.get(number, np.zeros(0, np.int64))
        cpus = [None if cpu < 0 else cpu for cpu in self._cpu[rows].tolist()]
        side, anomaly, category, subject = (values[rows].tolist() for values in self._words)
        times = (values[rows].tolist() for values in self._times)
        return [_Anomaly(*row) for row in zip(side, cpus, anomaly, category, subject, *times, strict=True)]

    def _others(self, message: pd.Series[Any], low: int, high: int) -> list[Part]:
        """Overlapping messages of the same thread or application core; the last one read before ours comes first."""
        same = self._tid == message["tid"]
        if not pd.isna(message["app_cpu"]):
            same |= self._app_cpu == message["app_cpu"]
        hit = same & (self._first < high) & (self._last > low) & (self._id != message["message_id"])
        direction = str(message["direction"])
        at = np.flatnonzero(hit & (self._direction == direction))
        left_out = len(at) - _MOST_MESSAGES
        distance = np.abs(self._last[at] - int(message["last_ns"]))
        at = at[np.argsort(distance, kind="stable")[:_MOST_MESSAGES]]
        at = at[np.argsort(self._first[at], kind="stable")]
        found = []
        for depth, i in enumerate(at.tolist()):
            first, last = int(self._first[i]), int(self._last[i])
            found.append(
                _row(
                    "message",
                    cpu=pd.NA if self._app_cpu[i] < 0 else int(self._app_cpu[i]),
                    depth=depth,
                    name=f"{thing(direction)} {self._id[i]}",
                    start_ns=max(first, low),
                    end_ns=min(last, high),
                    start_known="cut" if first < low else "measured",
                    end_known="cut" if last > high else "measured",
                    note=str(self._comm[i]),
                )
            )
        if left_out > 0:
            found.append(_row("left out", name=counted(left_out, f"other {thing(direction)}")))
        return found


def window(message: pd.Series[Any]) -> tuple[int, int]:
    """Begin and end of the drawn time, in ns."""
    first, last = int(message["first_ns"]), int(message["last_ns"])
    margin = max(int((last - first) * _MARGIN), 200)
    return first - margin, last + margin


def tracks(message: pd.Series[Any]) -> dict[int, str]:
    """Core to track name: receive cores (R, two if it was handed off on another) and the application core (A); one may be both."""
    receive = [int(message[c]) for c in ("recv_cpu", "handoff_cpu") if not pd.isna(message[c])]
    app = None if pd.isna(message["app_cpu"]) else int(message["app_cpu"])
    found = {cpu: "R and A" if app in (None, cpu) else "R" for cpu in receive}
    found = found if app is None else {**found, app: found.get(app, "A")}
    # For a request, the sender's core and the core where it left.
    for name, side in (("send_cpu", "A"), ("driver_cpu", "T")):
        if name in message and not pd.isna(message[name]):
            found.setdefault(int(message[name]), side)
    return found


def track_of_cause(cpu: int | None, side: str, track: dict[int, str]) -> int | None:
    """The core of ``track`` (see ``tracks``) in which a cause is drawn: its own, else that of its side, else any.

    A cause has no core if the message was between cores, and another core if its thread waited elsewhere.
    """
    if cpu in track:
        return cpu
    return next(
        (core for core, name in track.items() if side in name.split(" and ")), next(iter(track), None)
    )


def _intervals(parts: list[Interval]) -> list[Part]:
    return [
        _row("interval", track=part.side, cpu=part.cpu, start_ns=part.start_ns, end_ns=part.end_ns)
        for part in parts
    ]


@dataclass(frozen=True)
class _Core:
    """Calls of one core, each once; ``begin`` and ``end`` within the message's intervals on it. One entry per call."""

    number: dict[str, Ints]
    word: dict[str, npt.NDArray[np.object_]]
    begin: Ints
    end: Ints

    def of(self, rows: npt.NDArray[Any]) -> _Core:
        """Some of them."""
        return _Core(
            {name: values[rows] for name, values in self.number.items()},
            {name: values[rows] for name, values in self.word.items()},
            self.begin[rows],
            self.end[rows],
        )


def _cores(lifetime: pd.DataFrame) -> tuple[Ints, _Core]:
    """The core of each row of ``Capture.lifetime``, and the rows."""
    number = {
        name: lifetime[name].to_numpy(np.int64)
        for name in ("call_id", "parent_id", "tid", "depth", "start_ns", "dur_ns")
    }
    word = {name: words(lifetime[name]) for name in ("kind", "symbol", "start_known", "end_known")}
    begin, length = (lifetime[name].to_numpy(np.int64) for name in ("within_start_ns", "within_dur_ns"))
    return lifetime["cpu"].to_numpy(np.int64), _Core(number, word, begin, begin + length)


def _once(core: _Core) -> _Core:
    """On one core, a call that spans the hand-off is in both adjoining intervals: the two parts are joined."""
    _, first, of = np.unique(core.number["call_id"], return_index=True, return_inverse=True)
    if len(first) == len(of):
        return core
    begin, end = core.begin[first], core.end[first]
    np.minimum.at(begin, of, core.begin)
    np.maximum.at(end, of, core.end)
    order = np.argsort(first)
    return replace(core.of(first[order]), begin=begin[order], end=end[order])


def _calls(message: pd.Series[Any], lifetime: pd.DataFrame, anomalies: list[_Anomaly]) -> list[Part]:
    track = tracks(message)
    cpus, every = _cores(lifetime)
    found: list[Part] = []
    left_out = 0
    for cpu in track:
        calls = _once(every.of(cpus == cpu))
        red = _named(calls, anomalies)
        idle = calls.word["kind"] == "idle"
        # Relative to the interval on this core, so that a short one has calls too (visible after zooming in).
        span = int(calls.end.max() - calls.begin.min()) if len(calls.begin) else 0
        busy = np.flatnonzero(~idle)
        shown = calls.of(busy)
        nested = pd.DataFrame(
            {"call_id": shown.number["call_id"], "parent_id": shown.number["parent_id"], "kind": shown.word["kind"],
             "begin": shown.begin, "end": shown.end}
        )  # fmt: skip
        drawn, n_left = fold(nested, span, red[busy])
        left_out += n_left
        boxes = [_box(message, track[cpu], cpu, calls, red, busy[box.calls], box.level) for box in drawn]
        boxes += [
            _box(message, track[cpu], cpu, calls, red, np.array([i]), 0)
            for i in np.flatnonzero(idle).tolist()
        ]
        found += sorted(boxes, key=lambda r: (r["start_ns"], r["level"]))
    if left_out:
        found.append(_row("left out", name=f"{left_out:,} calls too short or too deep to draw"))
    return found


def _named(calls: _Core, anomalies: list[_Anomaly]) -> npt.NDArray[np.bool_]:
    """Which of ``calls`` an anomaly names as what took longer: same name, within the anomaly's evidence."""
    red = np.zeros(len(calls.begin), bool)
    code, symbols = pd.factorize(calls.word["symbol"])
    names = np.array([*(thread_name(str(symbol)) for symbol in symbols), ""], object)[code]
    for a in anomalies:
        inside = (calls.begin < a.end_ns) & (calls.end > a.start_ns)
        if a.subject == UNKNOWN:  # many functions have no name: only those entirely within the evidence
            inside = (calls.begin >= a.start_ns) & (calls.end <= a.end_ns)
        red |= inside & (names == a.subject)
    return red


def _box(
    message: pd.Series[Any],
    track: str,
    cpu: int,
    calls: _Core,
    red: npt.NDArray[np.bool_],
    rows: Ints,
    level: int,
) -> Part:
    first, last = int(rows[0]), int(rows[-1])
    number, word = calls.number, calls.word
    own = word["kind"][first] == "thread" and number["tid"][first] == message["tid"]
    start, end = int(calls.begin[first]), int(calls.end[first])
    since = int(number["start_ns"][first])
    return {
        "what": "call",
        "track": track,
        "cpu": cpu,
        "depth": int(number["depth"][first]),
        "level": level,
        "kind": "own thread" if own else word["kind"][last],
        "name": WRAPS.join(dict.fromkeys(word["symbol"][rows])),
        "start_ns": start,
        "end_ns": end,
        "start_known": "cut" if since < start else word["start_known"][first],
        "end_known": "cut" if since + int(number["dur_ns"][first]) > end else word["end_known"][first],
        "red": "red" if red[rows].any() else "",
        "note": "",
    }


def _anomalies(own: list[_Anomaly], low: int, high: int) -> list[Part]:
    """Anomalies; those of the largest cause come first, so that it keeps its label if there is no room for all."""
    total: Counter[tuple[str, str]] = Counter()
    for a in own:
        total[a.category, a.side] += a.deviation_ns
    return [
        _row(
            "anomaly",
            track=a.side,
            cpu=pd.NA if a.cpu is None else a.cpu,
            kind=a.anomaly,
            name=f"{a.category} ({a.side})",
            start_ns=max(a.start_ns, low),
            end_ns=min(a.end_ns, high),
            note=_told(a),
        )
        for a in sorted(own, key=lambda a: (total[a.category, a.side], a.deviation_ns), reverse=True)
        if a.start_ns < high and a.end_ns > low
    ]


def _told(a: _Anomaly) -> str:
    """The time that it added; and the length of the drawn interval, if there were several."""
    drawn = a.end_ns - a.start_ns
    longest = f" (longest: {duration(drawn)})" if 0 < drawn < _MOST_OF_IT * a.deviation_ns else ""
    return f"+{duration(a.deviation_ns)}{longest}"


def _marks(message: pd.Series[Any]) -> list[Part]:
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


def _row(what: str, **values: Any) -> Part:
    return {
        **dict.fromkeys(COLUMNS, ""),
        "cpu": pd.NA,
        "depth": pd.NA,
        "level": pd.NA,
        "start_ns": pd.NA,
        "end_ns": pd.NA,
        **values,
        "what": what,
    }
