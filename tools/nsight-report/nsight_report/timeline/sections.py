# SPDX-License-Identifier: GPL-2.0-only
"""Where a message was, by its timestamps: on which core from when to when.

Section 4.1 of the paper: up to the hand-off a message lives on its receive core (R), after it on its application core
(A). The receive core can be more than one core: packet steering (RPS) or another device on the path (a bridge, a veth) may
queue the packet for a second core, whose softirq then hands it off. If the application has locked the socket, the packet
waits in the socket's backlog, and the thread that unlocks it hands it off (release_sock). A request lives on with the
thread that sends its reply, and from the send call on it is on its way out (T).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..tables.data_frames import column
from .incoming import began_to_come

if TYPE_CHECKING:
    from .detours import Detours

Int = npt.NDArray[np.int64]

R, A, T = 0, 1, 2
SIDES = ("R", "A", "T")


class Place(IntEnum):
    """Parts of a lifetime, in time order for each direction.

    Received: RECEIVE, then one of SECOND_CORE and BACKLOG where there was one, then APPLICATION. Sent: APPLICATION up to the
    end of the send call, TRANSMIT_QUEUE and QUEUE_DISCIPLINE up to the driver, DRIVER up to the completion. Intervals of threads: BEGINNER up to
    the hand-over if another thread began it, then APPLICATION. Requests: as received, then SERVICE up to the send call,
    SEND up to its end, TRANSMIT_QUEUE and QUEUE_DISCIPLINE up to the driver; sent requests begin with SEND, and are with their PEER from the
    driver until the reply comes.
    """

    RECEIVE = 0
    SECOND_CORE = 1
    BACKLOG = 2
    APPLICATION = 3
    TRANSMIT_QUEUE = 4
    DRIVER = 5
    SERVICE = 6
    SEND = 7
    PEER = 8
    BEGINNER = 9
    QUEUE_DISCIPLINE = 10


_SIDE = np.array([R, R, A, A, R, R, A, T, T, A, R])
#: The same for requests.
_SIDE_OF_REQUEST = np.array([R, R, A, A, T, T, A, T, T, A, T])
#: Places where threads work or wait: the one that began an interval, the (first) reader, and the sender.
OF_BEGINNER, OF_READER, OF_SENDER = (Place.BEGINNER,), (Place.APPLICATION,), (Place.SERVICE, Place.SEND)
#: Places where a thread counts, wherever it runs, and not a core.
OF_THREADS = (*OF_BEGINNER, *OF_READER, *OF_SENDER)

_Part = tuple[Place, npt.NDArray[np.bool_], Int, Int, Int]


@dataclass(frozen=True)
class Sections:
    """Parts of lifetimes, one element each, in order of message and time; those of a message tile its lifetime exactly.

    ``row``: position of the message; ``place``: a Place; ``side``: R, A or T; ``cpu``: the core that counts, -1 unknown;
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

    def take(self, chosen: npt.NDArray[np.bool_]) -> Sections:
        """The chosen ones."""
        return Sections(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))


def sections(messages: pd.DataFrame, found: Detours | None = None) -> Sections:
    """Parts of the lifetimes of ``messages`` (rows of the table, or of ``requests.lifetimes``).

    ``found``: by row, what the contexts of the cores show about the path between two cores. Without it, a packet leaves its
    receive core at its last arrival, and the core that hands it off, if another one, counts from there. A received message without
    hand-off timestamp is cut at its last arrival; a sent one that never reached a driver stays on the application's core.
    """
    requests = "send_ns" in messages
    tx, of_thread = ((messages["direction"] == name).to_numpy(bool) for name in ("tx", "interval"))
    last = column(messages["read_ns" if requests else "last_ns"])
    parts = _received(messages, ~tx & ~of_thread, began_to_come(messages), last, found)
    parts += _answered(messages) if requests else [*_sent(messages, tx), *_of_threads(messages, of_thread)]
    there = [np.flatnonzero((start < end) & of) for _, of, _, start, end in parts]
    row = np.concatenate(there)
    place = np.repeat([part[0] for part in parts], [len(rows) for rows in there])
    cpu = np.concatenate([part[2][rows] for part, rows in zip(parts, there, strict=True)])
    start = np.concatenate([part[3][rows] for part, rows in zip(parts, there, strict=True)])
    end = np.concatenate([part[4][rows] for part, rows in zip(parts, there, strict=True)])
    order = np.lexsort((start, row))
    side = (_SIDE_OF_REQUEST if requests else _SIDE)[place]
    return Sections(*(values[order] for values in (row, place, side, cpu, start, end)))


