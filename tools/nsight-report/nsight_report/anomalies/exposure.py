# SPDX-License-Identifier: GPL-2.0-only
"""What each message spent its lifetime in: pieces of lifetimes met with the contexts of the cores.

Every nanosecond of a lifetime gets exactly one label, so no deviation can be counted twice:

============  ================================================================================
kind          subject
============  ================================================================================
own           the message's own thread: the system call it was in, or ``user code``
hol           work on another message of the same application: ``same connection``,
              ``same thread``, ``other thread`` or ``receive queue``
interference  another application's message being received on this core: ``<comm> receive``
thread        another thread, by name
softirq       its vector
hardirq       its handler or vector
exception     its entry (grade pt)
idle          the core had nothing to run: ``before arrival`` or ``wake-up``
wait          the message's thread waited for something else: ``<state> in <system call>``, or the message
              for a ``retransmission``
unseen        nothing was recorded: a loss, or before and after the recording of that core
============  ================================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from . import processing, windows
from .intervals import Int, overlaps
from .processing import Tiles
from .windows import A, Pieces, column, uncovered

KINDS = ("own", "hol", "interference", "thread", "softirq", "hardirq", "exception", "idle", "wait", "unseen")
OWN, HOL, INTERFERENCE, THREAD, SOFTIRQ, HARDIRQ, EXCEPTION, IDLE, WAIT, UNSEEN = range(len(KINDS))

# Kinds of contexts, as in schema.CONTEXTS.
CONTEXTS = ("thread", "syscall", "softirq", "hardirq", "exception", "idle", "gap")
IN_THREAD, IN_SYSCALL, IN_SOFTIRQ, IN_HARDIRQ, IN_EXCEPTION, IN_IDLE, IN_GAP = range(len(CONTEXTS))

# An interrupt shorter than this inside another thread or another message's processing is part
# of that; a longer one is a cause of its own. Five times the capture's own median if larger.
NESTED_FLOOR_NS = 50_000
# Pieces joined at a time: bounds memory when windows are long and cores busy.
CHUNK = 50_000

# Names of kernel threads that carry a core, a pool or a work item: one name for all of them.
_KTHREAD = re.compile(r"^(ksoftirqd|kworker|migration|cpuhp|rcuop|rcuog|rcuos|rcuc|idle_inject|irq|napi)/.*$")


class Names:
    """Strings and their codes."""

    def __init__(self) -> None:
        self.list: list[str] = []
        self._code: dict[str, int] = {}

    def code(self, name: str) -> int:
        """The code of ``name``, new if need be."""
        if name not in self._code:
            self._code[name] = len(self.list)
            self.list.append(name)
        return self._code[name]

    def codes(self, values: pd.Series, rename: re.Pattern[str] | None = None) -> Int:
        """Codes of a column of few distinct strings."""
        category = values.astype("category")
        names = [str(n) for n in category.cat.categories]
        if rename:
            names = [m[1] if (m := rename.match(n)) else n for n in names]
        table = np.array([self.code(n) for n in names] + [self.code("")], np.int64)
        return table[category.cat.codes.to_numpy()]


@dataclass(frozen=True)
class Machine:
    """What the cores and threads did, as arrays; made once per diagnosis.

    ``cpu`` to ``pid``: the columns of ``contexts`` (``kind`` an index into CONTEXTS, ``symbol`` and
    ``comm`` codes of ``names``); ``threads`` and ``cores``: which message they worked on;
    ``receive_name``: by message_id, the code of ``<comm> receive``; ``syscall_*``: every system
    call by (tid, start).
    """

    names: Names
    cpu: Int
    start: Int
    end: Int
    kind: Int
    symbol: Int
    comm: Int
    tid: Int
    pid: Int
    threads: Tiles
    cores: Tiles
    receive_name: Int
    syscall_tid: Int
    syscall_start: Int
    syscall_name: Int

    def last_syscall(self, tid: Int, time: Int) -> Int:
        """Name code of the last system call that each thread entered up to a time; -1: none."""
        last = np.full(len(tid), -1)
        for value in np.unique(tid):  # the reading threads
            members = np.flatnonzero(tid == value)
            low, high = np.searchsorted(self.syscall_tid, [value, value + 1])
            found = low + np.searchsorted(self.syscall_start[low:high], time[members], "right") - 1
            known = found >= low
            last[members[known]] = self.syscall_name[found[known]]
        return last

    def resolve(self, thread_states: pd.DataFrame, tids: Int) -> pd.DataFrame:
        """``thread_states`` of some threads; who waits, but not for a message, sleeps.

        Beside Intel PT nothing but the system call tells what a thread waits for. In a gap nobody knows it: the last
        one that was seen may have ended long before.
        """
        states = thread_states[thread_states["tid"].isin(tids)]
        known = ~processing.begin_in_gaps(states, self.cpu, self.start, self.end, self.kind == IN_GAP)
        at = np.flatnonzero((states["state"] == "waiting") & known)
        last = self.last_syscall(column(states["tid"])[at], column(states["start_ns"])[at])
        events = [self.names.code(name) for name in (*processing.WAITS, *processing.READS)]
        other = at[(last >= 0) & ~np.isin(last, events)]
        state = states["state"].astype(str).to_numpy(object)
        state[other] = "sleeping"
        return states.assign(state=state)

    @staticmethod
    def build(
        contexts: pd.DataFrame,
        calls: pd.DataFrame,
        messages: pd.DataFrame,
        thread_states: pd.DataFrame,
        names: Names | None = None,
    ) -> Machine:
        """From the tables of these names; messages of all applications. ``names``: shared with another capture's."""
        names = names or Names()
        kind = pd.Categorical(contexts["kind"].astype(str), categories=list(CONTEXTS)).codes.astype(np.int64)
        syscalls = calls[calls["kind"] == "syscall"].sort_values(["tid", "start_ns"])
        return Machine(
            names,
            column(contexts["cpu"]),
            column(contexts["start_ns"]),
            column(contexts["end_ns"]),
            np.where(kind < 0, IN_GAP, kind),
            names.codes(contexts["symbol"]),
            names.codes(contexts["comm"], _KTHREAD),
            column(contexts["tid"]),
            column(contexts["pid"]),
            processing.by_thread(messages, calls, contexts, thread_states),
            processing.by_core(messages),
            names.codes(messages["comm"].astype(str) + " receive"),
            column(syscalls["tid"]),
            column(syscalls["start_ns"]),
            names.codes(syscalls["symbol"]),
        )


