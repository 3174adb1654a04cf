# SPDX-License-Identifier: GPL-2.0-only
"""What reading threads entered: system calls, exceptions (Intel PT) and their own code, and since when they waited."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..interval_joins import Int
from ..tables.data_frames import column, numbers, to_pandas
from ..tables.intervals import IntervalTable, union
from . import occupancy
from .machine import USER_CODE
from .occupancy import Asked, Reads
from .pieces import threads_of

_ENTERED = ("thread", "syscall", "exception")
_STRETCHES = ("tid", "start_ns", "symbol", "kind", "call_id")
_SYSCALLS = ("tid", "start_ns", "symbol", "dur_ns", "end_known")
_STATES = ("tid", "start_ns", "end_ns", "state", "cpu")
_MAY_WAIT = ("sleeping", "waiting", "unknown")


_Columns = dict[str, npt.NDArray[np.int64]]
#: The number of USER_CODE among the words of symbols.
_USER_CODE = 0


class _Entered(NamedTuple):
    """What threads entered, in order of time as far as equal begins need it; ``symbol``: number of a word."""

    tid: Int
    start: Int
    symbol: npt.NDArray[np.int32]
    is_new: npt.NDArray[np.bool_]

    def take(self, at: Int) -> _Entered:
        """Some of them, in that order."""
        return _Entered(self.tid[at], self.start[at], self.symbol[at], self.is_new[at])


def find(
    source: IntervalTable,
    is_contexts: bool,
    states: IntervalTable,
    messages: pd.DataFrame,
    asked: Asked,
    reads: Reads,
    tids: Int,
) -> pd.DataFrame:
    """What threads entered (tid, start_ns, symbol, is_new), as far as a later step looks it up.

    That is a system call, an exception (Intel PT) or USER_CODE: the last one before some time in a message's lifetime,
    or before the thread began to wait in it; and the first wait after a message was read. ``is_new``: a system call
    begins there, not the rest of one after an interruption. ``source``: ``contexts`` if they contain
    system calls, else ``calls``; ``states``: ``thread_states``; ``tids``: the application's threads.
    """
    tid, first, last = threads_of(messages)
    began = states.overlapping(tid, first, last, ["start_ns"])["start_ns"].to_numpy()
    low, high = union(np.append(first, began), np.append(last, began) + 1)
    asked = replace(asked, low=low, high=high)
    tids, times = np.union1d(reads.tid, tids), np.sort(reads.read)
    words: dict[str, int] = {USER_CODE: _USER_CODE}
    kinds, names, rows_of = (
        (_ENTERED, _STRETCHES, _of_intervals()) if is_contexts else (("syscall",), _SYSCALLS, _of_syscalls)
    )
    found = []
    for table in source.each_where("kind", kinds, names):
        columns = {name: numbers(table[name], words) for name in names}
        rows = np.flatnonzero(np.isin(columns["tid"], tids))
        columns = {name: of[rows] for name, of in columns.items()}
        if not is_contexts and (near := _near(columns, words, asked, times)) is not None:
            columns = {name: of[near] for name, of in columns.items()}
        found.append(_looked_for(rows_of(columns, words), words, asked, times))
    every = _Entered(*(np.concatenate(of) for of in zip(*found, strict=True)))
    symbol = pd.Categorical.from_codes(every.symbol, pd.Index(list(words)))
    frame = {"tid": every.tid, "start_ns": every.start, "symbol": symbol, "is_new": every.is_new}
    return pd.DataFrame(frame).astype({"symbol": str})


def waits(entered: pd.DataFrame) -> pd.DataFrame:
    """When threads began to wait for events: tid, start_ns."""
    begin = entered["is_new"] & entered["symbol"].isin(occupancy.WAITS)
    return entered.loc[begin, ["tid", "start_ns"]]


def asleep(states: IntervalTable, gaps: pd.DataFrame, tids: Int) -> pd.DataFrame:
    """When threads waited (tid, start_ns) by their states, only where nothing is known about their core."""
    cpu, start, end = (column(gaps[c]) for c in ("cpu", "start_ns", "end_ns"))
    known, found = np.ones(len(gaps), bool), []
    for table in states.each_where("state", _MAY_WAIT if len(gaps) else [], _STATES):
        of = to_pandas(table.filter(pa.array(np.isin(table["tid"].to_numpy(), tids))))
        found.append(of.loc[occupancy.begin_in_gaps(of, cpu, start, end, known), ["tid", "start_ns"]])
    return pd.concat(found, ignore_index=True)


def _of_intervals() -> Callable[[_Columns, dict[str, int]], _Entered]:
    """What threads entered, from rows of ``contexts`` in order, some at a time: an interval begins where one is entered again."""
    newest = -1

    def rows_of(contexts: _Columns, words: dict[str, int]) -> _Entered:
        nonlocal newest
        ids, kind = contexts["call_id"], contexts["kind"]
        # They ascend: an older one began in an earlier row group.
        is_new = (kind == words.get("syscall", -1)) & (ids > newest) & ~pd.Series(ids).duplicated().to_numpy()
        newest = max(newest, int(ids.max(initial=-1)))
        symbol = np.where(kind != words.get("thread", -1), contexts["symbol"], _USER_CODE)
        return _Entered(contexts["tid"], contexts["start_ns"], symbol, is_new)

    return rows_of


def _near(calls: _Columns, words: dict[str, int], asked: Asked, times: Int) -> Int | None:
    """Rows of system calls among which ``_looked_for`` finds the same as among all; None: not known, they are not of one thread in order.

    These are few of a recording: what begins in the requested times, the two before each, and the first wait from each of ``times`` on.
    """
    tid, start = calls["tid"], calls["start_ns"]
    if not len(tid) or (tid != tid[0]).any():
        return None
    ended = np.where(calls["end_known"] == words.get("measured", -1), start + calls["dur_ns"], start)
    if (ended < start).any() or (ended[:-1] > start[1:]).any():
        return None
    # One more than those that begin by the last row: for all later ones its end is the last.
    first = np.searchsorted(asked.high, start[0], "right")
    last = np.searchsorted(asked.low, start[-1], "right") + 1
    before = np.maximum(np.searchsorted(start, asked.low[first:last]) - 2, 0)
    low = np.searchsorted(start, start[before])  # calls without length may begin at the same time
    edges = np.zeros(len(start) + 1, np.int64)
    np.add.at(edges, low, 1)
    np.add.at(edges, np.searchsorted(start, asked.high[first:last]), -1)
    keep = np.cumsum(edges[:-1]) > 0
    waits = np.flatnonzero(_among(calls["symbol"], words, occupancy.WAITS))
    after = np.searchsorted(start[waits], times)
    keep[waits[after[after < len(waits)]]] = True
    return np.flatnonzero(keep)


def _among(symbol: npt.NDArray[Any], words: dict[str, int], wanted: Iterable[str]) -> npt.NDArray[np.bool_]:
    table = np.zeros(len(words) + 1, bool)  # the last one: null
    table[[words[word] for word in wanted if word in words]] = True
    return table[symbol]


def _of_syscalls(calls: _Columns, words: dict[str, int]) -> _Entered:
    """The same from system calls in ``calls``: user code follows when one ends. A switch cuts it but does not end it."""
    ended = np.flatnonzero(calls["end_known"] == words.get("measured", -1))
    start, took = calls["start_ns"], calls["dur_ns"][ended]
    # At equal times, one system call ends before the next one begins, but after its own begin.
    later, own = ended[took > 0], ended[took <= 0]
    times = np.concatenate([start[later] + calls["dur_ns"][later], start, start[own] + calls["dur_ns"][own]])
    n_later, n_begun = len(later), len(start)
    order = np.argsort(times, kind="stable")
    begins = (order >= n_later) & (order < n_later + n_begun)
    return _Entered(
        np.concatenate([calls["tid"][later], calls["tid"], calls["tid"][own]])[order],
        times[order],
        np.where(begins, calls["symbol"][np.where(begins, order - n_later, 0)], np.int32(_USER_CODE)),
        begins,
    )


def _looked_for(entered: _Entered, words: dict[str, int], asked: Asked, times: Int) -> _Entered:
    """Rows that are the last of their thread up to a time in ``asked``, or the first of its waits from one of ``times`` on."""
    order = _by_thread(entered.tid, entered.start)
    tid, start = entered.tid[order], entered.start[order]
    wanted = asked.about(start, _beside(tid, start, 1))
    waits = np.flatnonzero((entered.is_new & _among(entered.symbol, words, occupancy.WAITS))[order])
    before = _beside(tid[waits], start[waits], -1)
    wanted[waits] |= np.searchsorted(times, before, "right") < np.searchsorted(times, start[waits], "right")
    return entered.take(np.sort(order[wanted]))


def _by_thread(tid: Int, start: Int) -> Int:
    """The order of rows by thread and time; rows of equal times keep theirs. Most parts of a table are of one thread, in order."""
    if (start[1:] < start[:-1]).any():
        return np.lexsort((start, tid))
    return np.argsort(tid, kind="stable") if (tid[1:] != tid[:-1]).any() else np.arange(len(tid))


def _beside(group: Int, time: Int, step: int) -> Int:
    """The time of the next (1) or previous (-1) row in each row's group, in order; without such a row, never."""
    never = np.iinfo(np.int64).max * step
    beside, of = np.roll(time, -step), np.roll(group, -step)
    end = -1 if step == 1 else 0
    if len(group):
        beside[(of != group) | (np.arange(len(group)) == end % len(group))] = never
    return beside
