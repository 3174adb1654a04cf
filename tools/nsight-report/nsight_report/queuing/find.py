# SPDX-License-Identifier: GPL-2.0-only
"""The stage: how many messages were ahead of each compared message at each queue on its path (Fig. 19 of the paper)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..attribution.symbols import plain_name
from ..interval_joins import Int, distinct, overlaps
from ..losses import Ledger
from ..selection.application import App
from ..tables import schema
from ..tables.data_frames import column, to_pandas
from ..tables.messages import Messages
from ..timeline.activity import Activity
from ..timeline.machine import Machine
from ..timeline.occupancy import Asked, Tiles
from ..timeline.recording import Recording
from . import occurrences, queues
from .depth import Served, ahead, once, overtaken
from .occurrences import Name, Occurrences
from .queues import DRIVER, PROTOCOL, QUEUES, SOCKET, THREAD, Candidate, Queue

#: Minimum share of the messages that a function must meet exactly once, to show how many are in a queue.
LEAST_MATCHED = 0.5
#: Number of messages by which functions are chosen.
_SAMPLE = 1_000
#: Minimum match of a function, relative to the best one's.
_NEARLY = 0.8
#: Number of messages if every function of a program is considered.
_FEW = 200
_STAMPS = ("first_ns", "arrival_ns", "arrival_last_ns", "handoff_ns", "call_ns", "app_ns")
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class _Server:
    """The function that represents a queue: its calls, and the share of messages that meet exactly one of them."""

    queue: Queue
    name: Name
    matched: float
    calls: Occurrences


def find(
    recording: Recording, compared: pa.Table, against: Recording | None = None
) -> tuple[pa.Table, pa.Table]:
    """Depth and delay of every message of ``compared`` at every queue: ``(table queuing, losses)``.

    ``against``: the capture of the baseline messages, if it is another one. Baseline is the median of the
    baseline messages with which a slow message is compared. Times of different queues can overlap: an application that
    sends may receive packets meanwhile.
    """
    ledger = Ledger("queuing")
    chosen = compared.to_pandas()
    role = chosen["role"].astype(str)
    parts = []
    for words, of in ((("slow", "baseline"), recording),) if against is None else (
        (("slow",), recording),
        (("baseline",), against),
    ):  # fmt: skip
        rows = chosen[role.isin(words)]
        if len(rows):
            parts.append(_measure(of, rows, ledger))
    frame = pd.concat(parts, ignore_index=True) if parts else _nothing()
    frame = _against_usual(frame)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    return schema.conform("queuing", table), ledger.table()


def _measure(recording: Recording, chosen: pd.DataFrame, ledger: Ledger) -> pd.DataFrame:
    every = recording.every()
    own = every.rows(chosen["message_id"].to_numpy(np.int64))
    app = App.of(own)
    if (own["direction"] == "interval").all():
        return _nothing()  # what a thread does by itself waits in no queue
    own = own.merge(chosen[["message_id", "role", "baseline_latency_ns"]].astype({"message_id": "Int64"}))
    activity = Activity(recording, own, app)
    busy = activity.machine.threads
    asked = queues.shown_by_calls(activity.has_functions)
    servers = _servers(_near(activity, asked, every, own, busy), asked, every, own, busy)
    parts = [_by_function(server, own) for server in servers]
    counted = {server.queue.name for server in servers}
    parts += _by_messages(_beside(every, own, activity.machine), own, activity.machine, counted)
    if activity.has_functions:
        _account(counted, own, ledger)
    return pd.concat(parts, ignore_index=True) if parts else _nothing()


def _near(
    activity: Activity, asked: list[Queue], messages: Messages, own: pd.DataFrame, busy: Tiles
) -> pa.Table:
    """Calls while the compared messages were in their queues, and while some were served themselves; only these are read."""
    parts: list[tuple[str, Int, Int, Int]] = []
    for queue in asked:
        rows = own[own["direction"] == queue.direction]
        group, enter, leave = (column(rows[c]) for c in (queue.where, queue.enter, queue.leave))
        parts.append((queue.where, group, enter, leave))
        parts.append((queue.served_where, *_items(queue, messages, own, busy)))
        parts.append(("tid", *_tiles(rows, busy, _FEW)))
    cores, threads = (list[tuple[Int, Int, Int]]() for _ in range(2))
    for where, group, low, high in parts:
        known = (group >= 0) & (low >= 0) & (high >= low)
        # A call that ended when the message came is before it; one that began when it left is after it.
        (threads if where == "tid" else cores).append((group[known], low[known], high[known] + 1))
    # All threads at once, so that table thread_states is read once.
    tid, low, high = (np.concatenate(c) for c in zip(*threads, strict=True))
    cores.append(activity.cores_of(tid, low, high)[1:])
    cpu, start, end = (np.concatenate(c) for c in zip(*cores, strict=True))
    return activity.calls_while(cpu, start, end, occurrences.COLUMNS)


def _account(counted: set[str], own: pd.DataFrame, ledger: Ledger) -> None:
    """Report the queues for which no function was found, in mode intel-pt."""
    directions = set(own["direction"].astype(str))
    without = [q.name for q in QUEUES if q.name not in counted and q.direction in directions]
    ledger.add("queues_without_function", len(without), queues=", ".join(without))


def _servers(
    calls: pa.Table, asked: list[Queue], messages: Messages, own: pd.DataFrame, busy: Tiles
) -> list[_Server]:
    """For each of the queues the function whose calls match the messages best."""
    lines = queues.read()
    named = [c for c in lines if not c.any_name]
    pattern = re.compile("|".join(f"(?:{c.regex()})" for c in named))
    memo: dict[Name, tuple[int, ...]] = {}

    def fitting(name: Name) -> tuple[int, ...]:
        if name not in memo:
            memo[name] = tuple(i for i, c in enumerate(lines) if not c.any_name and c.fits(*name))
        return memo[name]

    found = occurrences.find(
        calls,
        lambda symbol: any(pattern.fullmatch(plain_name(symbol, k)) for k in (True, False)),
        lambda name: bool(fitting(name)),
    )
    servers = []
    for queue in asked:
        items = _items(queue, messages, own, busy)
        best: tuple[float, int, Name] | None = None
        for name in found.names:
            fits = [i for i in fitting(name) if lines[i].queue == queue.name]
            if fits and len(items[0]):
                rank = (once(_served(found, name, queue.served_where), *items), -fits[0], name)
                best = rank if best is None else max(best, rank)
        if best is not None and best[0] >= LEAST_MATCHED:
            servers.append(_Server(queue, best[2], best[0], _only(found, best[2])))
        elif any(c.any_name and c.queue == queue.name for c in lines):
            server = _by_calls_alone(calls, queue, lines, busy, own)
            servers += [server] if server else []
    return servers


def _items(queue: Queue, messages: Messages, own: pd.DataFrame, busy: Tiles) -> tuple[Int, Int, Int]:
    """When and by whom the messages themselves were served: server, begin, end."""
    frame = own[own["direction"] == queue.direction]
    if queue.name in queues.SERVED_BY_SENDING:
        frame = _sent(queue, messages, frame)
    if not queue.served[1]:
        return _tiles(frame, busy, _SAMPLE)
    frame = _thin(frame, _SAMPLE)
    group, low_ns, high_ns = (column(frame[c]) for c in (queue.served_where, *queue.served))
    known = (group >= 0) & (low_ns >= 0) & (high_ns >= 0)
    return group[known], low_ns[known], high_ns[known]


def _sent(queue: Queue, messages: Messages, while_there: pd.DataFrame) -> pd.DataFrame:
    """What the threads of some messages sent, from the first to the last of these messages."""
    tids = column(while_there["tid"])
    low, high = (
        column(while_there["first_ns"]).min(initial=_NEVER),
        column(while_there["last_ns"]).max(initial=-1),
    )

    def chosen(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
        inside = (rows["first_ns"] >= low) & (rows["last_ns"] <= high)
        return ((rows["direction"] == "tx") & inside & rows["tid"].isin(tids)).to_numpy(bool)

    names = ["direction", "tid", "first_ns", "last_ns", queue.served_where, *queue.served]
    return messages.columns(names, chosen)


def _tiles(frame: pd.DataFrame, busy: Tiles, most: int) -> tuple[Int, Int, Int]:
    """From each message's read until its thread continues with another one or waits."""
    mine = np.isin(busy.owner, column(_thin(frame, most)["message_id"])) & (busy.end < np.iinfo(np.int64).max)
    return busy.group[mine], busy.start[mine], busy.end[mine]


