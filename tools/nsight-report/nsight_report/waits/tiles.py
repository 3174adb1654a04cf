# SPDX-License-Identifier: GPL-2.0-only
"""What threads did in intervals of time: pieces that tile each interval, on and off the core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..interval_joins import Int, overlaps, tile
from ..tables.data_frames import column
from ..timeline.exposure import THROTTLED_NS
from ..timeline.pieces import uncovered
from .activity import Activity
from .kinds import INFERRED, MEASURED, MISSING, device_names, kinds_of
from .words import Words

WAITING = ("sleeping", "blocked", "stopped")
#: Columns of each piece; a column that a kind does not have is -1 (numbers), 0 (``arg``, ``nbytes``) or ''.
NUMBERS = ("query", "tid", "pid", "start_ns", "end_ns", "arg", "cpu", "other_tid", "nbytes")
WORDS = ("comm", "doing", "kind", "name", "other_comm", "device", "operation", "sure")

#: Columns of the same length, by name; words as numbers of ``Words``.
Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Queries:
    """Threads with intervals; the intervals may overlap, also for one thread."""

    tid: Int
    start: Int
    end: Int


def tiles(asked: Queries, activity: Activity, words: Words) -> Columns:
    """Pieces (NUMBERS, WORDS, ``by_thread``) in order of query and time; the pieces of a query tile it exactly.

    ``query``: position in ``asked``; ``by_thread``: ``other_tid`` ended this wait, and what it did explains it.
    """
    states = activity.states_of(asked.tid, asked.start, asked.end)
    of = _Overlap.of(asked.tid, asked.start, asked.end, states, "tid")
    base: Columns = {"query": of.query, "start_ns": of.start, "end_ns": of.end}
    base |= {name: column(states[name])[of.item] for name in ("tid", "pid", "cpu")}
    base["comm"] = words.of(states["comm"])[of.item]
    state = words.of(states["state"])[of.item]
    on_core = np.isin(state, words.numbers(["running", "runnable"]))
    off_core = np.isin(state, words.numbers(list(WAITING)))
    query, low, high = uncovered(of.query, of.start, of.end, asked.start, asked.end)
    never = {"query": query, "tid": asked.tid[query], "start_ns": low, "end_ns": high}
    unknown = {"doing": "unknown", "kind": "unknown", "sure": MISSING}
    throttled = state == words.number("throttled")
    rest = ~on_core & ~off_core & ~throttled
    every = [
        *_on_core(_rows(base, on_core), state[on_core], activity, words),
        *_off_core(_rows(base, off_core), state[off_core], activity, words),
        _piece(words, _rows(base, throttled), doing="runnable", kind="CPU quota", sure=MEASURED),
        _piece(words, _rows(base, rest), name=state[rest], **unknown),
        _piece(words, never, name="not recorded", **unknown),
    ]
    pieces = {name: np.concatenate([part[name] for part in every]) for name in every[0]}
    order = np.lexsort((pieces["start_ns"], pieces["query"]))
    return _joined(_rows(pieces, order), words)


@dataclass(frozen=True)
class _Overlap:
    """Pairs of a query and a row of a table that overlap."""

    query: Int
    item: Int
    start: Int
    end: Int

    @staticmethod
    def of(group: Int, start: Int, end: Int, table: pd.DataFrame, by: str) -> _Overlap:
        of, low, high = (column(table[name]) for name in (by, "start_ns", "end_ns"))
        of, low, high, item = _apart(of, low, high)
        query, row, low, high = overlaps(group, start, end, of, low, high)
        return _Overlap(query, item[row], low, high)


def _apart(group: Int, start: Int, end: Int) -> tuple[Int, Int, Int, Int]:
    """Intervals of each group without overlaps, with their rows: where records were lost, a thread seems to be on two cores."""
    order = np.lexsort((start, group))
    of, low, high = group[order], start[order], end[order]
    if ((of[1:] != of[:-1]) | (low[1:] >= high[:-1])).all():
        return of, low, high, order
    of, low, high, item = tile(group, start, end)
    there = item >= 0
    return of[there], low[there], high[there], item[there]


def _rows(columns: Columns, rows: npt.NDArray[Any]) -> Columns:
    return {name: values[rows] for name, values in columns.items()}


def _piece(words: Words, base: Columns, **columns: npt.NDArray[Any] | str) -> Columns:
    """Rows of ``base`` with the other columns (one word for all rows, or numbers), which are empty unless they are given."""
    n = len(base["query"])
    made: Columns = {name: np.full(n, -1) for name in NUMBERS if name not in base}
    made |= {name: np.zeros(n, np.int64) for name in (*WORDS, "arg", "nbytes")}
    made["by_thread"] = np.zeros(n, bool)
    made |= base
    for name, value in columns.items():
        made[name] = np.full(n, words.number(value)) if isinstance(value, str) else value
    return made


def _on_core(base: Columns, state: Int, activity: Activity, words: Words) -> list[Columns]:
    """Running: the context of its core. Ready: what occupied the core in whose queue it waited."""
    cpu, start, end = base["cpu"], base["start_ns"], base["end_ns"]
    contexts = activity.contexts_of(cpu, start, end)
    of = _Overlap.of(cpu, start, end, contexts, "cpu")
    kind, symbol, comm = (words.of(contexts[name])[of.item] for name in ("kind", "symbol", "comm"))
    core_tid = column(contexts["tid"])[of.item]
    rows = _rows(base, of.query) | {"start_ns": of.start, "end_ns": of.end}
    runs = state[of.query] == words.number("running")

    def among(*kinds: str) -> npt.NDArray[np.bool_]:
        return np.isin(kind, words.numbers(list(kinds)))

    owner, irq, own = (
        among("thread", "syscall", "exception"),
        among("softirq", "hardirq"),
        core_tid == rows["tid"],
    )
    gap, idle = among("gap"), among("idle")
    # If the core is idle, a ready thread is waking up, or its process has used up its quota. That is also possible if it is busy.
    limited = ~runs & np.isin(rows["pid"], activity.throttled)
    quota = limited & idle & (of.end - of.start > THROTTLED_NS)
    none = np.zeros(len(kind), np.int64)
    cases: list[tuple[npt.NDArray[np.bool_], str, str, Int]] = [
        (among("absent"), "absent", "steal", none),
        (gap, "unknown", "unknown", none + words.number("untraced")),
        (runs & irq, "interrupted", "interrupt", symbol),
        (runs, "running", "running", np.where(among("syscall"), symbol, 0)),
        (irq, "runnable", "run queue", symbol),
        (quota, "runnable", "CPU quota", none),
        (idle | own, "runnable", "wake-up", none),
        (owner, "runnable", "run queue", comm),
    ]
    conditions = [case[0] for case in cases]
    unknown = words.number("unknown")
    doing = np.select(conditions, [none + words.number(case[1]) for case in cases], unknown)
    what = np.select(conditions, [none + words.number(case[2]) for case in cases], unknown)
    taken = ~runs & owner & ~own
    sure = np.where(
        gap, words.number(MISSING), np.where(limited, words.number(INFERRED), words.number(MEASURED))
    )
    found = _piece(
        words,
        rows,
        doing=doing,
        kind=what,
        name=np.select(conditions, [case[3] for case in cases], 0),
        other_tid=np.where(taken, core_tid, -1),
        other_comm=np.where(taken, comm, 0),
        sure=sure,
    )
    query, low, high = uncovered(of.query, of.start, of.end, start, end)
    rest = _rows(base, query) | {"start_ns": low, "end_ns": high}
    doing = state[query]
    kinds = np.where(doing == words.number("running"), doing, unknown)
    return [found, _piece(words, rest, doing=doing, kind=kinds, name="untraced", sure=MISSING)]


def _off_core(base: Columns, state: Int, activity: Activity, words: Words) -> list[Columns]:
    """Sleeping, blocked or stopped: what for, and who woke it."""
    tid, start, end = base["tid"], base["start_ns"], base["end_ns"]
    waits = activity.waits_of(tid, start, end)
    of = _Overlap.of(tid, start, end, waits, "tid")
    rows = _rows(base, of.query) | {"start_ns": of.start, "end_ns": of.end}
    kinds = _rows(kinds_of(waits, words), of.item)
    by_thread, waker = kinds.pop("by_thread"), column(waits["waker_tid"])[of.item]
    in_irq = np.isin(words.of(waits["context"]), words.numbers(["softirq", "hardirq"]))
    symbol = np.where(in_irq, words.of(waits["symbol"]), 0)
    found = _piece(
        words,
        rows,
        doing=state[of.query],
        name=words.of(waits["place"])[of.item],
        arg=column(waits["arg"])[of.item],
        cpu=column(waits["waker_cpu"])[of.item],
        other_tid=np.where(by_thread, waker, -1),
        other_comm=np.where(by_thread, words.of(waits["waker_comm"])[of.item], symbol[of.item]),
        device=device_names(column(waits["device"]), words)[of.item],
        operation=words.of(waits["operation"])[of.item],
        nbytes=column(waits["nbytes"])[of.item],
        by_thread=by_thread & (waker > 0),
        **kinds,
    )
    query, low, high = uncovered(of.query, of.start, of.end, start, end)
    rest = _rows(base, query) | {"start_ns": low, "end_ns": high}
    return [found, _piece(words, rest, doing=state[query], kind="unknown", sure=MISSING)]


def _joined(pieces: Columns, words: Words) -> Columns:
    """Joins consecutive pieces that differ only in their times."""
    start, end = pieces["start_ns"], pieces["end_ns"]
    same = np.zeros(len(start), bool)
    # Two waits stay two, even if they look alike.
    asleep = np.isin(pieces["doing"], words.numbers(list(WAITING)))
    same[1:] = (start[1:] == end[:-1]) & ~asleep[1:]
    for name, values in pieces.items():
        if name not in ("start_ns", "end_ns"):
            same[1:] &= values[1:] == values[:-1]
    first = np.flatnonzero(~same)
    if not len(first):
        return pieces
    return _rows(pieces, first) | {"end_ns": np.maximum.reduceat(end, first)}
