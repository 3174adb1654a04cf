# SPDX-License-Identifier: GPL-2.0-only
"""When a core or a thread was busy with which message: the basis for finding overlaps.

Section 5.2, last phase: a message that is ready while its application works on another one is
blocked by it (head-of-line); one whose core receives another application's packets suffers
interference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..interval_joins import Int, latest, overlaps, tile
from ..tables.data_frames import column
from ..tables.intervals import union

# A thread that enters one of these has finished its work for the last message.
WAITS = frozenset(
    [
        "epoll_wait",
        "epoll_pwait",
        "epoll_pwait2",
        "poll",
        "ppoll",
        "select",
        "pselect6",
        "io_uring_enter",
        "io_getevents",
    ]
)

#: In these a thread waits for the message itself.
READS = frozenset(["read", "readv", "recvfrom", "recvmsg", "recvmmsg", "accept", "accept4"])


#: Columns of messages (``Messages.columns``) that show what cores and threads did.
COLUMNS = (
    "message_id",
    "direction",
    "conn_id",
    "pid",
    "tid",
    "comm",
    "recv_cpu",
    "arrival_ns",
    "arrival_last_ns",
    "handoff_ns",
    "handoff_cpu",
    "begun_ns",
    "call_ns",
    "app_ns",
)
_EVER = np.iinfo(np.int64).max
#: Minimum number of messages of a second core that shows how long it usually works on one.
LEAST_USUAL = 20


@dataclass(frozen=True)
class Asked:
    """The messages ``ids`` and the disjoint, ascending intervals of time [low, high) for which owners are needed."""

    ids: Int
    low: Int
    high: Int

    @staticmethod
    def of(messages: pd.DataFrame) -> Asked:
        """These messages (message_id, first_ns, last_ns), and the time while any of them was in progress."""
        ids, first, last = (column(messages[c]) for c in ("message_id", "first_ns", "last_ns"))
        return Asked(ids, *(union(first, last + 1) if len(ids) else (first, last)))

    def about(self, start: Int, end: Int) -> npt.NDArray[np.bool_]:
        """Which intervals [start, end) overlap the requested ones."""
        if not len(start) or (start[1:] < start[:-1]).any():
            return np.append(self.low, _EVER)[np.searchsorted(self.high, start, "right")] < end
        # In order, as most are: the few requested ones are searched among them, instead of each of them among the requested.
        first, last = np.searchsorted(self.high, start[[0, -1]], "right")
        edges = np.searchsorted(start, self.high[first:last])
        counts = np.diff(np.concatenate([[0], edges, [len(start)]]))
        return np.repeat(np.append(self.low, _EVER)[first : last + 1], counts) < end


@dataclass(frozen=True)
class Tiles:
    """Tiled time of threads (``group`` is a tid) or cores (a cpu): ``owner`` is a message_id, -1 nobody.

    Outside the requested messages and times, its content is not reliable.
    """

    group: Int
    start: Int
    end: Int
    owner: Int


@dataclass(frozen=True)
class Reads:
    """Messages with the thread that turned to each and when (``tid``, ``start``), and when each was read: also before, in part."""

    owner: Int
    tid: Int
    start: Int
    read: Int

    @staticmethod
    def of(messages: pd.DataFrame, asked: Asked) -> Reads:
        """The messages (``COLUMNS``) that show what threads did in the requested time."""
        rx = ((messages["direction"] == "rx") & (messages["tid"] > 0)).to_numpy(bool)
        names = ("message_id", "tid", "begun_ns", "call_ns", "app_ns")
        owner, tid, begun, entered, read = (messages[c].to_numpy()[rx] for c in names)
        start = turned_to(entered, read)
        if len(at := np.flatnonzero(begun >= 0)):
            owner, tid = np.append(owner, owner[at]), np.append(tid, tid[at])
            start, read = np.append(start, begun[at]), np.append(read, begun[at])
        rows = _telling(owner, tid, start, asked)
        return Reads(owner[rows], tid[rows], start[rows], read[rows])


def turned_to(entered: Int, read: Int) -> Int:
    """When a thread turned to a message: at the entry of the call that read it, or at its return if only that is known."""
    return np.where(entered >= 0, entered, read)


def by_thread(reads: Reads, tid: Int, waits: Int) -> Tiles:
    """What each reading thread worked on: a message from its read call until the thread's next
    read of another message, or until it waits for events again. ``waits``: when threads (``tid``) began to wait.
    """
    end = _next(reads.tid, reads.read, tid, waits)
    group, low, high, index = tile(reads.tid, reads.start, end)
    return _joined(Tiles(group, low, high, _owner(reads.owner, index)))


def _joined(tiles: Tiles) -> Tiles:
    """The same time, with neighbours of one owner as one tile: a message that was read in parts."""
    order = np.lexsort((tiles.start, tiles.group))
    group, start, end, owner = (of[order] for of in (tiles.group, tiles.start, tiles.end, tiles.owner))
    new = np.append(True, (group[1:] != group[:-1]) | (owner[1:] != owner[:-1]) | (start[1:] != end[:-1]))
    first = np.flatnonzero(new[: len(group)])
    last = np.append(first[1:], len(group))[: len(first)] - 1
    return Tiles(group[first], start[first], end[last], owner[first])


def begin_in_gaps(
    thread_states: pd.DataFrame, cpu: Int, start: Int, end: Int, is_gap: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Which rows of ``thread_states`` begin where nothing is known about their core, by the columns of ``contexts``."""
    since = column(thread_states["start_ns"])
    found, *_ = overlaps(
        column(thread_states["cpu"]), since, since + 1, cpu[is_gap], start[is_gap], end[is_gap]
    )
    begins = np.zeros(len(since), bool)
    begins[found] = True
    return begins


