# SPDX-License-Identifier: GPL-2.0-only
"""Intervals of message lifetimes: the core that counts for each, and what the message or its thread was doing.

The application core is followed through the thread that reads: a thread that waits in the queue of one core and is then
moved to another was delayed by the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..interval_joins import Int, overlaps
from ..tables.data_frames import column
from . import Detours, Place, Sections, sections
from .incoming import are_received, began_to_come
from .sections import OF_BEGINNER, OF_READER, OF_SENDER, OF_THREADS, taken_over


class State(IntEnum):
    """What the message or its application's thread was doing; states up to THROTTLED except CORE are as in ``thread_states``.

    THROTTLED: ready, but without CPU quota. CORE: no thread is waited for, the core itself counts. LOST: the packet waits for its
    retransmission. UNTOLD: no interrupt has announced it to the core yet. QUEUED: its thread has handed over a sent message, but no
    driver has it yet. QDISC: the same, and the queue discipline has it or what comes before it. SENDING: the NIC has it until the completion timestamp, whatever the core does. AWAY: a sent request until its reply comes.
    UNACCEPTED: the connection is in the accept queue, and its future reader waits for work or does not exist yet.
    """

    CORE = 0
    RUNNING = 1
    RUNNABLE = 2
    SLEEPING = 3
    BLOCKED = 4
    STOPPED = 5
    DEAD = 6
    UNKNOWN = 7
    WAITING = 8
    THROTTLED = 9
    LOST = 10
    UNTOLD = 11
    QUEUED = 12
    SENDING = 13
    AWAY = 14
    UNACCEPTED = 15
    QDISC = 16


_NAMES = [state.name.lower() for state in State]


@dataclass(frozen=True)
class Pieces:
    """Intervals of message lifetimes; all arrays have one element per interval.

    ``row``: position of the message in the population; ``side``: R, A or T; ``cpu``: core that counts
    (-1 unknown); ``state``: a State; ``start``/``end``: ns, monotonic; ``tid``: thread that counts, -1 none; ``why``: name
    code of what it waits for, -1: known only from what the thread was in.
    """

    row: Int
    side: Int
    cpu: Int
    state: Int
    start: Int
    end: Int
    tid: Int
    why: Int

    def __len__(self) -> int:
        return len(self.row)

    @staticmethod
    def join(parts: list[Pieces]) -> Pieces:
        """All of them."""
        return Pieces(*(np.concatenate([getattr(p, f) for p in parts]) for f in Pieces.__dataclass_fields__))

    def take(self, at: npt.NDArray[Any]) -> Pieces:
        """The chosen ones."""
        return Pieces(*(getattr(self, f)[at] for f in self.__dataclass_fields__))


def threads_of(messages: pd.DataFrame) -> tuple[Int, Int, Int]:
    """(tid, begin, end): when each thread counts that began or ended intervals, read messages or sends replies."""
    tid, first, last = (column(messages[name]) for name in ("tid", "first_ns", "last_ns"))
    taken = taken_over(messages)
    begun = np.flatnonzero(taken > first)
    found = [
        (tid, np.maximum(first, taken), last),
        (column(messages["begin_tid"])[begun], first[begun], np.minimum(taken, last)[begun]),
    ]
    if "send_tid" in messages:
        found.append((column(messages["send_tid"]), first, last))
    threads, begin, end = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return threads, begin, end


def waits_of_threads(found: Pieces) -> Int:
    """Pieces in which a thread slept, was blocked, stopped or waited."""
    off = (State.SLEEPING, State.BLOCKED, State.STOPPED, State.WAITING)
    return np.flatnonzero(np.isin(found.state, off) & (found.tid > 0))


def because(found: Pieces, at: Int, start: Int, end: Int, why: Int) -> Pieces:
    """``found``, where the parts [start, end) of pieces ``at``, in order and disjoint, get a reason."""
    query, low, high = uncovered(at, start, end, found.start, found.end)
    told = replace(found.take(at), start=start, end=end, why=why)
    return Pieces.join([told, replace(found.take(query), start=low, end=high)])


def pieces(
    messages: pd.DataFrame,
    rows: Int,
    thread_states: pd.DataFrame,
    told: Int | None = None,
    found: Detours | None = None,
) -> Pieces:
    """Cut the lifetimes of ``messages.iloc[rows]`` into their sections, and these at thread state changes.

    ``told``: by row of ``messages``, when an interrupt announced it to the receive core; -1 unknown. ``found``: also by row.

    For a message whose thread is not in ``thread_states``, the application core counts, state unknown. The pieces of one
    message tile its lifetime exactly.
    """
    chosen = messages.iloc[rows]
    if found is not None:
        found = Detours(found.left_ns[rows], found.in_backlog[rows])
    parts = sections(chosen, found)
    of_app = np.isin(parts.place, OF_THREADS)
    elsewhere = _outside_the_thread(chosen, parts.take(~of_app), None if told is None else told[rows])
    row, place, side, app_cpu, app_start, app_end = (
        v[of_app] for v in (parts.row, parts.place, parts.side, parts.cpu, parts.start, parts.end)
    )
    tid = column(chosen["tid"])[row]
    for name, places in (("begin_tid", OF_BEGINNER), ("send_tid", OF_SENDER)):
        if name in chosen:
            tid = np.where(np.isin(place, places), column(chosen[name])[row], tid)
    rx = are_received(chosen)[row] & np.isin(place, OF_READER)
    states = thread_states[thread_states["tid"].isin(np.unique(tid[tid > 0]))]
    code = pd.Categorical(states["state"].astype(str), categories=_NAMES).codes.astype(np.int64)
    code[code < 0] = State.UNKNOWN
    query, item, start, end = overlaps(
        tid, app_start, app_end, column(states["tid"]), column(states["start_ns"]), column(states["end_ns"])
    )
    state, cpu = code[item], column(states["cpu"])[item]
    # It is unknown whether the thread was ready, so the activity of its last core is no cause.
    cpu[state == State.UNKNOWN] = -1
    # No record shows when a waiting thread was woken. A thread that waited before the hand-off was woken by it, and
    # is in the queue of the core on which it runs next.
    at = np.flatnonzero(
        (state == State.WAITING) & rx[query] & (column(states["start_ns"])[item] <= app_start[query])
    )
    following = np.minimum(item[at] + 1, len(code) - 1)
    runs = (code[following] == State.RUNNING) & (
        column(states["tid"])[following] == column(states["tid"])[item[at]]
    )
    state[at] = State.RUNNABLE
    cpu[at[runs]] = column(states["cpu"])[following[runs]]
    app = Pieces(row[query], side[query], cpu, state, start, end, tid[query], np.full(len(query), -1))
    rest = uncovered(query, start, end, app_start, app_end)
    # Time of the thread that scheduler events do not cover: its core is the best known fact.
    n = len(rest[0])
    unknown = Pieces(
        row[rest[0]], side[rest[0]], app_cpu[rest[0]], np.full(n, State.UNKNOWN), rest[1], rest[2],
        tid[rest[0]], np.full(n, -1),
    )  # fmt: skip
    joined = Pieces.join([*elsewhere, app, unknown])
    return replace(joined, row=rows[joined.row])


def _outside_the_thread(messages: pd.DataFrame, parts: Sections, told: Int | None) -> list[Pieces]:
    """Pieces of sections (of ``messages``) in which no thread of the application counts."""
    row, place, side, cpu, start, end = (
        parts.row, parts.place, parts.side, parts.cpu, parts.start, parts.end
    )  # fmt: skip
    # The activity of the core before a retransmitted packet arrives is no cause: a copy was lost.
    arrived = column(messages["arrival_last_ns"])
    arrived = np.where(arrived >= 0, arrived, began_to_come(messages))
    again = messages["copy_lost"].fillna(False).to_numpy(bool)
    receive = place == Place.RECEIVE
    here = np.where(receive & again[row], np.clip(arrived[row], start, end), start)
    known = here if told is None else np.where(receive, np.clip(told[row], here, end), here)
    completed = messages["completion_ns"].notna().to_numpy(bool)[row]
    state = np.full(len(row), State.CORE)
    state[place == Place.TRANSMIT_QUEUE] = State.QUEUED
    state[place == Place.QUEUE_DISCIPLINE] = State.QDISC
    state[(place == Place.DRIVER) & completed] = State.SENDING
    state[place == Place.PEER] = State.AWAY
    away = np.isin(state, (State.QUEUED, State.QDISC, State.SENDING, State.AWAY))
    # The process that owned the backlog handed it off.
    tid = np.where(place == Place.BACKLOG, column(messages["tid"])[row], -1)
    found = []
    for low, high, what in (
        (start, here, np.full(len(row), State.LOST)),
        (here, known, np.full(len(row), State.UNTOLD)),
        (known, end, state),
    ):
        there = high > low
        nowhere = (what == State.LOST) | away
        on = np.where(nowhere, -1, cpu)
        none = np.full(int(there.sum()), -1)
        found.append(
            Pieces(row[there], side[there], on[there], what[there], low[there], high[there], tid[there], none)
        )
    return found


def uncovered(query: Int, start: Int, end: Int, low: Int, high: Int) -> tuple[Int, Int, Int]:
    """The parts of each window [low, high) that no covered interval (ordered by query, time) reaches."""
    edge_q = np.concatenate([query, np.arange(len(low))])
    edge_end = np.concatenate([end, low])  # a window begins where an interval of zero length ended
    order = np.lexsort((edge_end, edge_q))
    q, since = edge_q[order], edge_end[order]
    starts = np.concatenate([start, high])
    starts_q = np.concatenate([query, np.arange(len(low))])
    until = starts[np.lexsort((starts, starts_q))]
    keep = until > since
    return q[keep], since[keep], until[keep]
