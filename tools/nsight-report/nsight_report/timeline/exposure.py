# SPDX-License-Identifier: GPL-2.0-only
"""What each message spent its lifetime in: pieces of lifetimes joined with the contexts of the cores.

Every nanosecond of a lifetime gets exactly one label, so no deviation can be counted twice:

============  ================================================================================
kind          subject
============  ================================================================================
own           the message's own thread: the system call it was in, or ``user code``
hol           work on another message of the same application: ``same connection``,
              ``same thread``, ``other thread`` or ``receive queue``
interference  another application's message being received on this core: ``<comm> receive``; or packets that were not
              recorded, which the softirq mostly received: the same, or ``port <n> receive``
sibling       another thread of the application's process, by name: it may work on a message that another one read
thread        a thread of another process, by name
softirq       its vector
hardirq       its handler or vector
exception     its entry (mode intel-pt); in the message's own thread ``page fault``, ``memory reclaim`` and the like (mode tracepoints, calls/memory_work.py)
idle          the core had nothing to run: ``before arrival``; ``C-state exit latency`` or ``wake-up`` while the thread was ready,
              as the exit latency of a C-state explains it or not; or no interrupt had told the core of
              the message (arrival.py): ``interrupt coalescing``, ``C-state exit latency`` or ``interrupt delivery delay``
host          the host had taken the core away: ``steal``, or ``missed timer ticks`` (calls/missed_ticks.py)
wait          the message's thread waited for something else: ``<state> in <what it was in when it left its core>``,
              a system call, an exception (mode intel-pt) or ``user code``, or, of requests, ``<kind>: <wait chain>`` (waits/reasons.py);
              or a sent request ``for the peer's reply``, or on its way to the driver as departure.py tells; or the message for a ``retransmission``
              (``: dropped here, <reason>``), ``in the transmit queue`` or ``in the NIC``; or its connection ``in the accept queue``; or the thread was ready, but its process had used up its ``CPU quota``
frequency     of work in the kinds of WORK, what it took longer because its core ran ``at a lower frequency`` than usual
untraced        nothing was recorded: a loss, or before and after the recording of that core
============  ================================================================================
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..interval_joins import Int, overlaps
from ..tables.data_frames import column
from . import R, arrival, departure, occupancy
from .labelled import (
    EXCEPTION,
    HARDIRQ,
    HOL,
    HOST,
    IDLE,
    INTERFERENCE,
    OWN,
    SIBLING,
    SOFTIRQ,
    THREAD,
    UNTRACED,
    WAIT,
    WITHIN,
    Exposure,
    LabelledIntervals,
    at_usual_frequency,
    total,
    with_memory_work,
)
from .machine import (
    IN_ABSENT,
    IN_EXCEPTION,
    IN_GAP,
    IN_HARDIRQ,
    IN_IDLE,
    IN_SOFTIRQ,
    IN_SYSCALL,
    IN_THREAD,
    LOST,
    USER_CODE,
    Machine,
)
from .occupancy import Tiles
from .pieces import Pieces, State, uncovered

# An interrupt shorter than this inside another thread or another message's processing is part
# of that; a longer one is a separate cause. Five times the capture's own median if that is larger.
NESTED_FLOOR_NS = 50_000
#: A core that idles longer than this beside a ready thread of a throttled process is not waking up.
THROTTLED_NS = 50_000
QUOTA = "CPU quota"


#: Contexts that interrupt a thread.
INTERRUPTS = (IN_SOFTIRQ, IN_HARDIRQ, IN_EXCEPTION)


def measure(
    messages: pd.DataFrame, pieces: Pieces, machine: Machine, kept: tuple[int, ...] = WITHIN
) -> tuple[Exposure, LabelledIntervals]:
    """Label the pieces of lifetimes of ``messages``; with the sums come the intervals of the kinds ``kept``.

    ``messages`` are of one application; ``machine`` knows its other messages: overlaps with those are head-of-line
    blocking, overlaps with others are interference. It also has the contexts of the cores of these pieces (``on_cores``).
    """
    intervals = with_memory_work(_label(messages, pieces, machine), machine)
    return at_usual_frequency(total(intervals), intervals, machine), intervals.take(
        np.isin(intervals.kind, kept)
    )


def on_cores(pieces: Pieces) -> npt.NDArray[np.bool_]:
    """Pieces in which the activity of their core counts."""
    states = [State.CORE, State.UNTOLD, State.RUNNING, State.RUNNABLE, State.UNKNOWN]
    return np.isin(pieces.state, states) & (pieces.cpu >= 0)


def _label(messages: pd.DataFrame, pieces: Pieces, m: Machine) -> LabelledIntervals:
    on_cpu = on_cores(pieces)
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
    idles = (m.kind[ctx] == IN_IDLE) & (pieces.state[piece] == State.RUNNABLE)
    idle_ns = np.zeros(len(pieces), np.int64)
    np.add.at(idle_ns, piece[idles], (end - start)[idles])
    kind, subject, other = _rules(messages, pieces, piece, ctx, worked, received, idle_ns[piece], m)
    idle = np.flatnonzero(~on_cpu)
    lost = busy[gap_piece]
    return LabelledIntervals(
        pieces.row[np.concatenate([piece, idle, lost])],
        pieces.side[np.concatenate([piece, idle, lost])],
        np.concatenate([kind, _waits(pieces, idle), np.full(len(lost), UNTRACED)]),
        np.concatenate([subject, _wait_subject(pieces, idle, m), np.full(len(lost), m.names.code(""))]),
        np.concatenate([start, pieces.start[idle], gap_start]),
        np.concatenate([end, pieces.end[idle], gap_end]),
        np.concatenate([m.cpu[ctx], pieces.cpu[idle], pieces.cpu[lost]]),
        np.concatenate([other, np.full(len(idle) + len(lost), -1)]),
    )


def _cut(piece: Int, ctx: Int, start: Int, end: Int, group: Int, tiles: Tiles, *more: Int) -> tuple[Int, ...]:
    """Split intervals at the borders of ``tiles``; the new column is the owner of each (-1 nobody)."""
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
    idle_ns: Int,
    m: Machine,
) -> tuple[Int, Int, Int]:
    """The label of each interval; the first rule that holds wins.

    ``idle_ns``: how long the core idled while the thread was ready to run there, in the whole piece.
    """
    name = m.names.code
    row = pieces.row[piece]
    kind, a_side = m.kind[ctx], pieces.side[piece] != R
    own = a_side & (pieces.tid[piece] == m.tid[ctx])
    runs_other = a_side & ~own & (m.tid[ctx] > 0)
    same_process = column(messages["pid"])[row] == m.pid[ctx]
    other_worked = (worked >= 0) & ~(_is_own(messages, row, worked, m) | _same_read(messages, row, worked, m))
    other_received = (received >= 0) & ~(
        _is_own(messages, row, received, m) | _same_packet(messages, row, received, m)
    )
    worked_conn = _lookup(m.received, m.receive_conn, worked)
    # The number of a request is that of the message it began with or was sent as.
    app_worked = np.isin(worked_conn, m.app.conn) if "first_id" in messages else _among(worked, m.app.ids)
    # Regardless of direction and port: with sent messages, ``ids`` contains no received message.
    app_received = _among(received, m.app.ids) | np.isin(
        _lookup(m.received, m.receive_pid, received), m.app.pids
    )
    same_conn = worked_conn == column(messages["conn_id"])[row]
    # What happens inside a thread or another message's processing counts as part of it, unless it is
    # an interrupt so long that it must be a separate cause.
    interrupt = np.isin(kind, INTERRUPTS)
    length = m.end[ctx] - m.start[ctx]
    inside = (kind == IN_THREAD) | (kind == IN_SYSCALL) | (interrupt & (length <= _longest_nested(m)))

    throttled = np.isin(column(messages["pid"])[row], m.host.throttled) & (idle_ns > THROTTLED_NS)
    woken = (idle_ns > 0) & (idle_ns <= arrival.longest_wakeup_ns(m.host))

    # Interrupts are off while another is handled; anything else that runs would have been interrupted.
    untold = (pieces.state[piece] == State.UNTOLD) & ~np.isin(kind, (IN_HARDIRQ, IN_GAP))
    reasons = np.array([name(subject) for subject in arrival.SUBJECTS])

    rules: list[tuple[npt.NDArray[np.bool_], int, Int | int, Int | int]] = [
        # condition, kind, subject, other message
        (kind == IN_ABSENT, HOST, m.symbol[ctx], -1),
        (untold, IDLE, reasons[m.told.why[row]], -1),
        (throttled, WAIT, name(QUOTA), -1),
        (
            own & other_worked & app_worked & inside,
            HOL,
            np.where(same_conn, name("same connection"), name("same thread")),
            worked,
        ),
        (runs_other & same_process & other_worked & app_worked & inside, HOL, name("other thread"), worked),
        (runs_other & same_process & inside, SIBLING, m.comm[ctx], -1),
        (runs_other & inside, THREAD, m.comm[ctx], np.where(other_worked, worked, -1)),
        (
            (kind == IN_SOFTIRQ) & other_received & ~app_received,
            INTERFERENCE,
            _lookup(m.received, m.receive_name, received),
            received,
        ),
        ((kind == IN_SOFTIRQ) & ~a_side & other_received, HOL, name("receive queue"), received),
        # Packets of others that were not recorded: only their softirq shows them.
        (
            (kind == IN_SOFTIRQ) & (received < 0) & (m.others[ctx] != name("")),
            INTERFERENCE,
            m.others[ctx],
            -1,
        ),
        (kind == IN_SOFTIRQ, SOFTIRQ, m.symbol[ctx], -1),
        (kind == IN_HARDIRQ, HARDIRQ, m.symbol[ctx], -1),
        (kind == IN_EXCEPTION, EXCEPTION, m.symbol[ctx], -1),
        (
            (kind == IN_IDLE) & a_side,
            IDLE,
            np.where(woken, name(arrival.SUBJECTS[arrival.ASLEEP]), name("wake-up")),
            -1,
        ),
        (kind == IN_IDLE, IDLE, name("before arrival"), -1),
        (kind == IN_GAP, UNTRACED, name(""), -1),
        (own & (kind == IN_SYSCALL), OWN, m.symbol[ctx], -1),
        (own, OWN, name(USER_CODE), -1),
    ]
    conditions = [rule[0] for rule in rules]
    return (
        np.select(conditions, [rule[1] for rule in rules], THREAD),
        np.select(conditions, [rule[2] for rule in rules], m.comm[ctx]),
        np.select(conditions, [rule[3] for rule in rules], -1),
    )


def _is_own(messages: pd.DataFrame, row: Int, of: Int, m: Machine) -> npt.NDArray[np.bool_]:
    """Whether message ``of`` is the row's own; for a request in several messages, whether it is one of them."""
    if "first_id" not in messages:
        return of == column(messages["message_id"])[row]
    within = (of >= column(messages["first_id"])[row]) & (of <= column(messages["last_id"])[row])
    # Messages are numbered across connections.
    return within & (_lookup(m.received, m.receive_conn, of) == column(messages["conn_id"])[row])


