# SPDX-License-Identifier: GPL-2.0-only
"""Received messages that did not go straight from the receive core's softirq to the application: what the cores show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..interval_joins import Int, latest
from ..tables.data_frames import column, to_pandas
from ..tables.intervals import IntervalTable
from .incoming import are_received

_CONTEXTS = ("cpu", "start_ns", "end_ns", "kind", "pid", "call_id")
#: How long after an arrival the rest of its softirq is searched: more than its budget (net.core.netdev_budget_usecs).
_SOFTIRQ_NS = 20_000_000


@dataclass(frozen=True)
class Detours:
    """By row of messages. ``left_ns``: when the softirq of the receive core that saw the last arrival ended, -1 unknown.

    ``in_backlog``: handed off by the application's own process, not by a softirq: the socket was locked, and the packet
    waited in its backlog until a thread unlocked it.
    """

    left_ns: Int
    in_backlog: npt.NDArray[np.bool_]


def detours(messages: pd.DataFrame, contexts: IntervalTable) -> Detours:
    """What ``contexts`` show about ``messages`` (rows of the table) that were handed off outside their own softirq."""
    handoff, seen, pid = (column(messages[c]) for c in ("handoff_ns", "arrival_last_ns", "pid"))
    recv_cpu, handoff_cpu = (column(messages[c]) for c in ("recv_cpu", "handoff_cpu"))
    left = np.full(len(messages), -1)
    backlog = np.zeros(len(messages), bool)
    rows = np.flatnonzero(are_received(messages) & (handoff > 0) & (handoff_cpu >= 0))
    if not len(rows):
        return Detours(left, backlog)
    # A message that was handed off in the softirq of its arrival took no detour.
    at = to_pandas(contexts.overlapping(handoff_cpu[rows], handoff[rows], handoff[rows] + 1, _CONTEXTS))
    place = innermost(at, handoff_cpu[rows], handoff[rows])
    known = place >= 0
    rows, place = rows[known], place[known]
    kind, of = at["kind"].astype(str).to_numpy(object)[place], column(at["pid"])[place]
    backlog[rows] = np.isin(kind, ("thread", "syscall", "exception")) & (of == pid[rows]) & (of > 0)
    moved = rows[backlog[rows] | (handoff_cpu[rows] != recv_cpu[rows])]
    moved = moved[(seen[moved] >= 0) & (recv_cpu[moved] >= 0)]
    if len(moved):
        until = np.minimum(handoff[moved], seen[moved] + _SOFTIRQ_NS)
        there = to_pandas(contexts.overlapping(recv_cpu[moved], seen[moved], until + 1, _CONTEXTS))
        place = innermost(there, recv_cpu[moved], seen[moved])
        moved, place = moved[place >= 0], place[place >= 0]
        softirq = there["kind"].astype(str).to_numpy(object)[place] == "softirq"
        left[moved[softirq]] = _whole_end(there)[place[softirq]]
    return Detours(left, backlog)


def innermost(contexts: pd.DataFrame, cpu: Int, time: Int) -> Int:
    """Row of ``contexts`` in which each core was at a time; -1 none. They do not overlap, and are in order of core and time."""
    core, start, end = (column(contexts[c]) for c in ("cpu", "start_ns", "end_ns"))
    place = latest(core, start, cpu, time)
    return np.where(time < np.append(end, -1)[place], place, -1)


def _whole_end(contexts: pd.DataFrame) -> Int:
    """The end of the whole context to which each interval belongs, as far as ``contexts`` reach."""
    of, end = column(contexts["call_id"]), column(contexts["end_ns"])
    parts = np.where(of >= 0, of, -2 - np.arange(len(of)))
    return np.asarray(pd.Series(end).groupby(parts, sort=False).transform("max"), dtype=np.int64)
