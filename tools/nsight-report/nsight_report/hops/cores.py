# SPDX-License-Identifier: GPL-2.0-only
"""What held packets in a layer: the cores and threads of a kernel at that time, as nsight-record saw them.

Time is followed back from the moment at which a core took a packet out of the layer, as long as the packet can have waited for
that core. If a softirq took it out: while softirqs or interrupts had the core, or a thread had it although ksoftirqd, to which
softirqs were deferred, was ready. If a thread took it out: while that thread worked, was ready, stopped or without CPU quota.
Before that the packet waited for no core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..interval_joins import Int, latest, overlaps
from ..names import printable
from ..tables.data_frames import column, to_pandas, words
from ..tables.intervals import IntervalTable

Bools = npt.NDArray[np.bool_]
Texts = npt.NDArray[np.object_]

#: Softirqs that take packets out of a layer.
_OF_PACKETS = ("NET_RX", "NET_TX")
_IN_THREAD = ("thread", "syscall", "exception")
_CONTEXTS = ("cpu", "start_ns", "end_ns", "kind", "symbol", "pid", "tid", "comm")
_STATES = ("tid", "pid", "comm", "start_ns", "end_ns", "state", "cpu")
_KSOFTIRQD = "ksoftirqd/"
#: States of a thread in which a packet waits for it, and what holds the packet then; for a runnable thread it is what has the core.
AT_WORK = " at work"
_HOLDING = {"running": "{}" + AT_WORK, "stopped": "{} stopped", "throttled": "CPU quota of {}"}
READY = "runnable"
UNTRACED = "untraced time"


@dataclass(frozen=True)
class Activity:
    """Tables ``contexts`` and ``thread_states`` of a capture of one kernel."""

    contexts: IntervalTable
    states: IntervalTable

    @cached_property
    def threads(self) -> pd.DataFrame:
        """Every recorded thread, once per name that it had: tid, pid, comm."""
        found = [to_pandas(part).drop_duplicates() for part in self.states.batches(["tid", "pid", "comm"])]
        return pd.concat(found).drop_duplicates()

    def of_cores(self, cpu: Int, start: Int, end: Int) -> pd.DataFrame:
        """Rows of ``contexts`` that overlap some intervals."""
        return to_pandas(self.contexts.overlapping(cpu, start, end, _CONTEXTS))

    def of_threads(self, tid: Int, start: Int, end: Int) -> pd.DataFrame:
        """Rows of ``thread_states`` that overlap some intervals."""
        return to_pandas(self.states.overlapping(tid, start, end, _STATES))


@dataclass(frozen=True)
class Parts:
    """Parts of waits, unordered. ``wait``: position in the input; ``text``: what held it; ``held``: false if nothing did."""

    wait: Int
    start: Int
    end: Int
    text: Texts
    held: Bools

    @staticmethod
    def join(parts: list[Parts]) -> Parts:
        """All of them."""
        return Parts(*(np.concatenate([getattr(p, n) for p in parts]) for n in Parts.__dataclass_fields__))

    def take(self, at: npt.NDArray[Any]) -> Parts:
        """The chosen ones."""
        return Parts(*(getattr(self, name)[at] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Held:
    """``parts`` of waits in which a core or thread held the packet. ``since``: by wait, their begin: before it, no core was waited for.

    ``known``: by wait, whether it is known what took the packet out; if not, ``since`` is its begin, and there are no parts.
    """

    parts: Parts
    since: Int
    known: Bools


def held(activity: Activity, cpu: Int, start: Int, end: Int) -> Held:
    """What held packets from ``start`` to ``end`` (CLOCK_MONOTONIC of that kernel) that core ``cpu`` presumably took out.

    It was another core if only that core's packet softirq ran at ``end``.
    """
    cpu, how, tid = taken_out_by(activity, cpu, end)
    softirq, thread = (np.flatnonzero(how == name) for name in ("softirq", "thread"))
    parts = Parts.join(
        [
            _before_softirq(activity, softirq, cpu[softirq], start[softirq], end[softirq]),
            of_threads(activity, thread, tid[thread], start[thread], end[thread]),
        ]
    )
    since = start.copy()
    free = ~parts.held
    np.maximum.at(since, parts.wait[free], parts.end[free])
    begin = np.maximum(parts.start, since[parts.wait])
    keep = parts.held & (parts.end > begin)
    return Held(
        Parts(parts.wait, begin, parts.end, parts.text, parts.held).take(keep),
        since,
        np.array(how != "", bool),
    )


def taken_out_by(activity: Activity, cpu: Int, at: Int) -> tuple[Int, Texts, Int]:
    """Core, 'softirq' or 'thread' ('' unknown), and the thread, that took each packet out."""
    cores = activity.contexts.groups()
    if not len(cores) or not len(at):
        return cpu, np.full(len(at), "", object), np.full(len(at), -1)
    of, when = np.repeat(cores, len(at)), np.tile(at, len(cores))
    rows = activity.of_cores(of, when, when + 1)
    group, begin, until, tid = (column(rows[name]) for name in ("cpu", "start_ns", "end_ns", "tid"))
    place = latest(group, begin, of, when)
    place = np.where(np.append(until, -1)[place] > when, place, -1).reshape(len(cores), len(at))
    kind = words(rows["kind"])
    net = np.append((kind == "softirq") & np.isin(words(rows["symbol"]), _OF_PACKETS), False)[place]
    in_thread = np.append(np.isin(kind, _IN_THREAD), False)
    wait = np.arange(len(at))
    mine = np.minimum(np.searchsorted(cores, cpu), len(cores) - 1)
    place[mine[cores[mine] != cpu], wait[cores[mine] != cpu]] = -1
    mine = np.where(~net[mine, wait] & (net.sum(axis=0) == 1), net.argmax(axis=0), mine)
    by = place[mine, wait]
    how = np.where(net[mine, wait], "softirq", np.where(in_thread[by], "thread", ""))
    return cores[mine], how.astype(object), np.append(tid, -1)[by]


def _before_softirq(activity: Activity, wait: Int, cpu: Int, start: Int, end: Int) -> Parts:
    """Activity of cores before their softirqs took packets out."""
    rows = activity.of_cores(cpu, start, end)
    query, item, low, high = overlaps(
        cpu, start, end, *(column(rows[name]) for name in ("cpu", "start_ns", "end_ns"))
    )
    kind, text = words(rows["kind"])[item], _texts(rows)[item]
    by_thread = np.isin(kind, _IN_THREAD) & (text != "ksoftirqd")
    sure = ~by_thread
    parts = Parts(wait[query], low, high, text, kind != "idle")
    # A thread holds it only while ksoftirqd is ready; earlier time of the thread counts as free.
    at = np.flatnonzero(by_thread)
    daemon = _daemons(activity, cpu)[query[at]]
    rows = activity.of_threads(daemon, low[at], high[at])
    ready = np.flatnonzero(words(rows["state"]) == READY)
    found, _, since, until = overlaps(
        daemon, low[at], high[at], *(column(rows[name])[ready] for name in ("tid", "start_ns", "end_ns"))
    )
    of_thread = parts.take(at)
    due = of_thread.take(found)
    first, covered = high[at].copy(), np.zeros(len(at), np.int64)
    np.minimum.at(first, found, since)
    np.add.at(covered, found, until - since)
    whole = first + covered == high[at]  # it stayed ready from the time when it became ready
    free_until = np.where(whole, first, high[at])
    return Parts.join(
        [
            parts.take(sure),
            Parts(due.wait, since, until, due.text, due.held),
            Parts(of_thread.wait, low[at], free_until, of_thread.text, np.zeros(len(at), bool)).take(
                free_until > low[at]
            ),
        ]
    )


def _daemons(activity: Activity, cpu: Int) -> Int:
    """The ksoftirqd thread of each core; -1: it was not seen."""
    comm, tid = words(activity.threads["comm"]), column(activity.threads["tid"])
    cores, of = np.unique(cpu, return_inverse=True)
    threads = [tid[comm == f"{_KSOFTIRQD}{core}"] for core in cores]
    return np.array([found.min() if len(found) else -1 for found in threads], np.int64)[of]


def _texts(contexts: pd.DataFrame) -> Texts:
    """The text of each context, as seen by a packet that waits for its core."""
    names = ("kind", "symbol", "comm")
    return _worded(
        pd.DataFrame({**{n: words(contexts[n]) for n in names}, "pid": column(contexts["pid"])}), _text
    )


def _worded(rows: pd.DataFrame, text: Callable[..., str]) -> Texts:
    """``text`` of the columns of each row; called once for equal rows."""
    code = rows.groupby(list(rows.columns), sort=False).ngroup().to_numpy(np.int64)
    _, first = np.unique(code, return_index=True)
    told = np.array([text(*row) for row in rows.iloc[first].itertuples(index=False)], object)
    return told[code] if len(told) else np.zeros(0, object)


def _text(kind: str, symbol: str, comm: str, pid: int) -> str:
    if kind in ("softirq", "hardirq"):
        return f"{'interrupt' if kind == 'hardirq' else kind} {printable(symbol, 64)}"
    if kind in _IN_THREAD:
        return (
            "ksoftirqd"
            if comm.startswith(_KSOFTIRQD)
            else f"CPU contention with {printable(comm, 32)} [{pid}]"
        )
    return {"idle": "wake-up of an idle core", "absent": "host took the core"}.get(kind, UNTRACED)


def of_threads(activity: Activity, wait: Int, tid: Int, start: Int, end: Int) -> Parts:
    """Activity of threads that were to take packets out."""
    rows = activity.of_threads(tid, start, end)
    query, item, low, high = overlaps(
        tid, start, end, *(column(rows[name]) for name in ("tid", "start_ns", "end_ns"))
    )
    state, comm = words(rows["state"])[item], words(rows["comm"])[item]
    named = pd.DataFrame({"state": state, "comm": comm})
    text = _worded(named, lambda of, name: _HOLDING.get(of, "{}").format(printable(name, 32)))
    parts = Parts(wait[query], low, high, text, np.isin(state, list(_HOLDING)))
    at = np.flatnonzero(state == READY)
    cpu = column(rows["cpu"])[item][at]
    cores = activity.of_cores(cpu, low[at], high[at])
    found, on, since, until = overlaps(
        cpu, low[at], high[at], *(column(cores[name]) for name in ("cpu", "start_ns", "end_ns"))
    )
    return Parts.join(
        [
            parts.take(state != READY),
            Parts(wait[query[at[found]]], since, until, _texts(cores)[on], np.ones(len(found), bool)),
        ]
    )