def _thin(frame: pd.DataFrame, most: int) -> pd.DataFrame:
    if len(frame) <= most:
        return frame
    return frame.iloc[np.linspace(0, len(frame) - 1, most).astype(np.int64)]


def _only(found: Occurrences, name: Name) -> Occurrences:
    return found.of(np.array([n == name for n in found.names], bool))


def _served(found: Occurrences, name: Name, where: str) -> Served:
    calls = _only(found, name)
    return Served.build(calls.tid if where == "tid" else calls.cpu, calls.start, calls.end)


def _by_calls_alone(
    calls: pa.Table, queue: Queue, lines: list[Candidate], busy: Tiles, own: pd.DataFrame
) -> _Server | None:
    """The longest of the functions that begin and end once between a message's read and the next, whatever their names."""
    of = [c for c in lines if c.any_name and c.queue == queue.name]
    tid, low, high = _tiles(own[own["direction"] == queue.direction], busy, _FEW)
    if not len(tid):
        return None

    def wanted(name: Name) -> bool:
        return any(c.fits(*name) for c in of)

    def named(symbol: str) -> bool:
        return symbol != "" and not symbol.endswith("@plt")

    span = int(low.min()), int(high.max())
    seen = occurrences.find(calls, named, wanted, np.unique(tid), span)
    if not len(seen):
        return None
    call, tile, begin, end = overlaps(
        seen.tid, seen.start, np.maximum(seen.end, seen.start + 1), tid, low, high
    )
    inside = (begin == seen.start[call]) & (end >= seen.end[call])
    key, count = np.unique(np.stack([seen.name[call[inside]], tile[inside]]), axis=1, return_counts=True)
    matched = np.bincount(key[0][count == 1], minlength=len(seen.names)) / len(tid)
    took = np.bincount(
        seen.name[call[inside]], seen.end[call[inside]] - seen.start[call[inside]], len(seen.names)
    )
    # A function that is called once per message calls others once: the outermost of these represents the message. If some reads
    # bring several requests, a function that is called once per request does not match all reads, but is still the right one.
    good = matched >= max(matched.max() * _NEARLY, LEAST_MATCHED)
    if not good.any():
        return None
    best = int(np.argmax(np.where(good, took, -1)))
    name = seen.names[best]
    bare = occurrences.UNNAMED if name[1].startswith(occurrences.UNNAMED) else name[1]
    every = occurrences.find(calls, lambda symbol: symbol == bare, lambda n: n == name)
    return _Server(queue, name, float(matched[best]), every)