def _same_packet(messages: pd.DataFrame, row: Int, of: Int, m: Machine) -> npt.NDArray[np.bool_]:
    """Whether message ``of`` began in the packet with the row's first or last byte: the core then works for both."""
    began = _lookup(m.received, m.receive_arrival, of)
    with_it = (began == column(messages["arrival_ns"])[row]) | (
        began == column(messages["arrival_last_ns"])[row]
    )
    same_conn = _lookup(m.received, m.receive_conn, of) == column(messages["conn_id"])[row]
    return with_it & same_conn & (began >= 0)


def _same_read(messages: pd.DataFrame, row: Int, of: Int, m: Machine) -> npt.NDArray[np.bool_]:
    """Whether one call read message ``of`` and the row's: it is then unknown which of them the thread works on."""
    called = _lookup(m.received, m.read_start, of)
    start = occupancy.turned_to(column(messages["call_ns"]), column(messages["app_ns"]))[row]
    return (
        (called >= 0)
        & (called == start)
        & (_lookup(m.received, m.read_tid, of) == column(messages["tid"])[row])
    )


def _longest_nested(m: Machine) -> int:
    """How long (in ns) an interrupt in the application's threads may be to count as part of what they do."""
    return max(NESTED_FLOOR_NS, 5 * m.usual_interrupt_ns)


