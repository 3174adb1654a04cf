# SPDX-License-Identifier: GPL-2.0-only
"""Received datagrams: arrival, hand-off and read, paired in the order of the socket's queue.

A datagram has no sequence number. The softirq that sees it arrive hands it to the socket before it
touches the next packet, so an arrival and the hand-off that follows on the same core belong together;
sockets are queues, so the n-th hand-off belongs to the n-th read. A read that finds the queue
empty (EAGAIN) says that everything handed off before it was taken: a lost event shifts nothing beyond it.

A recording without BPF knows which skb was read: its events of one datagram share a number (``seq``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..losses import Ledger
from . import fifo
from .columns import GUEST, I64, NONE, UDP, Bool, Events
from .options import LifetimeOptions
from .stamps import nic_stamps
from .tcp_rx import MSG_PEEK, pick

_EAGAIN = -11


def lifetimes(
    events: Events, options: LifetimeOptions, ledger: Ledger
) -> tuple[I64, dict[str, npt.NDArray[Any]]]:
    """Rows of the reads of datagrams, and the timestamps of each."""
    taking = (events.proto == UDP) & events.of("R") & ((events.flags & MSG_PEEK) == 0)
    read_row = np.flatnonzero(taking & (events.length >= 0))
    if ((events.proto == UDP) & (events.seq > 0)).any():
        arrival_of = _arrival_by_number(events)
        handoff_row = _handoff_by_number(events, read_row, ledger)
    else:
        arrival_of = _arrival_of_handoffs(events, ledger)
        empty_row = np.flatnonzero(taking & (events.length == _EAGAIN))
        handoff_row = _handoffs(events, read_row, empty_row, arrival_of, ledger)
    arrival_row = np.where(handoff_row >= 0, arrival_of[handoff_row], NONE) if len(events) else handoff_row
    size, room = pick(events.length, arrival_row), events.length[read_row]
    wrong = (arrival_row >= 0) & (room > size)
    ledger.add("datagram_longer_than_arrival", int(np.count_nonzero(wrong)))
    handoff_row, arrival_row = np.where(wrong, NONE, handoff_row), np.where(wrong, NONE, arrival_row)
    ledger.add("datagrams_cut_short", _cut_short(events, read_row, arrival_row))
    ledger.add("datagram_read_without_arrival", int(np.count_nonzero(arrival_row == NONE)))
    early = (handoff_row != NONE) & (pick(events.ts, handoff_row) > events.ts[read_row])
    ledger.add("datagram_read_before_handoff", int(np.count_nonzero(early)))
    woken_row = np.where(early, NONE, handoff_row)
    # Without arrivals (a recording without BPF) the hand-off carries the hardware timestamp.
    stamped_row = np.where(arrival_row != NONE, arrival_row, handoff_row)
    peer_row = peers(events, ledger)[arrival_row] if len(events) else arrival_row
    nic = nic_stamps(events, stamped_row, np.where(arrival_row != NONE, peer_row, NONE), options, ledger)
    return read_row, {
        "arrival_row": arrival_row,
        "nic_ns": nic.ns,
        "nic_source": nic.source,
        "nic_error_ns": nic.error,
        "arrival_ns": pick(events.ts, arrival_row),
        "arrival_last_ns": pick(events.ts, arrival_row),
        "recv_cpu": pick(events.cpu, np.where(nic.ns != NONE, stamped_row, arrival_row)),
        "handoff_ns": pick(events.ts, woken_row),
        "handoff_cpu": pick(events.cpu, woken_row),
        "n_arrivals": (arrival_row >= 0).astype(np.int64),
        "retransmitted": np.zeros(len(read_row), dtype=bool),
    }


def _cut_short(events: Events, reads: I64, arrival_row: I64) -> int:
    """How many reads took less than had arrived. Segments of one datagram (UDP_SEGMENT) arrive as one packet, and are read one by one."""
    known = arrival_row >= 0
    socket, _ = pd.factorize(events.sk[reads[known]])
    _, whole = np.unique(arrival_row[known] << 32 | socket, return_inverse=True)
    length = events.length[reads[known]]
    taken = np.zeros(len(whole), np.int64)
    np.add.at(taken, whole, length)
    return int(np.count_nonzero(taken[whole] < events.length[arrival_row[known]]))


def _arrival_of_handoffs(events: Events, ledger: Ledger) -> I64:
    """For each event that is a hand-off of a datagram, the row of its arrival, else NONE."""
    result = np.full(len(events), NONE)
    arrival = events.of("A" + GUEST)
    handoff = events.of("H") & (events.proto == UDP)
    rows = np.flatnonzero(arrival | handoff)
    if not len(rows):
        return result
    rows = rows[np.argsort(events.cpu[rows], kind="stable")]
    # Any arrival, also of TCP, ends the handling of the previous one on its core.
    nearest = np.maximum.accumulate(np.where(arrival[rows], np.arange(len(rows)), -1))
    candidate = rows[np.maximum(nearest, 0)]
    connected = events.rport[rows] != 0
    fits = (
        handoff[rows]
        & (nearest >= 0)
        & (events.cpu[candidate] == events.cpu[rows])
        & (events.proto[candidate] == UDP)
        & (events.netns[candidate] == events.netns[rows])
        & (events.lport[candidate] == events.lport[rows])
        & (~connected | (events.remote[candidate] == events.remote[rows]))
    )
    result[rows[fits]] = candidate[fits]
    dropped = arrival & (events.proto == UDP) & np.isin(events.lport, np.unique(events.lport[handoff]))
    dropped[candidate[fits]] = False
    for_others, theirs = _of_other_cores(events, rows[fits], candidate[fits], np.flatnonzero(dropped))
    result[for_others] = theirs
    dropped[theirs] = False
    ledger.add("datagrams_dropped_before_socket", int(np.count_nonzero(dropped)))
    return result


def _of_other_cores(events: Events, handoff: I64, own: I64, alone: I64) -> tuple[I64, I64]:
    """Hand-offs of datagrams that arrived on another core, and these arrivals.

    Since Linux 6.18, the core that adds the first datagram to a socket's list also queues what other cores add to it meanwhile, and hands
    off all of it: its own datagram first, then the others in the order in which they were added. ``handoff`` are hand-offs, sorted by core
    and time; ``own`` is the last arrival before each on its core; ``alone`` are arrivals without a hand-off on their core.
    """
    # A group is what follows one arrival: more than one hand-off for segments, and for datagrams of other cores.
    begins = np.flatnonzero(np.concatenate(([True], own[1:] != own[:-1])))
    more = np.diff(begins, append=len(own)) - 1
    begins, more = begins[more > 0], more[more > 0]
    if not len(begins) or not len(alone):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    first = handoff[begins]
    port, _ = pd.factorize(events.lport.astype(np.int64) * (int(events.netns.max()) + 1) + events.netns)
    key = port.astype(np.int64) * len(events) + np.arange(len(events))
    order = np.argsort(key[first])
    group = np.searchsorted(key[first][order], key[alone])
    group = order[np.minimum(group, len(order) - 1)]
    core = np.argsort(events.cpu, kind="stable")
    following = np.full(len(events), len(events))
    following[core[:-1]] = np.where(events.cpu[core[1:]] == events.cpu[core[:-1]], core[1:], len(events))
    other = events.cpu[alone] != events.cpu[first[group]]
    # The datagram was added before the next event on its core, and after the one that its core found in the list.
    meanwhile = (alone < first[group]) & (own[begins[group]] < following[alone])
    remote = (events.rport[first[group]] == 0) | (events.remote[first[group]] == events.remote[alone])
    fits = (port[alone] == port[first[group]]) & other & meanwhile & remote
    alone, group = alone[fits], group[fits]
    order = np.lexsort((alone, group))
    alone, group = alone[order], group[order]
    # Of too many, the last ones: earlier ones were dropped.
    nth, last = (np.searchsorted(group, group, side) for side in ("left", "right"))
    nth = np.arange(len(group)) - np.maximum(nth, last - more[group])
    return handoff[begins[group] + 1 + nth][nth >= 0], alone[nth >= 0]


def _by_number(events: Events, letter: str, wanted: I64) -> I64:
    """For each of the ``wanted`` rows, the row of the event of that kind with the same number; NONE if there is none."""
    rows = np.flatnonzero(events.of(letter) & (events.proto == UDP) & (events.seq > 0))
    if not len(rows):
        return np.full(len(wanted), NONE)
    numbers, first = np.unique(events.seq[rows], return_index=True)
    at = np.minimum(np.searchsorted(numbers, events.seq[wanted]), len(numbers) - 1)
    return np.where(numbers[at] == events.seq[wanted], rows[first[at]], NONE)


def _arrival_by_number(events: Events) -> I64:
    """Like ``_arrival_of_handoffs``, for numbered datagrams."""
    result = np.full(len(events), NONE)
    rows = np.flatnonzero(events.of("H") & (events.proto == UDP))
    result[rows] = _by_number(events, "A", rows)
    return result


def _handoff_by_number(events: Events, reads: I64, ledger: Ledger) -> I64:
    """Like ``_handoffs``, for numbered datagrams."""
    found = _by_number(events, "H", reads)
    n_handed = int(np.count_nonzero(events.of("H") & (events.proto == UDP)))
    ledger.add("datagrams_not_read", n_handed - len(np.unique(found[found != NONE])))
    return found


def _handoffs(events: Events, reads: I64, empties: I64, arrival_of: I64, ledger: Ledger) -> I64:
    """Row of the hand-off of each read."""
    handed = np.flatnonzero(events.of("H") & (events.proto == UDP))
    rows = np.concatenate((handed, reads, empties))
    role = np.repeat([0, 1, 2], [len(handed), len(reads), len(empties)])
    # The queue was empty at some time between entry and return of a failed read; what
    # was handed off in between came after that.
    at = events.ts[rows]
    at = np.where((role == 2) & (events.call[rows] != NONE), events.call[rows], at)
    socket, _ = pd.factorize(events.sk[rows])
    socket = (socket.astype(np.int64) << 16 | events.lport[rows]) * (int(events.netns.max(initial=0)) + 1)
    socket += events.netns[rows]
    arrived = np.where(role == 0, pick(events.ts, arrival_of[rows]), NONE)
    at = _queued(socket, at, role, arrived)
    at = _missed(socket, events.ts[rows], at, role, (role == 2) & (events.call[rows] == NONE))
    order = np.lexsort((role, at, socket))
    rows, role, socket = rows[order], role[order], socket[order]
    first = np.ones(len(rows), dtype=bool)
    first[1:] = socket[1:] != socket[:-1]
    epoch = np.cumsum(first | (role == 2))
    bounded = np.isin(epoch + 1, epoch[(role == 2) & ~first])
    older = _older(epoch, role, first, bounded)
    ledger.add("datagrams_older_than_capture", int(np.count_nonzero(older)))
    use = (role != 2) & ~older
    index = np.flatnonzero(use)
    taken, _ = fifo.pair(epoch[index], role[index] == 1)
    handoff_of = np.full(len(events), NONE)
    done = taken >= 0
    handoff_of[rows[index[done]]] = rows[index[taken[done]]]
    left = np.zeros(len(rows), dtype=bool)
    left[index[role[index] == 0]] = True
    left[index[taken[done]]] = False
    ledger.add("datagrams_without_read", int(np.count_nonzero(left & bounded)))
    ledger.add("datagrams_left_in_socket", int(np.count_nonzero(left & ~bounded)))
    return handoff_of[reads]


def _queued(socket: I64, at: I64, role: I64, arrived: I64) -> I64:
    """``at``, but for a hand-off that follows the read that took its datagram: the time of this read.

    The kernel queues a datagram after its arrival and hands it off afterwards; a reader on another core may take it in between. That is
    so if a read returned in between, and no empty queue was found after it; or if one was, and more was read before than handed off.
    """
    order = np.lexsort((role, at, socket))
    s, t, r = socket[order], at[order], role[order]
    position = np.arange(len(order))
    last = np.maximum.accumulate(np.where(r == 1, position, -1))
    early = (r == 0) & (arrived[order] != NONE) & (last >= 0) & (s[last] == s) & (t[last] > arrived[order])
    if not early.any():
        return at
    first = np.ones(len(order), dtype=bool)
    first[1:] = s[1:] != s[:-1]
    epoch = np.cumsum(first | (r == 2))
    surplus = np.bincount(epoch[r == 1], minlength=epoch[-1] + 1) - np.bincount(
        epoch[r == 0], minlength=epoch[-1] + 1
    )
    early &= (epoch[last] == epoch) | (surplus[epoch[last]] > 0)
    result = at.copy()
    result[order[early]] = t[last[early]]
    return result


def _missed(socket: I64, ts: I64, at: I64, role: I64, no_begin: Bool) -> I64:
    """``at``, but for a hand-off during a failed read that had found the queue empty before: a time after this read.

    If it is not known when the read was entered (``no_begin``): a hand-off came during it if nothing was read in between, more was handed
    off than read until then, and more was read than handed off from then to the next empty queue.
    """
    order = np.lexsort((role, at, socket))
    s, r = socket[order], role[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = s[1:] != s[:-1]
    epoch = np.cumsum(first | (r == 2))
    n = int(epoch[-1]) + 2 if len(epoch) else 1
    surplus = np.bincount(epoch[r == 0], minlength=n) - np.bincount(epoch[r == 1], minlength=n)
    # The row of the empty queue that ends an epoch.
    end = np.full(n, NONE)
    ends = np.flatnonzero(no_begin[order] & ~first)
    end[epoch[ends] - 1] = ends
    late = np.minimum(surplus[:-1], -surplus[1:])
    late = np.append(np.where(end[:-1] != NONE, np.maximum(late, 0), 0), 0)
    last_read = np.full(n, np.iinfo(np.int64).min)
    np.maximum.at(last_read, epoch[r == 1], ts[order[r == 1]])
    candidate = np.flatnonzero((r == 0) & (late[epoch] > 0) & (ts[order] > last_read[epoch]))
    # The last ones of each epoch.
    by_time = candidate[np.lexsort((-ts[order[candidate]], epoch[candidate]))]
    place = np.arange(len(by_time)) - np.searchsorted(epoch[by_time], epoch[by_time])
    moved = by_time[place < late[epoch[by_time]]]
    result = at.copy()
    result[order[moved]] = at[order[end[epoch[moved]]]] + 1
    return result


def _older(epoch: I64, role: I64, first: Bool, bounded: Bool) -> Bool:
    """Reads at the start of the capture that took datagrams that were handed off before it.

    If an empty queue ends the first epoch of a socket, the surplus of reads over hand-offs is
    what the queue held at the start; those reads came first.
    """
    initial = np.zeros(int(epoch[-1]) + 2 if len(epoch) else 1, dtype=bool)
    initial[epoch[first & (role != 2)]] = True
    n_epochs = len(initial)
    surplus = np.bincount(epoch[role == 1], minlength=n_epochs) - np.bincount(
        epoch[role == 0], minlength=n_epochs
    )
    surplus = np.where(initial, np.maximum(surplus, 0), 0)
    is_read = role == 1
    nth = np.cumsum(is_read)
    start = np.zeros(n_epochs, np.int64)
    begins = (
        np.flatnonzero(np.concatenate(([True], epoch[1:] != epoch[:-1])))
        if len(epoch)
        else np.zeros(0, np.int64)
    )
    start[epoch[begins]] = nth[begins] - is_read[begins]
    return np.asarray(is_read & bounded & (nth - start[epoch] <= surplus[epoch]))


def peers(events: Events, ledger: Ledger) -> I64:
    """For each event that is an arrival of a datagram, the row of the sender's X on this host, else NONE.

    The path from driver to driver is a queue for each pair of endpoints and each size. A datagram
    that is lost on the path leaves the queue too long for ever; from then on a pair counts only
    if a single X stands directly before the arrival.
    """
    result = np.full(len(events) + 1, NONE)  # one more, so that row NONE also finds NONE
    udp = events.proto == UDP
    arrived, sent = np.flatnonzero(udp & events.of("A")), np.flatnonzero(udp & events.of("X"))
    rows = np.concatenate((sent, arrived))
    if not len(sent) or not len(arrived):
        return result
    receiver = np.concatenate((events.remote[sent], events.local[arrived])).astype(np.int64)
    sender = np.concatenate((events.local[sent], events.remote[arrived]))
    way, _ = pd.factorize(receiver * (int(max(receiver.max(), sender.max())) + 1) + sender)
    way, _ = pd.factorize(way.astype(np.int64) << 17 | np.minimum(events.length[rows], (1 << 17) - 1))
    is_arrival = np.repeat([False, True], [len(sent), len(arrived)])
    order = np.lexsort((is_arrival, events.ts[rows], way))
    rows, way, is_arrival = rows[order], way[order].astype(np.int64), is_arrival[order]
    taken, depth = fifo.pair(way, is_arrival)
    leaky = _after_last_empty(way, depth)
    position = np.arange(len(rows))
    previous, earlier = np.maximum(position - 1, 0), np.maximum(position - 2, 0)
    alone = (
        is_arrival
        & (way[previous] == way)
        & ~is_arrival[previous]
        & ~((way[earlier] == way) & ~is_arrival[earlier] & (earlier != previous))
    )
    taken = np.where(leaky, np.where(alone, previous, NONE), taken)
    unclear = int(np.count_nonzero(leaky & is_arrival & ~alone))
    ledger.add("datagram_sender_ambiguous", unclear)
    found = is_arrival & (taken >= 0)
    result[rows[found]] = rows[taken[found]]
    return result


def _after_last_empty(way: I64, depth: I64) -> Bool:
    """Rows after the last time at which their queue was empty (all rows if it never was)."""
    n_ways = int(way.max()) + 1
    position = np.arange(len(way))
    last_empty = np.full(n_ways, -1)
    empty = depth == 0
    np.maximum.at(last_empty, way[empty], position[empty])
    return np.asarray(position > last_empty[way])
