# SPDX-License-Identifier: GPL-2.0-only
"""What reading threads entered: system calls, exceptions (Intel PT) and their own code, and since when they waited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..interval_joins import Int
from ..tables.data_frames import column, to_pandas
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
    kinds, names, rows_of = (
        (_ENTERED, _STRETCHES, _of_intervals()) if is_contexts else (("syscall",), _SYSCALLS, _of_syscalls)
    )
    found = []
    for table in source.each_where("kind", kinds, names):
        rows = rows_of(to_pandas(table.filter(pa.array(np.isin(table["tid"].to_numpy(), tids)))))
        found.append(rows[_looked_for(rows, asked, times)])
    return pd.concat(found, ignore_index=True)


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


def _of_intervals() -> Callable[[pd.DataFrame], pd.DataFrame]:
    """What threads entered, from rows of ``contexts`` in order, some at a time: an interval begins where one is entered again."""
    newest = -1

    def rows_of(contexts: pd.DataFrame) -> pd.DataFrame:
        nonlocal newest
        ids = column(contexts["call_id"])
        # They ascend: an older one began in an earlier row group.
        is_new = (
            (contexts["kind"] == "syscall").to_numpy()
            & (ids > newest)
            & ~pd.Series(ids).duplicated().to_numpy()
        )
        newest = max(newest, int(ids.max(initial=-1)))
        symbol = contexts["symbol"].astype(str).where(contexts["kind"] != "thread", USER_CODE)
        return contexts[["tid", "start_ns"]].assign(symbol=symbol, is_new=is_new)

    return rows_of


def _of_syscalls(calls: pd.DataFrame) -> pd.DataFrame:
    """The same from system calls in ``calls``: user code follows when one ends. A switch cuts it but does not end it."""
    begins = calls[["tid", "start_ns"]].assign(symbol=calls["symbol"].astype(str), is_new=True, order=1)
    ended = calls[(calls["end_known"] == "measured").to_numpy()]
    took = column(ended["dur_ns"])
    # At equal times, one system call ends before the next one begins, but after its own begin.
    ends = ended[["tid"]].assign(
        start_ns=ended["start_ns"] + took, symbol=USER_CODE, is_new=False, order=np.where(took > 0, 0, 2)
    )
    both = pd.concat([begins, ends], ignore_index=True)
    return both.sort_values(["start_ns", "order"], ignore_index=True).drop(columns="order")


def _looked_for(entered: pd.DataFrame, asked: Asked, times: Int) -> npt.NDArray[np.bool_]:
    """Rows that are the last of their thread up to a time in ``asked``, or the first of its waits from one of ``times`` on."""
    tid, start = column(entered["tid"]), column(entered["start_ns"])
    wanted = np.zeros(len(tid), bool)
    order = np.lexsort((start, tid))
    wanted[order] = asked.about(start[order], _beside(tid[order], start[order], 1))
    waits = order[(entered["is_new"] & entered["symbol"].isin(occupancy.WAITS)).to_numpy()[order]]
    before = _beside(tid[waits], start[waits], -1)
    wanted[waits] |= np.searchsorted(times, before, "right") < np.searchsorted(times, start[waits], "right")
    return wanted


def _beside(group: Int, time: Int, step: int) -> Int:
    """The time of the next (1) or previous (-1) row in each row's group, in order; without such a row, never."""
    never = np.iinfo(np.int64).max * step
    beside, of = np.roll(time, -step), np.roll(group, -step)
    end = -1 if step == 1 else 0
    if len(group):
        beside[(of != group) | (np.arange(len(group)) == end % len(group))] = never
    return beside