def usual_interrupt_ns(messages: pd.DataFrame, contexts: pd.DataFrame, tids: Int) -> int:
    """Median length of the interrupts that threads ``tids`` had during a message; the median of these ``messages``.

    Each message counts once: one slow message can meet more interrupts of a flood than all baseline messages together, and
    the flood would count as usual. 0 if there were none.
    """
    kind = contexts["kind"].astype(str).isin(("softirq", "hardirq", "exception")).to_numpy(bool)
    within = contexts[kind & np.isin(column(contexts["tid"]), tids)]
    cpu, start, end = (column(within[name]) for name in ("cpu", "start_ns", "end_ns"))
    core, first, last = (column(messages[name]) for name in ("app_cpu", "first_ns", "last_ns"))
    of, item, _, _ = overlaps(core, first, last, cpu, start, end)
    return int(pd.Series((end - start)[item]).groupby(of).median().median()) if len(of) else 0


def _among(numbers: Int, sorted_ids: Int) -> npt.NDArray[np.bool_]:
    """Whether each number is one of the ids, which may be far more than the numbers; -1 is none."""
    found = np.zeros(len(numbers), bool)
    at = np.flatnonzero(numbers >= 0)
    found[at] = _lookup(sorted_ids, sorted_ids, numbers[at]) == numbers[at]
    return found