def taken_over(messages: pd.DataFrame) -> Int:
    """When the ``tid`` of each took over from its ``begin_tid``; -1: there was no other thread."""
    if "begin_tid" not in messages:
        return np.full(len(messages), -1)
    return np.where(column(messages["begin_tid"]) > 0, column(messages["handoff_ns"]), -1)


def _of_threads(messages: pd.DataFrame, of_thread: npt.NDArray[np.bool_]) -> list[_Part]:
    first, last, recv_cpu, app_cpu = (
        column(messages[name]) for name in ("first_ns", "last_ns", "recv_cpu", "app_cpu")
    )
    taken = np.clip(taken_over(messages), first, last)
    return [
        (Place.BEGINNER, of_thread, recv_cpu, first, taken),
        (Place.APPLICATION, of_thread, app_cpu, taken, last),
    ]


def _received(
    messages: pd.DataFrame, rx: npt.NDArray[np.bool_], first: Int, last: Int, found: Detours | None
) -> list[_Part]:
    """From ``first`` to the read, ``last``."""
    arrival, arrived, handoff, recv_cpu, handoff_cpu, app_cpu = (
        column(messages[name])
        for name in ("arrival_ns", "arrival_last_ns", "handoff_ns", "recv_cpu", "handoff_cpu", "app_cpu")
    )
    seen = np.where(arrived >= 0, arrived, np.where(arrival >= 0, arrival, first))
    cut = np.clip(np.where(handoff >= 0, handoff, seen), first, last)
    waited = np.zeros(len(messages), bool) if found is None else found.in_backlog
    moved = (handoff >= 0) & (waited | ((recv_cpu >= 0) & (handoff_cpu >= 0) & (recv_cpu != handoff_cpu)))
    left = seen if found is None else np.maximum(found.left_ns, seen)
    left = np.where(moved, np.clip(left, first, cut), cut)
    return [
        (Place.RECEIVE, rx, recv_cpu, first, left),
        (Place.SECOND_CORE, rx & ~waited, handoff_cpu, left, cut),
        (Place.BACKLOG, rx & waited, handoff_cpu, left, cut),
        (Place.APPLICATION, rx, app_cpu, cut, last),
    ]


def _sent(messages: pd.DataFrame, tx: npt.NDArray[np.bool_]) -> list[_Part]:
    first, last, app, driver, recv_cpu, app_cpu = (
        column(messages[name])
        for name in ("first_ns", "last_ns", "app_ns", "driver_ns", "recv_cpu", "app_cpu")
    )
    at_driver = np.clip(np.where(driver >= 0, driver, last), first, last)
    returned = np.clip(np.where(app >= 0, app, at_driver), first, at_driver)
    return [
        (Place.APPLICATION, tx, app_cpu, first, returned),
        *_to_driver(messages, tx, recv_cpu, returned, at_driver),
        (Place.DRIVER, tx, recv_cpu, at_driver, last),
    ]


def _answered(requests: pd.DataFrame) -> list[_Part]:
    """All parts except the way in: the service and the way out, or the way out and the peer."""
    begin, read, send, sent, left, send_cpu, driver_cpu = (
        column(requests[name])
        for name in ("in_ns", "read_ns", "send_ns", "sent_ns", "left_ns", "send_cpu", "driver_cpu")
    )
    every = np.ones(len(requests), bool)
    served = (requests["role"] == "server").to_numpy(bool)
    return [
        (Place.SERVICE, served, send_cpu, read, send),
        (Place.SEND, every, send_cpu, send, sent),
        *_to_driver(requests, every, driver_cpu, sent, left),
        (Place.PEER, ~served, np.full(len(requests), -1), left, begin),
    ]


def _to_driver(
    messages: pd.DataFrame, of: npt.NDArray[np.bool_], cpu: Int, start: Int, end: Int
) -> list[_Part]:
    """From the end of the send call to the driver. Only the length of the time in the queue discipline is known: it
    counts at the end, because data that TCP holds back gets there later.
    """
    in_qdisc = np.clip(column(messages["qdisc_dur_ns"]), 0, np.maximum(end - start, 0))
    return [
        (Place.TRANSMIT_QUEUE, of, cpu, start, end - in_qdisc),
        (Place.QUEUE_DISCIPLINE, of, cpu, end - in_qdisc, end),
    ]
