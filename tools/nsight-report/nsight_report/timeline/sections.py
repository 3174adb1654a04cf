# SPDX-License-Identifier: GPL-2.0-only
"""Where a message was, by its timestamps: on which core from when to when.

Section 4.1 of the paper: up to the hand-off a message lives on its receive core (R), after it on its application core
(A). The receive core is not always one core: packet steering (RPS) or another device on the way (a bridge, a veth) may
queue the packet for a second core, whose softirq then hands it off. If the application has locked the socket, the packet
waits in the socket's backlog, and the thread that unlocks it hands it off (release_sock).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..tables.data_frames import column

if TYPE_CHECKING:
    from .detours import Detours

Int = npt.NDArray[np.int64]

R, A = 0, 1
SIDES = ("R", "A")


class Place(IntEnum):
    """Parts of a lifetime, in order of time for each direction.

    Received: RECEIVE, then one of SECOND_CORE and BACKLOG where there was one, then APPLICATION. Sent: APPLICATION up to the
    end of the send call, TRANSMIT_QUEUE up to the driver, DRIVER up to the completion. Intervals of threads: BEGINNER up to
    the hand-over where another thread began it, then APPLICATION.
    """

    RECEIVE = 0
    SECOND_CORE = 1
    BACKLOG = 2
    APPLICATION = 3
    TRANSMIT_QUEUE = 4
    DRIVER = 5
    BEGINNER = 6


_SIDE = np.array([R, R, A, A, R, R, A])
#: Where a thread counts, wherever it is, and not a core: ``threads_at`` says which.
OF_THREADS = (Place.APPLICATION, Place.BEGINNER)


@dataclass(frozen=True)
class Sections:
    """Parts of lifetimes, one element each, in order of message and time; those of a message tile its lifetime exactly.

    ``row``: position of the message; ``place``: a Place; ``side``: R or A; ``cpu``: the core that counts, -1 unknown;
    ``start``, ``end``: ns, monotonic, never equal.
    """

    row: Int
    place: Int
    side: Int
    cpu: Int
    start: Int
    end: Int

    def __len__(self) -> int:
        return len(self.row)


def sections(messages: pd.DataFrame, found: Detours | None = None) -> Sections:
    """Parts of the lifetimes of ``messages`` (rows of the table).

    ``found``: by row, what the contexts of the cores tell of the way between two cores. Without it, a packet leaves its
    receive core at its last arrival, and whatever other core hands it off counts from there. A received message without
    hand-off timestamp is cut at its last arrival; a sent one that never reached a driver lives on the application's core.
    """
    first, last, arrival, arrived, handoff, app, driver = (
        column(messages[name])
        for name in (
            "first_ns", "last_ns", "arrival_ns", "arrival_last_ns", "handoff_ns", "app_ns", "driver_ns"
        )
    )  # fmt: skip
    recv_cpu, handoff_cpu, app_cpu = (column(messages[c]) for c in ("recv_cpu", "handoff_cpu", "app_cpu"))
    tx, of_thread = ((messages["direction"] == name).to_numpy(bool) for name in ("tx", "interval"))

    seen = np.where(arrived >= 0, arrived, np.where(arrival >= 0, arrival, first))
    cut = np.clip(np.where(handoff >= 0, handoff, seen), first, last)
    waited = np.zeros(len(messages), bool) if found is None else found.in_backlog
    moved = (handoff >= 0) & (waited | ((recv_cpu >= 0) & (handoff_cpu >= 0) & (recv_cpu != handoff_cpu)))
    left = seen if found is None else np.maximum(found.left_ns, seen)
    left = np.where(moved, np.clip(left, first, cut), cut)

    at_driver = np.clip(np.where(driver >= 0, driver, last), first, last)
    returned = np.clip(np.where(app >= 0, app, at_driver), first, at_driver)

    rx = ~tx & ~of_thread
    taken = np.where(of_thread, np.clip(_taken_over(messages), first, last), first)
    parts: list[tuple[Place, npt.NDArray[np.bool_], Int, Int, Int]] = [
        (Place.RECEIVE, rx, recv_cpu, first, left),
        (Place.SECOND_CORE, rx & ~waited, handoff_cpu, left, cut),
        (Place.BACKLOG, rx & waited, handoff_cpu, left, cut),
        (Place.APPLICATION, rx, app_cpu, cut, last),
        (Place.APPLICATION, tx, app_cpu, first, returned),
        (Place.BEGINNER, of_thread, recv_cpu, first, taken),
        (Place.APPLICATION, of_thread, app_cpu, taken, last),
        (Place.TRANSMIT_QUEUE, tx, recv_cpu, returned, at_driver),
        (Place.DRIVER, tx, recv_cpu, at_driver, last),
    ]
    there = [np.flatnonzero((start < end) & of) for _, of, _, start, end in parts]
    row = np.concatenate(there)
    place = np.repeat([part[0] for part in parts], [len(rows) for rows in there])
    cpu = np.concatenate([part[2][rows] for part, rows in zip(parts, there, strict=True)])
    start = np.concatenate([part[3][rows] for part, rows in zip(parts, there, strict=True)])
    end = np.concatenate([part[4][rows] for part, rows in zip(parts, there, strict=True)])
    order = np.lexsort((start, row))
    return Sections(*(values[order] for values in (row, place, _SIDE[place], cpu, start, end)))


def threads_at(messages: pd.DataFrame, row: Int, at: Int) -> Int:
    """Which thread counts for the messages at positions ``row`` at a time each."""
    begun = at < _taken_over(messages)[row]
    return np.where(begun, column(messages["begin_tid"])[row], column(messages["tid"])[row])


def threads_of(messages: pd.DataFrame) -> tuple[Int, Int, Int]:
    """Threads of messages, and from when to when each counts: (tid, begin, end)."""
    tid, first, last = (column(messages[c]) for c in ("tid", "first_ns", "last_ns"))
    taken = _taken_over(messages)
    begun = np.flatnonzero(taken > first)
    return (
        np.append(tid, column(messages["begin_tid"])[begun]),
        np.append(np.maximum(first, taken), first[begun]),
        np.append(last, np.minimum(taken, last)[begun]),
    )


def _taken_over(messages: pd.DataFrame) -> Int:
    """When each one's ``tid`` took over from its ``begin_tid``; -1: it was the only one."""
    return np.where(column(messages["begin_tid"]) > 0, column(messages["handoff_ns"]), -1)
