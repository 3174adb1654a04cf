# SPDX-License-Identifier: GPL-2.0-only
"""Messages of connections in the accept queue: no thread could read them, whatever their reader did meanwhile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from ..tables.data_frames import column
from . import R
from .machine import Machine
from .occupancy import READS, WAITS
from .pieces import Pieces, State

#: Calls in which a thread waits for work: for events, for data, or for another thread.
FOR_WORK = (*WAITS, *READS, "futex", "futex_wait", "futex_waitv")


def unaccepted(
    found: Pieces, messages: pd.DataFrame, thread_states: pd.DataFrame, machine: Machine
) -> Pieces:
    """``found`` with State.UNACCEPTED between hand-off and read while the reader waited for work, or did not exist yet.

    If the reader does something else then, the message waited for that, as usual. The time of the accept is not
    recorded: the thread that accepts the connection and hands it to the reader is included.
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