def by_core(messages: pd.DataFrame, asked: Asked) -> Tiles:
    """What receive processing each core did: a message from its arrival to its hand-off. ``messages``: all (``COLUMNS``).

    A message that is handed off on a second core belongs to the first core until its last arrival; the second core works on it
    from then on, or from its previous hand-off, since it works on one at a time. Packets that were not recorded wait in
    the same queue, so the second core is assumed to work on a message for no longer than it usually does.
    """
    rx = ((messages["direction"] == "rx") & (messages["arrival_ns"] >= 0)).to_numpy(bool)
    names = ("message_id", "recv_cpu", "handoff_cpu", "arrival_ns", "arrival_last_ns", "handoff_ns")
    owner, cpu, second, arrival, arrived, handoff = (messages[c].to_numpy()[rx] for c in names)
    moved = np.flatnonzero((handoff >= 0) & (second >= 0) & (second != cpu))
    since = np.maximum(arrived, arrival)
    # Without a hand-off, the interval of the packet is unknown: it owns nothing.
    end = np.maximum(handoff, arrival)
    end[moved] = since[moved]
    free = np.maximum(since[moved], _latest_before(second, handoff, second[moved], handoff[moved]))
    begun = np.maximum(free, handoff[moved] - _usual(second[moved], handoff[moved] - free))
    owner, cpu = np.append(owner, owner[moved]), np.append(cpu, second[moved])
    arrival, end = np.append(arrival, begun), np.append(end, handoff[moved])
    rows = _telling(owner, cpu, arrival, asked)
    group, low, high, index = tile(cpu[rows], arrival[rows], np.maximum(end, arrival)[rows])
    return Tiles(group, low, high, _owner(owner[rows], index))


def _usual(group: Int, took: Int) -> Int:
    """The median of ``took`` in the group of each; the longest of all where a group has too few values."""
    groups = pd.Series(took).groupby(group)
    enough = groups.transform("size") >= LEAST_USUAL
    return groups.transform("median").where(enough, max(took, default=0)).to_numpy(np.int64)


def _latest_before(group: Int, time: Int, of: Int, until: Int) -> Int:
    """The last ``time`` of the same ``group`` before each of ``until``; the minimum time if there is none."""
    order = np.lexsort((time, group))
    found = latest(group[order], time[order], of, until - 1)
    return np.append(time[order], np.iinfo(np.int64).min)[found]


def _telling(owner: Int, group: Int, start: Int, asked: Asked) -> Int:
    """The rows that determine the tiles in the requested time: rows that begin there, and their neighbours on both sides.

    Each row owns its group until the group's next row begins. Messages requested by number are whole, and every group has rows.
    """
    if not len(group):
        return np.zeros(0, np.int64)
    order = np.lexsort((start, group))
    of, since = group[order], start[order]
    last = np.append(of[1:] != of[:-1], True)
    until = np.append(since[1:], _EVER)
    until[last] = _EVER
    tells = asked.about(since, until) | np.isin(owner[order], asked.ids)
    # The row that ends it; and the first row of each group, before which nobody owned it.
    keep = tells | np.append(True, last[:-1] | tells[:-1])
    return np.sort(order[keep])


def _owner(owner: Int, index: Int) -> Int:
    return np.append(owner, -1)[index]  # index -1 is nobody


def _next(group: Int, time: Int, event_group: Int, event_time: Int) -> Int:
    """The first event of the same group at or after ``time``; the maximum time if there is none."""
    # The last of the same, read from the end of time.
    order = np.lexsort((-event_time, event_group))
    found = latest(event_group[order], -event_time[order], group, -time)
    return np.append(event_time[order], _EVER)[found]
