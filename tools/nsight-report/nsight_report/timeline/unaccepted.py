# SPDX-License-Identifier: GPL-2.0-only
"""Messages of connections in the accept queue: no thread could read them, whatever their reader did meanwhile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from ..interval_joins import overlaps
from ..tables.data_frames import column, to_pandas
from ..tables.intervals import IntervalTable
from . import R
from .machine import Machine
from .occupancy import READS, WAITS
from .pieces import Pieces, State, uncovered

#: Calls in which a thread waits for work: for events, for data, or for another thread.
FOR_WORK = (*WAITS, *READS, "futex", "futex_wait", "futex_waitv")

_STATES = ("tid", "pid", "start_ns", "end_ns", "state", "cpu", "waker_tid")


def unaccepted(
    found: Pieces, messages: pd.DataFrame, thread_states: pd.DataFrame, machine: Machine
) -> Pieces:
    """``found`` with State.UNACCEPTED between hand-off and read while the reader waited for work, or did not exist yet.

    If the reader does something else then, the message waited for that, as usual. The time of the accept is not
    recorded: what the thread does that accepts the connection and hands it to the reader is included.
    """
    marked = messages["unaccepted"].fillna(False).to_numpy(bool)[found.row]
    if not marked.any():
        return found
    read = column(messages["read_ns" if "read_ns" in messages else "last_ns"])[found.row]
    handoff = column(messages["handoff_ns"])[found.row]
    within = (found.start >= handoff) & (handoff >= 0) & (found.end <= read)
    at = np.flatnonzero(marked & within & (found.side != R) & (found.tid > 0))
    tid, state = found.tid[at], found.state[at]
    began = thread_states.groupby("tid")["start_ns"].min().reindex(tid).fillna(-1).to_numpy(np.int64)
    unborn = (state == State.UNKNOWN) & (found.end[at] <= began)
    calls = np.array([machine.names.code(name) for name in FOR_WORK])
    idle = np.isin(state, (State.SLEEPING, State.WAITING))
    idle &= np.isin(machine.was_in(tid, found.start[at]), calls)
    changed = at[unborn | idle]
    states, cpu = found.state.copy(), found.cpu.copy()
    states[changed], cpu[changed] = State.UNACCEPTED, -1
    return replace(found, state=states, cpu=cpu)


def ready_to_accept(found: Pieces, messages: pd.DataFrame, states: IntervalTable) -> Pieces:
    """``found``, where the thread that accepted was ready during State.UNACCEPTED: it waited for its core, whatever ran there.

    It is the thread of the reader's process that woke or created the reader at the end.
    """
    at = np.flatnonzero(found.state == State.UNACCEPTED)
    if not len(at):
        return found
    ends = found.end[at]
    woken = to_pandas(states.overlapping(found.tid[at], ends, ends + 1, _STATES))
    woken = woken[(woken["state"] == "runnable") & (woken["waker_tid"] > 0)]
    by = woken.drop_duplicates(["tid", "start_ns"]).set_index(["tid", "start_ns"])["waker_tid"]
    waker = by.reindex(pd.MultiIndex.from_arrays([found.tid[at], ends])).fillna(-1).to_numpy(np.int64)
    at, waker = at[waker > 0], waker[waker > 0]
    ready = to_pandas(states.overlapping(waker, found.start[at], found.end[at], _STATES))
    ready = ready[(ready["state"] == "runnable") & (ready["cpu"] >= 0)]
    tid, begin, end = (column(ready[name]) for name in ("tid", "start_ns", "end_ns"))
    query, item, low, high = overlaps(waker, found.start[at], found.end[at], tid, begin, end)
    ours = column(ready["pid"])[item] == column(messages["pid"])[found.row[at[query]]]
    order = np.lexsort((low, at[query]))
    order = order[ours[order]]
    piece, item, low, high = at[query][order], item[order], low[order], high[order]
    waits = replace(
        found.take(piece),
        start=low,
        end=high,
        state=np.full(len(piece), int(State.RUNNABLE)),
        cpu=column(ready["cpu"])[item],
        tid=tid[item],
    )
    rest, low, high = uncovered(piece, low, high, found.start, found.end)
    return Pieces.join([waits, replace(found.take(rest), start=low, end=high)])
