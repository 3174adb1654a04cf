# SPDX-License-Identifier: GPL-2.0-only
"""What threads did in intervals of time: pieces that tile each interval, on the core and off it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..interval_joins import Int, overlaps, tile
from ..tables.data_frames import column, words
from ..timeline.exposure import THROTTLED_NS
from ..timeline.pieces import uncovered
from .activity import Activity
from .kinds import INFERRED, MEASURED, MISSING, device_names, kinds_of

_WAITING = ("sleeping", "blocked", "stopped")
#: What each piece has; what a kind has not is -1 (numbers), 0 (``arg``, ``nbytes``) or ''.
NUMBERS = ("query", "tid", "pid", "start_ns", "end_ns", "arg", "cpu", "other_tid", "nbytes")
WORDS = ("comm", "doing", "kind", "name", "other_comm", "device", "operation", "sure")


@dataclass(frozen=True)
class Queries:
    """Threads and intervals of theirs; they may overlap, also of one thread."""

    tid: Int
    start: Int
    end: Int


def tiles(asked: Queries, activity: Activity) -> pd.DataFrame:
    """Pieces (NUMBERS, WORDS, ``by_thread``) in order of query and time; those of a query tile it exactly.

    ``query``: position in ``asked``; ``by_thread``: ``other_tid`` ended this wait, and what it did explains it.
    """
    states = activity.states_of(asked.tid, asked.start, asked.end)
    of = _Overlap.of(asked.tid, asked.start, asked.end, states, "tid")
    names = words(states["comm"])
    every = [_nothing(*uncovered(of.query, of.start, of.end, asked.start, asked.end), asked)]
    base = pd.DataFrame(
        {
            "query": of.query,
            "tid": column(states["tid"])[of.item],
            "pid": column(states["pid"])[of.item],
            "comm": names[of.item],
            "start_ns": of.start,
            "end_ns": of.end,
            "cpu": column(states["cpu"])[of.item],
        }
    )
    state = words(states["state"])[of.item]
    for wanted, make in ((("running", "runnable"), _on_core), (_WAITING, _off_core)):
        chosen = np.isin(state, wanted)
        if chosen.any():
            every += make(base[chosen].reset_index(drop=True), state[chosen], activity)
    rest = ~np.isin(state, ("running", "runnable", *_WAITING))
    every.append(_piece(base[rest], doing="unknown", kind="unknown", name=state[rest], sure=MISSING))
    pieces = pd.concat([piece for piece in every if len(piece)] or every, ignore_index=True)
    pieces = pieces.sort_values(["query", "start_ns"], kind="stable", ignore_index=True)
    return _joined(pieces)


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
    """Intervals of each group that do not overlap, with their rows: where records were lost, a thread seems to be on two cores."""
    order = np.lexsort((start, group))
    of, low, high = group[order], start[order], end[order]
    if ((of[1:] != of[:-1]) | (low[1:] >= high[:-1])).all():
        return of, low, high, order
    of, low, high, item = tile(group, start, end)
    there = item >= 0
    return of[there], low[there], high[there], item[there]


def _piece(base: pd.DataFrame, **columns: object) -> pd.DataFrame:
    """Rows of ``base`` with the other columns, which are nothing where they are not given."""
    nothing: dict[str, object] = {**dict.fromkeys(NUMBERS, -1), **dict.fromkeys(WORDS, "")}
    nothing |= {"arg": 0, "nbytes": 0, "by_thread": False}
    given = {name: base[name].to_numpy() for name in base.columns} | columns
    return pd.DataFrame({**nothing, **given}, index=range(len(base)))[[*NUMBERS, *WORDS, "by_thread"]]


def _nothing(query: Int, start: Int, end: Int, asked: Queries) -> pd.DataFrame:
    """No state of the thread is known: before it was created, before or after the recording, or no such thread."""
    base = pd.DataFrame({"query": query, "tid": asked.tid[query], "start_ns": start, "end_ns": end})
    return _piece(base, doing="unknown", kind="unknown", name="not recorded", sure=MISSING)


def _on_core(base: pd.DataFrame, state: npt.NDArray[np.object_], activity: Activity) -> list[pd.DataFrame]:
    """Running: what its core was in. Ready: who had the core whose queue it waited in."""
    cpu, start, end = (column(base[name]) for name in ("cpu", "start_ns", "end_ns"))
    contexts = activity.contexts_of(cpu, start, end)
    of = _Overlap.of(cpu, start, end, contexts, "cpu")
    kind, symbol, comm = (words(contexts[name])[of.item] for name in ("kind", "symbol", "comm"))
    core_tid = column(contexts["tid"])[of.item]
    rows = base.iloc[of.query].assign(start_ns=of.start, end_ns=of.end)
    runs = state[of.query] == "running"
    owner, tid = np.isin(kind, ("thread", "syscall", "exception")), column(rows["tid"])
    irq, own = np.isin(kind, ("softirq", "hardirq")), core_tid == tid
    steal, gap, idle = kind == "absent", kind == "gap", kind == "idle"
    # Steal in mode intel-pt is a gap; an idle core beside a ready thread that has used up its quota is no wake-up.
    quota = ~runs & idle & (of.end - of.start > THROTTLED_NS)
    quota &= np.isin(column(rows["pid"]), activity.throttled)
    cases = [
        (steal, "absent", "steal", ""),
        (gap, "unknown", "unknown", "untraced"),
        (runs & irq, "interrupted", "interrupt", symbol),
        (runs, "running", "running", np.where(kind == "syscall", symbol, "")),
        (irq, "runnable", "run queue", symbol),
        (quota, "runnable", "CPU quota", ""),
        (idle | own, "runnable", "wake-up", ""),
        (owner, "runnable", "run queue", comm),
    ]
    conditions = [case[0] for case in cases]

    def chosen(column_: int, otherwise: str) -> npt.NDArray[np.object_]:
        values = [np.broadcast_to(np.asarray(case[column_], object), len(kind)) for case in cases]
        return np.select(conditions, values, otherwise).astype(object)

    taken = ~runs & owner & ~own
    found = _piece(
        rows,
        doing=chosen(1, "unknown"),
        kind=chosen(2, "unknown"),
        name=chosen(3, ""),
        other_tid=np.where(taken, core_tid, -1),
        other_comm=np.where(taken, comm, ""),
        sure=np.where(gap, MISSING, np.where(quota, INFERRED, MEASURED)),
    )
    query, low, high = uncovered(of.query, of.start, of.end, start, end)
    rest = base.iloc[query].assign(start_ns=low, end_ns=high)
    on = state[query]
    kinds = np.where(on == "running", "running", "unknown")
    return [found, _piece(rest, doing=on, kind=kinds, name="untraced", sure=MISSING)]


def _off_core(base: pd.DataFrame, state: npt.NDArray[np.object_], activity: Activity) -> list[pd.DataFrame]:
    """Sleeping, blocked or stopped: what for, and who woke it."""
    tid, start, end = (column(base[name]) for name in ("tid", "start_ns", "end_ns"))
    waits = activity.waits_of(tid, start, end)
    of = _Overlap.of(tid, start, end, waits, "tid")
    rows = base.iloc[of.query].assign(start_ns=of.start, end_ns=of.end)
    kinds = kinds_of(waits).iloc[of.item]
    by_thread = kinds["by_thread"].to_numpy(bool)
    waker = column(waits["waker_tid"])[of.item]
    context = words(waits["context"])[of.item]
    symbol = np.where(np.isin(context, ("softirq", "hardirq")), words(waits["symbol"])[of.item], "")
    place = words(waits["place"])[of.item]
    found = _piece(
        rows,
        doing=state[of.query],
        kind=kinds["kind"].to_numpy(object),
        name=place,
        arg=column(waits["arg"])[of.item],
        cpu=column(waits["waker_cpu"])[of.item],
        other_tid=np.where(by_thread, waker, -1),
        other_comm=np.where(by_thread, words(waits["waker_comm"])[of.item], symbol),
        device=device_names(column(waits["device"]))[of.item],
        operation=words(waits["operation"])[of.item],
        nbytes=column(waits["nbytes"])[of.item],
        sure=kinds["sure"].to_numpy(object),
        by_thread=by_thread & (waker > 0),
    )
    query, low, high = uncovered(of.query, of.start, of.end, start, end)
    rest = base.iloc[query].assign(start_ns=low, end_ns=high)
    return [found, _piece(rest, doing=state[query], kind="unknown", sure=MISSING)]


def _joined(pieces: pd.DataFrame) -> pd.DataFrame:
    """Pieces that follow each other and differ in their times only, as one."""
    if not len(pieces):
        return pieces
    same = np.ones(len(pieces), bool)
    same[0] = False
    for name in pieces.columns:
        if name not in ("start_ns", "end_ns"):
            values = pieces[name].to_numpy()
            same[1:] &= values[1:] == values[:-1]
    start, end = pieces["start_ns"].to_numpy(), pieces["end_ns"].to_numpy()
    # Two waits are two, though they look alike.
    same[1:] &= (start[1:] == end[:-1]) & ~np.isin(pieces["doing"].to_numpy(object)[1:], _WAITING)
    first = np.flatnonzero(~same)
    joined = pieces.iloc[first].reset_index(drop=True)
    return joined.assign(end_ns=np.maximum.reduceat(end, first))