def _by_function(server: _Server, own: pd.DataFrame) -> pd.DataFrame:
    queue = server.queue
    rows = own[own["direction"] == queue.direction]
    group, enter, leave = (column(rows[c]) for c in (queue.where, queue.enter, queue.leave))
    known = (group >= 0) & (enter >= 0) & (leave >= enter)
    rows, group, enter, leave = rows[known], group[known], enter[known], leave[known]
    served = _served(server.calls, server.name, queue.where)
    depth, ns = ahead(served, group, enter, leave, queue.in_service)
    if queue.own:
        depth = np.maximum(depth - np.maximum(column(rows["n_arrivals"]) - 1, 0), 0)
    return _frame(rows, (queue.name, queue.side), server.name, server.matched, depth, ns, enter, leave)


def _beside(messages: Messages, own: pd.DataFrame, machine: Machine) -> pd.DataFrame:
    """Received messages that existed while any of the compared ones did, or that a thread worked on then."""
    asked = Asked.of(own)
    owners = distinct(np.append(machine.threads.owner, machine.cores.owner))

    def chosen(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
        stamps = rows[[*_STAMPS, "last_ns"]].to_numpy(np.int64)
        first = np.where(stamps < 0, _NEVER, stamps).min(axis=1)
        there = asked.about(first, stamps.max(axis=1) + 1) | np.isin(rows["message_id"].to_numpy(), owners)
        return (rows["direction"] == "rx").to_numpy(bool) & there

    names = ["message_id", "direction", "conn_id", "tid", "recv_cpu", *_STAMPS, "last_ns"]
    return messages.columns(names, chosen)


def _by_messages(
    rx: pd.DataFrame, own: pd.DataFrame, machine: Machine, counted: set[str]
) -> Iterator[pd.DataFrame]:
    """Queues whose depth other messages (``_beside``) show: the socket and the thread always, earlier queues if functions do not."""
    ids = column(rx["message_id"])
    mine = own[own["direction"] == "rx"]
    at = np.searchsorted(ids, column(mine["message_id"]))
    of = np.ones(len(rx), bool)

    def cut(name: str) -> tuple[Int, Int]:
        return column(rx[name]), column(rx[name])[at]

    if not len(mine):
        return
    first, arrival, arrived, handoff, call, app = (column(rx[c]) for c in _STAMPS)
    conn = column(rx["conn_id"])

    def in_packet(of: Int, by: Int) -> npt.NDArray[np.bool_]:
        """Which of some messages (rows) began in the packet with the first or the last byte of others."""
        began = (arrival[of] == arrival[by]) | (arrival[of] == arrived[by])
        return began & (arrival[of] >= 0) & (conn[of] == conn[by])

    for queue, enter, leave in ((DRIVER, first, arrival), (PROTOCOL, arrived, handoff)):
        if queue[0] not in counted:
            core, own_core = cut("recv_cpu")
            ns, _, begun = _others(machine.cores, own_core, enter[at], leave[at], at, (ids, leave), in_packet)
            yield _known(mine, queue, overtaken(core, enter, leave, of)[at] + begun, ns, enter[at], leave[at])
    thread, own_thread = cut("tid")
    until = np.where(call[at] >= 0, call[at], app[at])
    total, same, begun = _others(machine.threads, own_thread, handoff[at], until, at, (ids, app), None, conn)
    every = overtaken(thread, handoff, app, of)[at] + begun
    socket = np.minimum(overtaken(conn, handoff, app, of)[at] + (begun & (same > 0)), every)
    yield _known(mine, SOCKET, socket, same, handoff[at], until)
    yield _known(mine, THREAD, every - socket, total - same, handoff[at], until)


def _others(
    tiles: Tiles,
    group: Int,
    low: Int,
    high: Int,
    mine: Int,
    left: tuple[Int, Int],
    with_mine: Callable[[Int, Int], npt.NDArray[np.bool_]] | None = None,
    conn: Int | None = None,
) -> tuple[Int, Int, Int]:
    """How long messages other than ``mine`` were worked on from ``low`` to ``high``: in total, and of the same connection.

    ``left``: messages, and when each left the queue; ``mine`` and the arguments of ``with_mine`` are rows of these; it says
    which are worked on together. The third result is 1 if one that had left before ``low`` was still worked on.
    """
    ids, when = left
    valid = np.flatnonzero((group >= 0) & (low >= 0) & (high > low))
    query, tile, begin, end = overlaps(
        group[valid], low[valid], high[valid], tiles.group, tiles.start, tiles.end
    )
    query, owner, ns = valid[query], tiles.owner[tile], end - begin
    place = np.minimum(np.searchsorted(ids, owner), len(ids) - 1)
    other = (owner >= 0) & (place != mine[query]) & (ids[place] == owner)
    if with_mine is not None:
        other &= ~with_mine(place, mine[query])
    begun = np.zeros(len(group), np.int64)
    begun[query[other & (when[place] <= low[query])]] = 1
    total = np.bincount(query[other], ns[other], len(group)).astype(np.int64)
    if conn is None:
        return total, np.zeros(len(group), np.int64), begun
    same = other & (conn[place] == conn[mine[query]])
    return total, np.bincount(query[same], ns[same], len(group)).astype(np.int64), begun


def _known(
    rows: pd.DataFrame, queue: tuple[str, str], depth: Int, ns: Int, enter: Int, leave: Int
) -> pd.DataFrame:
    known = (enter >= 0) & (leave >= enter)
    name = "", queues.MESSAGES, ""
    return _frame(rows[known], queue, name, 1.0, depth[known], ns[known], enter[known], leave[known])


def _frame(
    rows: pd.DataFrame, queue: tuple[str, str], name: Name, matched: float, depth: Int, ns: Int, enter: Int, leave: Int
) -> pd.DataFrame:  # fmt: skip
    return pd.DataFrame(
        {
            "message_id": column(rows["message_id"]),
            "role": rows["role"].astype(str).to_numpy(object),
            "usual": column(rows["baseline_latency_ns"]),
            "queue": queue[0],
            "side": queue[1],
            "function": plain_name(name[1], name[0] == "function"),
            "dso": name[2],
            "matched": matched,
            "depth": depth,
            "ahead_ns": ns,
            "start_ns": enter,
            "end_ns": leave,
        }
    )


def _nothing() -> pd.DataFrame:
    none: npt.NDArray[np.int64] = np.zeros(0, np.int64)
    empty = to_pandas(schema.empty("messages")).assign(role="", baseline_latency_ns=0)
    return _frame(empty, DRIVER, ("", "", ""), 1.0, none, none, none, none)


def _against_usual(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the medians of the baseline messages with which each message is compared."""
    keys = ["usual", "queue", "side"]
    by = frame[frame["role"] == "baseline"].groupby(keys, sort=False)
    for value, baseline in (("depth", "baseline_depth"), ("ahead_ns", "baseline_ns")):
        middle = by[value].median().round().astype(np.int64).rename(baseline)
        frame = frame.merge(middle.reset_index(), on=keys, how="left")
        frame[baseline] = frame[baseline].fillna(0).astype(np.int64)
    frame["deviation_ns"] = frame["ahead_ns"] - frame["baseline_ns"]
    rank = frame["queue"].map({name: i for i, name in enumerate(queues.ORDER)})
    slow = (frame["role"] == "baseline").astype(int)
    frame = frame.assign(slow=slow, rank=rank).sort_values(["slow", "message_id", "rank"], kind="stable")
    text = ["role", "queue", "side", "function", "dso"]
    return frame.drop(columns=["slow", "rank", "usual"]).astype(dict.fromkeys(text, "category"))
