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
# message's packet was lost, and it waits to be sent again, or no interrupt has told the core of it yet (untold). A
# message that the driver has is the NIC's until the completion stamp (sending), whatever the core does.
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
    "untold",
    "sending",
)
CORE, RUNNING, RUNNABLE, SLEEPING, BLOCKED, STOPPED, DEAD, UNKNOWN, WAITING, LOST, UNTOLD, SENDING = range(
    len(STATES)
)


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


def pieces(messages: pd.DataFrame, rows: Int, thread_states: pd.DataFrame, told: Int | None = None) -> Pieces:
    """Cut the lifetimes of ``messages.iloc[rows]`` at the hand-off and at thread state changes.

    ``told``: by row of ``messages``, when an interrupt told the receive core of it; -1 unknown.

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
    known = arrival if told is None else np.clip(told[rows], arrival, np.maximum(core_end, arrival))
    state = np.where(tx & chosen["completion_ns"].notna().to_numpy(), SENDING, CORE)
    on_core = []
    for low, high, what in ((arrival, known, np.full(len(rows), UNTOLD)), (known, core_end, state)):
        there = high > low
        cpu = np.where(what == SENDING, -1, recv_cpu)
        on_core.append(
            Pieces(rows[there], np.full(there.sum(), R), cpu[there], what[there], low[there], high[there])
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
    parts = [lost, *on_core, app, unknown]
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


#: Decoded before and behind a message: as long as an interrupt takes.
MARGIN_NS = 20_000


def to_decode(messages: pd.DataFrame, thread_states: pd.DataFrame) -> Int:
    """What of which cores is looked at for ``messages``: rows of begin, end (ns, monotonic) and cpu.

    Their lifetimes, on the receive core and wherever the reading thread ran or was to run. A little more than
    that: a call that a lifetime begins in should have its own begin.
    """
    begin, end, tid = (column(messages[name]) for name in ("first_ns", "last_ns", "tid"))
    states = thread_states[thread_states["tid"].isin(np.unique(tid))]
    since, until = column(states["start_ns"]), column(states["end_ns"])
    query, item, _, _ = overlaps(tid, begin, end, column(states["tid"]), since, until)
    every = np.arange(len(messages))
    message = np.concatenate([every, every, query])
    cpu = np.concatenate(
        [column(messages["recv_cpu"]), column(messages["app_cpu"]), column(states["cpu"])[item]]
    )
    rows = np.column_stack([begin[message] - MARGIN_NS, end[message] + MARGIN_NS, cpu])
    return np.unique(rows[cpu >= 0], axis=0)


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
