# SPDX-License-Identifier: GPL-2.0-only
"""Waits for events: threads that wait for any event hold no lock, and an event may belong to another request.

A runtime with its own threads (Go, tokio) parks idle threads in futex, and one thread in epoll. What ends a futex wait there is
no unlock: the thread that woke it had waited in epoll, and hands on what came. A thread that serves several requests in turn is
woken for each of them: a wake-up after which it reads another request says nothing about those that still wait.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..interval_joins import Int, keys
from .kinds import INFERRED
from .tiles import WAITING, Columns
from .words import Words

Bool = npt.NDArray[np.bool_]

#: Waits for many files at once. In poll and select, a thread that holds a lock may wait for a single one.
EPOLL = ("epoll_wait", "epoll_pwait", "epoll_pwait2")


def hand_overs(pieces: Columns, words: Words) -> None:
    """Make locks hand-overs if the thread of the same process that ended the wait had waited in epoll meanwhile, or for such a hand-over.

    ``pieces``: of all depths, where piece_id is the position; changed in place.
    """
    parent, depth, pid = pieces["parent_id"], pieces["depth"], pieces["pid"]
    lock, handed = words.number("lock"), words.number("hand-over")
    passes = np.isin(pieces["doing"], words.numbers(list(WAITING)))
    passes &= np.isin(pieces["name"], words.numbers(list(EPOLL)))
    for level in range(int(depth.max(initial=0)), 0, -1):
        child = np.flatnonzero(passes & (depth == level))
        of = parent[child]
        of = of[(pid[child] == pid[of]) & (pieces["kind"][of] == lock)]
        pieces["kind"][of], pieces["sure"][of], passes[of] = handed, words.number(INFERRED), True


class Reads(NamedTuple):
    """When which thread read which received request, and when the last send call of its reply began; and when which thread
    read a reply to a request of its own.
    """

    request: Int
    tid: Int
    read: Int
    sent: Int
    reply_tid: Int
    reply_read: Int


class Loops(NamedTuple):
    """For parts of waits, in time order of each request, what is known of the event for which a thread waited then.

    ``other``: it was for another request; ``last``: position of the part with the event after which the request went on, -1 unknown.
    """

    other: Bool
    last: Int


def loops(request: Int, tid: Int, start: Int, end: Int, is_event: Bool, reads: Reads) -> Loops:
    """``tid``, ``start``, ``end``: of the wait that explains each part; ``is_event``: it was for any event.

    The event was for another request if the thread read one before it waited again, or before this request was answered, and
    read no reply, which this request may have waited for.
    """
    n = len(request)
    other, last = np.zeros(n, bool), np.full(n, -1)
    at = np.flatnonzero(is_event)
    if not len(at) or not len(reads.read):
        return Loops(other, last)
    place = np.argsort(reads.request, kind="stable")
    found = np.minimum(np.searchsorted(reads.request[place], request[at]), len(place) - 1)
    own = place[found]
    until = np.where(reads.request[own] == request[at], reads.sent[own], end[at])
    # The next wait of the same thread, in the order of the request's own parts.
    order = np.lexsort((start[at], tid[at], request[at]))
    of, thread, begun = request[at][order], tid[at][order], start[at][order]
    again = np.append((of[1:] == of[:-1]) & (thread[1:] == thread[:-1]) & (begun[1:] > begun[:-1]), False)
    following = np.append(begun[1:], 0)
    until[order] = np.where(again, np.minimum(until[order], following), until[order])
    by, replies, low, high = keys(
        (reads.tid, reads.read),
        (reads.reply_tid, reads.reply_read),
        (tid[at], end[at]),
        (tid[at], np.maximum(until, end[at])),
    )
    n_read, n_replies = (
        np.searchsorted(of, high) - np.searchsorted(of, low) for of in (np.sort(by), np.sort(replies))
    )
    other[at] = (n_read > 0) & (n_replies == 0)
    # Of each request, the latest part.
    order = at[np.lexsort((end[at], request[at]))]
    ends = np.append(request[order][1:] != request[order][:-1], True)
    final = order[ends]
    known = np.where(other[final], -1, final)
    last[at] = known[np.searchsorted(request[final], request[at])]
    return Loops(other, last)
