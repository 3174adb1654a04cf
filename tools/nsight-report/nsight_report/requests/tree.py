# SPDX-License-Identifier: GPL-2.0-only
"""Requests that a process sent while its thread was working on a request that it had received: the tree of requests."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..interval_joins import keys
from .rows import I64


class InHands(NamedTuple):
    """Received requests in the hands of the threads that read them: from the read to the last send call of the reply."""

    request_id: I64
    tid: I64
    start: I64
    end: I64

    @staticmethod
    def join(parts: list[InHands]) -> InHands:
        """All of them."""
        none = np.zeros(0, np.int64)
        return InHands(
            *(np.concatenate(of) for of in zip(InHands(none, none, none, none), *parts, strict=True))
        )


class Sent(NamedTuple):
    """Requests that threads sent, from the call to the read of the reply."""

    tid: I64
    start: I64
    end: I64


def parents(hands: InHands, sent: Sent) -> tuple[I64, int]:
    """``(request_id of the received request that contains each sent one, or -1; how many are in several)``.

    A received request contains a sent one if it is the only one in its thread's hands from the send until the reply is read.

    >>> hands = InHands(np.array([7, 8]), np.array([1, 1]), np.array([0, 100]), np.array([50, 190]))
    >>> parents(hands, Sent(np.array([1, 1, 1]), np.array([10, 40, 60]), np.array([20, 60, 70])))[0].tolist()
    [7, -1, -1]
    """
    # A request that was answered before it was read completely is in nobody's hands.
    hands = InHands(*(of[hands.end >= hands.start] for of in hands))
    if not len(hands.tid) or not len(sent.tid):
        return np.full(len(sent.tid), -1), 0
    started, ended, now = keys((hands.tid, hands.start), (hands.tid, hands.end), (sent.tid, sent.start))
    by_start, by_end = np.argsort(started, kind="stable"), np.argsort(ended, kind="stable")
    n_started = np.searchsorted(started[by_start], now, "right")
    n_ended = np.searchsorted(ended[by_end], now, "left")
    # If one is in hands, its number is the difference of the sums of all that started and all that ended.
    sums = [np.append(0, np.cumsum(order)) for order in (by_start, by_end)]
    only = sums[0][n_started] - sums[1][n_ended]
    one = n_started - n_ended == 1
    only = np.where(one, only, 0)
    inside = one & (hands.end[only] >= sent.end)
    return np.where(inside, hands.request_id[only], -1), int(np.count_nonzero(n_started - n_ended > 1))