@dataclass(frozen=True)
class Stretches:
    """Labelled stretches of lifetimes; ``row``: position of the message, ``other``: the message it is about."""

    row: Int
    side: Int
    kind: Int
    subject: Int
    start: Int
    end: Int
    cpu: Int
    other: Int

    @classmethod
    def join(cls, parts: list[Self]) -> Self:
        """All rows of ``parts``."""
        return cls(*(np.concatenate([getattr(p, f) for p in parts]) for f in cls.__dataclass_fields__))

    def take(self, chosen: npt.NDArray[np.bool_]) -> Self:
        """The chosen rows."""
        return replace(self, **{f: getattr(self, f)[chosen] for f in self.__dataclass_fields__})


@dataclass(frozen=True)
class Exposure(Stretches):
    """One row per message, side and label: ``ns`` in all, and its longest stretch."""

    ns: Int


#: Kinds of stretches in which the message itself, or what is usual, was worked on: the functions there count.
WITHIN = (OWN, SOFTIRQ, HARDIRQ, EXCEPTION)


def measure(
    messages: pd.DataFrame, rows: Int, states: pd.DataFrame, machine: Machine
) -> tuple[Exposure, Stretches]:
    """Label the lifetimes of ``messages.iloc[rows]``; with the sums come the stretches of the kinds ``WITHIN``.

    ``messages`` is one application, ordered by message_id: overlaps with these are head-of-line
    blocking, with others interference.
    """
    sums, within = [], []
    for low in range(0, max(len(rows), 1), CHUNK):
        pieces = windows.pieces(messages, rows[low : low + CHUNK], states)
        stretches = _label(messages, pieces, machine)
        sums.append(_total(stretches))
        within.append(stretches.take(np.isin(stretches.kind, WITHIN)))
    return Exposure.join(sums), Stretches.join(within)