def _lookup(sorted_ids: Int, values_of: Int, values: Int) -> Int:
    if not len(sorted_ids):
        return np.full(len(values), -1)
    at = np.minimum(np.searchsorted(sorted_ids, values), len(sorted_ids) - 1)
    return np.where(sorted_ids[at] == values, values_of[at], -1)


def _waits(pieces: Pieces, at: Int) -> Int:
    waits = [
        State.SLEEPING, State.BLOCKED, State.STOPPED, State.WAITING, State.THROTTLED, State.LOST, State.QUEUED, State.QDISC,
        State.SENDING, State.AWAY, State.UNACCEPTED,
    ]  # fmt: skip
    known = np.isin(pieces.state[at], waits)
    return np.where(known, WAIT, UNTRACED)


def _wait_subject(pieces: Pieces, at: Int, m: Machine) -> Int:
    """What its thread waited for if known, else ``<state> in <what the thread was in>``: what preceded the gap (second phase)."""
    state = pieces.state[at]
    last = m.was_in(pieces.tid[at], pieces.start[at])
    last = np.where(last < 0, m.names.code("an unknown call"), last)
    pairs, inverse = np.unique(np.stack([state, last]), axis=1, return_inverse=True)
    table = np.array(
        [m.names.code(_wait_name(State(s).name.lower(), m.names.list[c])) for s, c in pairs.T], np.int64
    )
    named = table[inverse.reshape(-1)] if len(at) else np.zeros(0, np.int64)
    named = np.where(pieces.why[at] >= 0, pieces.why[at], named)
    return named if m.lost is None else np.where(state == State.LOST, m.lost[pieces.row[at]], named)


def _wait_name(state: str, syscall: str) -> str:
    alone = {
        "stopped": "stopped",
        "throttled": QUOTA,
        "lost": LOST,
        "queued": "in the transmit queue",
        "qdisc": departure.SUBJECTS[departure.QUEUE_DISCIPLINE],
        "sending": "in the NIC",
        "away": "for the peer's reply",
        "unaccepted": "in the accept queue",
    }
    return alone.get(state, f"{state} in {syscall}")
