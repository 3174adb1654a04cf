# SPDX-License-Identifier: GPL-2.0-only
"""When a core or a thread was busy with which message: the basis for finding overlaps.

Section 5.2, last phase: a message that is ready while its application works on another one is
blocked by it (head-of-line); one whose core receives another application's packets suffers
interference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from .intervals import Int, overlaps, tile
from .windows import column

# A thread that enters one of these has finished what it was doing for the last message.
WAITS = frozenset(
    [
        "epoll_wait",
        "epoll_pwait",
        "epoll_pwait2",
        "poll",
        "ppoll",
        "select",
        "pselect6",
        "io_uring_enter",
        "io_getevents",
    ]
)

#: In these it waits for the message itself.
READS = frozenset(["read", "readv", "recvfrom", "recvmsg", "recvmmsg", "accept", "accept4"])


@dataclass(frozen=True)
class Tiles:
    """Tiled time of threads (``group`` is a tid) or cores (a cpu): ``owner`` is a message_id, -1 nobody's."""

    group: Int
    start: Int
    end: Int
    owner: Int


def by_thread(
    messages: pd.DataFrame, syscalls: pd.DataFrame, gaps: pd.DataFrame, thread_states: pd.DataFrame
) -> Tiles:
    """What each reading thread worked on: a message from its read call until the thread's next
    read of another message, or until it waits for events again.

    Where nothing was decoded a thread that leaves its core without being preempted is taken to wait for
    events. ``syscalls``: rows of ``calls``; ``gaps``: rows of ``contexts``, of these kinds.
    """
    rx = messages[(messages["direction"] == "rx") & (messages["tid"] > 0)]
    tid, read = column(rx["tid"]), column(rx["app_ns"])
    entered = column(rx["call_ns"])
    start = np.where(entered >= 0, entered, read)
    waits = syscalls[syscalls["symbol"].isin(WAITS) & syscalls["tid"].isin(np.unique(tid))]
    idle = thread_states["state"].isin(["sleeping", "waiting", "unknown"])
    asleep = thread_states[idle & thread_states["tid"].isin(np.unique(tid))]
    cpu, since, until = (column(gaps[c]) for c in ("cpu", "start_ns", "end_ns"))
    asleep = asleep[begin_in_gaps(asleep, cpu, since, until, np.ones(len(gaps), bool))]
    end = _next(
        tid,
        read,
        np.append(column(waits["tid"]), column(asleep["tid"])),
        np.append(column(waits["start_ns"]), column(asleep["start_ns"])),
    )
    group, low, high, owner = tile(tid, start, end)
    return _owned(rx, group, low, high, owner)


def begin_in_gaps(
    thread_states: pd.DataFrame, cpu: Int, start: Int, end: Int, is_gap: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Which rows of ``thread_states`` begin where nothing is known of their core, by the columns of ``contexts``."""
    since = column(thread_states["start_ns"])
    found, *_ = overlaps(
        column(thread_states["cpu"]), since, since + 1, cpu[is_gap], start[is_gap], end[is_gap]
    )
    begins = np.zeros(len(since), bool)
    begins[found] = True
    return begins


def by_core(messages: pd.DataFrame) -> Tiles:
    """What receive processing each core did: a message from its arrival to its hand-off."""
    rx = messages[(messages["direction"] == "rx") & messages["arrival_ns"].notna()]
    arrival, handoff = column(rx["arrival_ns"]), column(rx["handoff_ns"])
    # Without a hand-off the packet's stretch is unknown: it owns nothing.
    group, low, high, owner = tile(column(rx["recv_cpu"]), arrival, np.maximum(handoff, arrival))
    return _owned(rx, group, low, high, owner)


def _owned(rx: pd.DataFrame, group: Int, start: Int, end: Int, index: Int) -> Tiles:
    ids = np.append(rx["message_id"].to_numpy(np.int64), -1)  # index -1 is nobody
    return Tiles(group, start, end, ids[index])


def _next(group: Int, time: Int, event_group: Int, event_time: Int) -> Int:
    """The first event of the same group at or after ``time``; the end of time if there is none."""
    out = np.full(len(group), np.iinfo(np.int64).max)
    order = np.lexsort((event_time, event_group))
    event_group, event_time = event_group[order], event_time[order]
    for value in np.unique(group):  # few: the reading threads
        members = np.flatnonzero(group == value)
        low, high = np.searchsorted(event_group, [value, value + 1])
        found = low + np.searchsorted(event_time[low:high], time[members])
        known = found < high
        out[members[known]] = event_time[found[known]]
    return out