def _label(messages: pd.DataFrame, pieces: Pieces, m: Machine) -> Stretches:
    on_cpu = np.isin(pieces.state, [windows.CORE, windows.RUNNING, windows.RUNNABLE, windows.UNKNOWN]) & (
        pieces.cpu >= 0
    )
    busy = np.flatnonzero(on_cpu)
    piece, ctx, start, end = overlaps(
        pieces.cpu[busy], pieces.start[busy], pieces.end[busy], m.cpu, m.start, m.end
    )
    gap_piece, gap_start, gap_end = uncovered(piece, start, end, pieces.start[busy], pieces.end[busy])
    piece = busy[piece]
    # Cut at the borders between messages the thread underneath worked on, then at those the core received.
    piece, ctx, start, end, worked = _cut(piece, ctx, start, end, m.tid[ctx], m.threads)
    piece, ctx, start, end, received, worked = _cut(
        piece, ctx, start, end, np.where(m.kind[ctx] == IN_SOFTIRQ, m.cpu[ctx], -1), m.cores, worked
    )
    kind, subject, other = _rules(messages, pieces, piece, ctx, worked, received, m)
    idle = np.flatnonzero(~on_cpu)
    lost = busy[gap_piece]
    return Stretches(
        pieces.row[np.concatenate([piece, idle, lost])],
        pieces.side[np.concatenate([piece, idle, lost])],
        np.concatenate([kind, _waits(pieces, idle), np.full(len(lost), UNSEEN)]),
        np.concatenate(
            [subject, _wait_subject(messages, pieces, idle, m), np.full(len(lost), m.names.code(""))]
        ),
        np.concatenate([start, pieces.start[idle], gap_start]),
        np.concatenate([end, pieces.end[idle], gap_end]),
        np.concatenate([m.cpu[ctx], pieces.cpu[idle], pieces.cpu[lost]]),
        np.concatenate([other, np.full(len(idle) + len(lost), -1)]),
    )


def _cut(piece: Int, ctx: Int, start: Int, end: Int, group: Int, tiles: Tiles, *more: Int) -> tuple[Int, ...]:
    """Split stretches at the borders of ``tiles``; the new column says who owns each (-1 nobody)."""
    known = np.isin(group, np.unique(tiles.group))
    at = np.flatnonzero(known)
    query, item, low, high = overlaps(group[at], start[at], end[at], tiles.group, tiles.start, tiles.end)
    rest = np.flatnonzero(~known)
    index = np.concatenate([at[query], rest])
    return (
        piece[index],
        ctx[index],
        np.concatenate([low, start[rest]]),
        np.concatenate([high, end[rest]]),
        np.concatenate([tiles.owner[item], np.full(len(rest), -1)]),
        *(extra[index] for extra in more),
    )


