# SPDX-License-Identifier: GPL-2.0-only
"""Where a message was: which stretch of which core, and what its thread was doing.

Section 4.1 of the paper: up to the hand-off a message lives on its receive core, after it on its
application core. The application core is followed through the thread that reads: a thread
that waits in the queue of one core and is then moved to another was delayed by the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from .intervals import Int, overlaps

R, A = 0, 1
SIDES = ("R", "A")

# States of the reading thread. On side R there is no thread to wait for: the core itself counts, unless the
# message's packet was lost, and it waits to be sent again.
STATES = (
    "core",
    "running",
    "runnable",
    "sleeping",
    "blocked",
    "stopped",
    "dead",
    "unknown",
    "waiting",
    "lost",
)
CORE, RUNNING, RUNNABLE, SLEEPING, BLOCKED, STOPPED, DEAD, UNKNOWN, WAITING, LOST = range(len(STATES))


@dataclass(frozen=True)
class Pieces:
    """Stretches of message lifetimes; all arrays have one element per stretch.

    ``row``: position of the message in the population; ``side``: R or A; ``cpu``: core that counts
    (-1 unknown); ``state``: index into STATES; ``start``/``end``: ns, monotonic.
    """

    row: Int
    side: Int
    cpu: Int
    state: Int
    start: Int
    end: Int

    def __len__(self) -> int:
        return len(self.row)


def pieces(messages: pd.DataFrame, rows: Int, thread_states: pd.DataFrame) -> Pieces:
    """Cut the lifetimes of ``messages.iloc[rows]`` at the hand-off and at thread state changes.

    A message without hand-off stamp is cut at its last arrival; one whose thread is not
    in ``thread_states`` keeps its application core, state unknown. The pieces of one message
    tile its lifetime exactly.
    """
    chosen = messages.iloc[rows]
    first = chosen["first_ns"].to_numpy(np.int64)
    last = chosen["last_ns"].to_numpy(np.int64)
    tx = (chosen["direction"] == "tx").to_numpy()
    # Receive: the core's side ends at the hand-off. Transmit: the application's side comes first
    # and ends when the driver gets the packet.
    cut = _first_known(chosen, ["handoff_ns", "arrival_last_ns"], first)
    cut = np.where(tx, _first_known(chosen, ["driver_ns"], last), cut)
    cut = np.clip(cut, first, last)
    core_start, core_end = np.where(tx, cut, first), np.where(tx, last, cut)
    app_start, app_end = np.where(tx, first, cut), np.where(tx, cut, last)
    recv_cpu = column(chosen["recv_cpu"])
    app_cpu = column(chosen["app_cpu"])
    tid = column(chosen["tid"])

    # What the core does before a packet that was sent again arrives is no cause.
    again = chosen["retransmitted"].fillna(False).to_numpy(bool) & ~tx
    arrival = np.where(
        again, np.clip(_first_known(chosen, ["arrival_last_ns"], first), core_start, core_end), core_start
    )
    on_way = arrival > core_start
    lost = Pieces(
        rows[on_way],
        np.full(on_way.sum(), R),
        np.full(on_way.sum(), -1),
        np.full(on_way.sum(), LOST),
        core_start[on_way],
        arrival[on_way],
    )
    core_start = arrival
    on_core = core_end > core_start
    core = Pieces(
        rows[on_core],
        np.full(on_core.sum(), R),
        recv_cpu[on_core],
        np.full(on_core.sum(), CORE),
        core_start[on_core],
        core_end[on_core],
    )
    states = thread_states[thread_states["tid"].isin(np.unique(tid[tid > 0]))]
    code = pd.Categorical(states["state"].astype(str), categories=list(STATES)).codes.astype(np.int64)
    code[code < 0] = UNKNOWN
    query, item, start, end = overlaps(
        tid, app_start, app_end, column(states["tid"]), column(states["start_ns"]), column(states["end_ns"])
    )
    state, cpu = code[item], column(states["cpu"])[item]
    # Nothing tells when a waiting thread was woken. One that waited before the hand-off was woken by it, and
    # is in the queue of the core that it runs on next.
    at = np.flatnonzero(
        (state == WAITING) & ~tx[query] & (column(states["start_ns"])[item] <= app_start[query])
    )
    following = np.minimum(item[at] + 1, len(code) - 1)
    runs = (code[following] == RUNNING) & (
        column(states["tid"])[following] == column(states["tid"])[item[at]]
    )
    state[at] = RUNNABLE
    cpu[at[runs]] = column(states["cpu"])[following[runs]]
    app = Pieces(rows[query], np.full(len(query), A), cpu, state, start, end)
    rest = uncovered(query, start, end, app_start, app_end)
    # Time of the thread that the scheduler's events do not cover: its core is the best that is known.
    unknown = Pieces(
        rows[rest[0]],
        np.full(len(rest[0]), A),
        app_cpu[rest[0]],
        np.full(len(rest[0]), UNKNOWN),
        rest[1],
        rest[2],
    )
    parts = [lost, core, app, unknown]
    return Pieces(
        *(
            np.concatenate([getattr(p, name) for p in parts])
            for name in ("row", "side", "cpu", "state", "start", "end")
        )
    )


def uncovered(query: Int, start: Int, end: Int, low: Int, high: Int) -> tuple[Int, Int, Int]:
    """What of each window [low, high) no covered stretch (ordered by query, time) reaches."""
    edge_q = np.concatenate([query, np.arange(len(low))])
    edge_end = np.concatenate([end, low])  # a window begins where a stretch of zero length ended
    order = np.lexsort((edge_end, edge_q))
    q, since = edge_q[order], edge_end[order]
    starts = np.concatenate([start, high])
    starts_q = np.concatenate([query, np.arange(len(low))])
    until = starts[np.lexsort((starts, starts_q))]
    keep = until > since
    return q[keep], since[keep], until[keep]


def _first_known(frame: pd.DataFrame, names: list[str], fallback: Int) -> Int:
    out = pd.Series(pd.NA, index=frame.index, dtype="Int64")
    for name in names:
        out = out.fillna(frame[name].astype("Int64"))
    values = fallback.copy()
    known = out.notna().to_numpy()
    values[known] = out[known].to_numpy(np.int64)
    return values


def column(series: pd.Series) -> Int:
    """An integer column as int64, nulls as -1."""
    return np.asarray(series.astype("Int64").fillna(-1), dtype=np.int64)
