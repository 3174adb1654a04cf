# SPDX-License-Identifier: GPL-2.0-only
"""Which thread held a request while it was worked on: from the thread that read it to the thread that sent the reply.

The request is followed backwards from the reply: whoever woke a thread handed the work to it. A thread that was not woken
since it sent another reply took the work from memory (a queue that it looked at), at that reply at the earliest. Time in
which a thread had several requests belongs to none of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..interval_joins import Int, as_of, meets, overlaps
from ..tables import schema
from ..tables.data_frames import column
from ..timeline.pieces import uncovered
from .activity import Activity
from .chains import are_hand_overs
from .kinds import FILES, INFERRED, LOCKS, MEASURED, MISSING, kinds_of
from .words import Words

#: Maximum number of threads that a request passes through.
DEPTH = 8
SHARED = "shared"
#: How a part began, in addition to the kinds of waits: the thread read the request; it took it from memory; nobody had it yet.
READ, MEMORY, QUEUED = "read", "memory", "queued"
COLUMNS = ("request_id", "tid", "reply_tid", "read_ns", "last_send_ns")


@dataclass(frozen=True)
class _Parts:
    """Parts of services; ``of``: position of the request, ``how`` and ``sure``: numbers of words."""

    of: Int
    tid: Int
    start: Int
    end: Int
    how: Int
    sure: Int

    @staticmethod
    def join(parts: list[_Parts]) -> _Parts:
        names = _Parts.__dataclass_fields__
        return _Parts(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def take(self, at: npt.NDArray[Any]) -> _Parts:
        return _Parts(*(getattr(self, name)[at] for name in self.__dataclass_fields__))


def work(requests: pd.DataFrame, wanted: Int, activity: Activity) -> pa.Table:
    """Table ``request_work`` of the ``wanted`` requests (request_id) of ``requests`` (COLUMNS, received ones only).

    The other requests show what else a thread had in hand. A request's parts tile its service, from its read to the last send call.
    """
    columns = {name: column(requests[name]) for name in COLUMNS}
    chosen = np.isin(columns["request_id"], wanted) & (columns["last_send_ns"] > columns["read_ns"])
    if not chosen.any():
        return schema.empty("request_work")
    read, sent = columns["read_ns"], columns["last_send_ns"]
    beside = meets(read, sent, read[chosen], sent[chosen]) & (sent > read)
    columns = {name: values[beside] for name, values in columns.items()}
    words = Words()
    found = _apart(_Backwards(columns, activity, words).parts(), words)
    found = found.take(np.isin(columns["request_id"][found.of], wanted))
    found = found.take(np.lexsort((found.start, found.of)))
    made: dict[str, object] = {
        "request_id": columns["request_id"][found.of],
        "tid": found.tid.astype(np.int32),
        "comm": words.column(_names(found, activity, words)),
        "start_ns": found.start,
        "end_ns": found.end,
        "how": words.column(found.how),
        "sure": words.column(found.sure),
    }
    return schema.conform("request_work", pa.table(made))


class _Backwards:
    """Follows each reply back to the thread that read its request."""

    def __init__(self, columns: dict[str, Int], activity: Activity, words: Words) -> None:
        self._reader, self._replier, self._read, self._sent = (columns[name] for name in COLUMNS[1:])
        self._activity, self._words = activity, words
        self._nothing_known = activity.span() == (0, 0)
        self._parts: list[_Parts] = []

    def parts(self) -> _Parts:
        of, thread, end = np.arange(len(self._read)), self._replier, self._sent
        not_followed = [of[:0]]
        for _ in range(DEPTH):
            own = thread == self._reader[of]
            self._put(of[own], thread[own], self._read[of[own]], end[own], READ, MEASURED)
            of, thread, end = of[~own], thread[~own], end[~own]
            if not len(of):
                break
            woken, waker, kind, sure = self._woken(of, thread, self._since(of, thread, end), end)
            known = woken >= 0
            not_followed.append(of[~known])
            of, thread, end, waker = of[known], thread[known], end[known], waker[known]
            self._put(of, thread, woken[known], end, kind[known], sure[known])
            thread, end = waker, woken[known]
        # A wake-up by a thread that did not have the request itself is no hand-over.
        lost = np.concatenate([*not_followed, of])
        self._parts = [part.take(~np.isin(part.of, lost)) for part in self._parts]
        self._from_memory(lost)
        return _Parts.join(self._parts)

    def _since(self, of: Int, thread: Int, end: Int) -> Int:
        """Earliest time at which the thread can have got it: after the request was read and the thread had sent its previous reply."""
        before = as_of(self._replier, self._sent, thread, end - 1)
        return np.maximum(np.where(before >= 0, self._sent[before], 0), self._read[of])

    def _put(self, of: Int, tid: Int, start: Int, end: Int, how: str | Int, sure: str | Int) -> None:
        number = self._words.number
        made = _Parts(
            of, tid, start, end,
            np.full(len(of), number(how)) if isinstance(how, str) else how,
            np.full(len(of), number(sure)) if isinstance(sure, str) else sure,
        )  # fmt: skip
        self._parts.append(made.take(made.end > made.start))

    def _woken(self, of: Int, thread: Int, low: Int, end: Int) -> tuple[Int, Int, Int, Int]:
        """The first wake-up by the reader in (low, end], else the first by any thread: (time or -1, by whom, kind, sure).

        A thread that slept on purpose or waited for a device in between had work already.
        """
        waits = self._activity.waits_of(thread, low, end)
        kinds = kinds_of(waits, self._words)
        tid, ended, waker = (column(waits[name]) for name in ("tid", "end_ns", "waker_tid"))
        by_thread = kinds["by_thread"] & (waker > 0)
        places = self._words.numbers([*LOCKS, *FILES])
        works = np.flatnonzero(~by_thread & ~np.isin(self._words.of(waits["place"]), places))
        wakes = np.flatnonzero(by_thread)
        if not len(wakes):
            none = np.full(len(of), -1)
            return none, none, none, none
        # With times negated, ``as_of`` finds the next row instead of the last one.
        pair = tid[wakes] << 32 | waker[wakes]
        by_reader = as_of(pair, -ended[wakes], thread << 32 | self._reader[of], -(low + 1))
        by_any = as_of(tid[wakes], -ended[wakes], thread, -(low + 1))
        row = wakes[np.where((by_reader >= 0) & (ended[wakes][by_reader] <= end), by_reader, by_any)]
        there = (by_any >= 0) & (ended[row] <= end)
        if len(works):
            began = as_of(tid[works], -ended[works], thread, -(low + 1))
            there &= (began < 0) | (ended[works][began] > ended[row])
        kind, sure = kinds["kind"][row], kinds["sure"][row]
        lock = np.flatnonzero(there & (kind == self._words.number("lock")))
        began = column(waits["start_ns"])[row[lock]]
        lock = lock[are_hand_overs(thread[lock], waker[row[lock]], began, ended[row[lock]], self._activity)]
        kind[lock], sure[lock] = self._words.numbers(["hand-over", INFERRED])
        return np.where(there, ended[row], -1), waker[row], kind, sure

    def _from_memory(self, of: Int) -> None:
        """The replying thread was awake when it took up the work. Before that the reader had it, until it slept or read another one."""
        sure = MISSING if self._nothing_known else INFERRED
        reader, read, thread, end = self._reader[of], self._read[of], self._replier[of], self._sent[of]
        since = self._since(of, thread, end)
        following = as_of(self._reader, -self._read, reader, -(read + 1))
        until = np.where(following >= 0, self._read[following], end)
        waits = self._activity.waits_of(reader, read, end)
        tid, start = column(waits["tid"]), column(waits["start_ns"])
        asleep = as_of(tid, -start, reader, -read)
        if len(start):
            until = np.where(asleep >= 0, np.minimum(until, start[asleep]), until)
        # If it continued until the reply, nothing shows when the other one began.
        until = np.where(until < end, np.maximum(until, read), read)
        late = since > read
        until = np.where(late, np.minimum(until, since), until)
        began = np.where(late, since, until)
        self._put(of, reader, read, until, READ, sure)
        self._put(of, thread, until, began, QUEUED, sure)
        self._put(of, thread, began, end, MEMORY, sure)


def _apart(found: _Parts, words: Words) -> _Parts:
    """If a thread had several requests in hand, the parts of each are marked as shared."""
    worked = found.how != words.number(QUEUED)
    hand, queue = found.take(worked), found.take(~worked)
    tid, time = np.concatenate([hand.tid] * 2), np.concatenate([hand.start, hand.end])
    step = np.repeat([1, -1], len(hand.of))
    order = np.lexsort((step, time, tid))
    tid, time, several = tid[order], time[order], np.cumsum(step[order]) > 1
    at = np.flatnonzero(several[:-1] & (time[1:] > time[:-1]))
    query, _, low, high = overlaps(hand.tid, hand.start, hand.end, tid[at], time[at], time[at + 1])
    together = replace(hand.take(query), start=low, end=high, sure=np.full(len(query), words.number(SHARED)))
    row, start, end = uncovered(query, low, high, hand.start, hand.end)
    return _joined(_Parts.join([together, replace(hand.take(row), start=start, end=end), queue]))


def _joined(found: _Parts) -> _Parts:
    """Joins consecutive parts that differ only in their times."""
    found = found.take(np.lexsort((found.start, found.of)))
    same = found.end[:-1] == found.start[1:]
    for name in ("of", "tid", "how", "sure"):
        same &= getattr(found, name)[1:] == getattr(found, name)[:-1]
    first = np.flatnonzero(np.append(True, ~same)[: len(found.of)])
    last = np.append(first[1:] - 1, len(found.of) - 1)
    return replace(found.take(first), end=found.end[last])


def _names(found: _Parts, activity: Activity, words: Words) -> Int:
    """Names of the threads at that time."""
    states = activity.states_of(found.tid, found.start, found.end)
    tid, start, name = column(states["tid"]), column(states["start_ns"]), words.of(states["comm"])
    row = as_of(tid, start, found.tid, found.end)
    return np.where(row >= 0, name[np.maximum(row, 0)] if len(name) else 0, 0)