def _rules(
    messages: pd.DataFrame,
    pieces: Pieces,
    piece: Int,
    ctx: Int,
    worked: Int,
    received: Int,
    m: Machine,
) -> tuple[Int, Int, Int]:
    """The label of each stretch; the first rule that holds wins."""
    name = m.names.code
    row = pieces.row[piece]
    ids = messages["message_id"].to_numpy(np.int64)
    conn = messages["conn_id"].to_numpy(np.int64)
    kind, a_side = m.kind[ctx], pieces.side[piece] == A
    own = a_side & (column(messages["tid"])[row] == m.tid[ctx])
    runs_other = a_side & ~own & (m.tid[ctx] > 0)
    same_process = column(messages["pid"])[row] == m.pid[ctx]
    other_worked = (worked >= 0) & (worked != ids[row])
    other_received = (received >= 0) & (received != ids[row])
    app_worked, app_received = np.isin(worked, ids), np.isin(received, ids)
    same_conn = _lookup(ids, conn, worked) == conn[row]
    # What happens inside a thread or another message's processing counts as that, unless it is
    # an interrupt so long that it must be a cause of its own.
    interrupt = np.isin(kind, (IN_SOFTIRQ, IN_HARDIRQ, IN_EXCEPTION))
    length = m.end[ctx] - m.start[ctx]
    nested = length[interrupt & (worked >= 0)]
    limit = max(NESTED_FLOOR_NS, 5 * int(np.median(nested)) if len(nested) else 0)
    inside = (kind == IN_THREAD) | (kind == IN_SYSCALL) | (interrupt & (length <= limit))

    rules: list[tuple[npt.NDArray[np.bool_], int, Int | int, Int | int]] = [
        # condition, kind, subject, other message
        (
            own & other_worked & app_worked & inside,
            HOL,
            np.where(same_conn, name("same connection"), name("same thread")),
            worked,
        ),
        (runs_other & same_process & other_worked & app_worked & inside, HOL, name("other thread"), worked),
        (runs_other & inside, THREAD, m.comm[ctx], np.where(other_worked, worked, -1)),
        (
            (kind == IN_SOFTIRQ) & other_received & ~app_received,
            INTERFERENCE,
            m.receive_name[np.maximum(received, 0)],
            received,
        ),
        ((kind == IN_SOFTIRQ) & ~a_side & other_received, HOL, name("receive queue"), received),
        (kind == IN_SOFTIRQ, SOFTIRQ, m.symbol[ctx], -1),
        (kind == IN_HARDIRQ, HARDIRQ, m.symbol[ctx], -1),
        (kind == IN_EXCEPTION, EXCEPTION, m.symbol[ctx], -1),
        ((kind == IN_IDLE) & a_side, IDLE, name("wake-up"), -1),
        (kind == IN_IDLE, IDLE, name("before arrival"), -1),
        (kind == IN_GAP, UNSEEN, name(""), -1),
        (own & (kind == IN_SYSCALL), OWN, m.symbol[ctx], -1),
        (own, OWN, name("user code"), -1),
    ]
    conditions = [rule[0] for rule in rules]
    return (
        np.select(conditions, [rule[1] for rule in rules], THREAD),
        np.select(conditions, [rule[2] for rule in rules], m.comm[ctx]),
        np.select(conditions, [rule[3] for rule in rules], -1),
    )


def _lookup(sorted_ids: Int, values_of: Int, values: Int) -> Int:
    at = np.minimum(np.searchsorted(sorted_ids, values), len(sorted_ids) - 1)
    return np.where(sorted_ids[at] == values, values_of[at], -1)


def _waits(pieces: Pieces, at: Int) -> Int:
    known = np.isin(
        pieces.state[at], [windows.SLEEPING, windows.BLOCKED, windows.STOPPED, windows.WAITING, windows.LOST]
    )
    return np.where(known, WAIT, UNSEEN)


def _wait_subject(messages: pd.DataFrame, pieces: Pieces, at: Int, m: Machine) -> Int:
    """``<state> in <the system call the thread was in>``: what preceded the gap (second phase)."""
    state = pieces.state[at]
    last = m.last_syscall(column(messages["tid"])[pieces.row[at]], pieces.start[at])
    last = np.where(last < 0, m.names.code("user code"), last)
    pairs, inverse = np.unique(np.stack([state, last]), axis=1, return_inverse=True)
    table = np.array(
        [m.names.code(_wait_name(windows.STATES[s], m.names.list[c])) for s, c in pairs.T], np.int64
    )
    return table[inverse.reshape(-1)] if len(at) else np.zeros(0, np.int64)


def _wait_name(state: str, syscall: str) -> str:
    return {"stopped": "stopped", "lost": "retransmission"}.get(state, f"{state} in {syscall}")


def _total(rows: Stretches) -> Exposure:
    """Add up the stretches of each message, side and label; keep the longest as evidence."""
    ns = rows.end - rows.start
    order = np.lexsort((-ns, rows.subject, rows.kind, rows.side, rows.row))
    keys = np.stack([rows.row, rows.side, rows.kind, rows.subject])[:, order]
    first = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)))
    if not len(order):
        first = np.zeros(0, np.int64)
    longest = order[first]
    total = np.add.reduceat(ns[order], first) if len(first) else np.zeros(0, np.int64)
    return Exposure(
        rows.row[longest],
        rows.side[longest],
        rows.kind[longest],
        rows.subject[longest],
        rows.start[longest],
        rows.end[longest],
        rows.cpu[longest],
        rows.other[longest],
        total,
    )
