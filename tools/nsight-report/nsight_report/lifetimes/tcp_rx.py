# SPDX-License-Identifier: GPL-2.0-only
"""Received TCP messages: arrival, hand-off and read of a byte range (paper, section 4.1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..losses import Ledger
from ..tables.intervals import union
from .columns import I64, NONE, Bool, Events
from .connections import PEER, Streams
from .coverage import Coverage
from .options import LifetimeOptions
from .stamps import nic_stamps

MSG_PEEK = 0x02  # include/linux/socket.h


def reads(events: Events, streams: Streams, ledger: Ledger) -> I64:
    """Positions (in ``streams``) of the reads that took data; each is one message by default."""
    position = streams.of("R")
    row = streams.row[position]
    peek = (events.flags[row] & MSG_PEEK) != 0
    length = events.length[row]
    ledger.add("reads_that_only_peeked", int(np.count_nonzero(peek)))
    ledger.add("reads_at_end_of_stream", int(np.count_nonzero(~peek & (length == 0))))
    ledger.add("reads_that_failed", int(np.count_nonzero(~peek & (length < 0))))
    position = position[~peek & (length > 0)]
    key, end = streams.key[position], streams.key[position] + events.length[streams.row[position]]
    order = np.lexsort((end, key))
    follows = streams.conn[position[order[1:]]] == streams.conn[position[order[:-1]]]
    gap = key[order[1:]] - end[order[:-1]]
    ledger.add(
        "bytes_without_read",
        int(gap[follows & (gap > 0)].sum()),
        places=int(np.count_nonzero(follows & (gap > 0))),
    )
    ledger.add("bytes_read_twice", int(-gap[follows & (gap < 0)].sum()))
    return position


def lifetimes(
    events: Events,
    streams: Streams,
    conn: I64,
    start: I64,
    end: I64,
    read_ns: I64,
    options: LifetimeOptions,
    ledger: Ledger,
) -> dict[str, npt.NDArray[Any]]:
    """Timestamps of received byte ranges ``[start, end)`` (keys of ``streams``) whose last byte was read at ``read_ns``."""
    arrived = _arrivals(events, streams, ledger)
    first, last = arrived.coverage.first(start), arrived.coverage.first(end - 1)
    arrival_row = np.where(first >= 0, arrived.row[np.maximum(first, 0)], NONE) if len(arrived.row) else first
    last_row = np.where(last >= 0, arrived.row[np.maximum(last, 0)], NONE) if len(arrived.row) else last
    handoff_row = _handoffs(events, streams, conn, end, read_ns)
    lost = _copies_lost(events, streams, arrived, start, end)
    last_row = _handed_off(events, arrived, end, last_row, handoff_row, lost)
    peer_row = _peer_rows(events, streams, start, arrival_row)
    # Without arrivals (a recording without BPF) the hand-off of the first byte carries the hardware timestamp of its packet.
    first_handoff = _handoffs(events, streams, conn, start + 1, read_ns)
    stamped_row = np.where(arrival_row != NONE, arrival_row, first_handoff)
    nic = nic_stamps(events, stamped_row, peer_row, options, ledger)
    _count_missing(streams, conn, start, end, arrived, arrival_row, last_row, handoff_row, ledger)
    _count_unread(events, streams, arrived, conn, end, ledger)
    return {
        "nic_ns": nic.ns,
        "nic_source": nic.source,
        "nic_error_ns": nic.error,
        "arrival_ns": pick(events.ts, arrival_row),
        "arrival_last_ns": pick(events.ts, last_row),
        "recv_cpu": pick(events.cpu, np.where(nic.ns != NONE, stamped_row, arrival_row)),
        "handoff_ns": pick(events.ts, handoff_row),
        "handoff_cpu": pick(events.cpu, handoff_row),
        "n_arrivals": arrived.coverage.n_overlapping(start, end),
        "retransmitted": arrived.coverage.repeated(start, end),
        "copy_lost": lost,
        "unaccepted": pick(events.flags, handoff_row) == 1,
    }


def _handed_off(
    events: Events, arrived: _Arrivals, end: I64, last_row: I64, handoff_row: I64, lost: Bool
) -> I64:
    """``last_row``; where copies of the data were ``lost``, the last copy before the hand-off."""
    at = np.flatnonzero(lost & (handoff_row >= 0))
    if not len(at):
        return last_row
    copy = len(arrived.row) - 1 - Coverage(arrived.start[::-1], arrived.end[::-1]).first(end[at] - 1)
    row = arrived.row[np.minimum(copy, len(arrived.row) - 1)]
    good = (copy < len(arrived.row)) & (events.ts[row] <= events.ts[handoff_row[at]])
    last_row = last_row.copy()
    last_row[at[good]] = row[good]
    return last_row


def _copies_lost(events: Events, streams: Streams, arrived: _Arrivals, start: I64, end: I64) -> Bool:
    """Whether bytes were retransmitted that were not yet in the socket.

    A peer that waits too long for an acknowledgement retransmits data that has arrived: that delays nothing. Nor does a
    retransmission of data ahead of a hole: it is kept until the hole is filled, and the message waits for the hole.
    """
    handed = streams.of("H")
    conn = np.concatenate((arrived.conn, streams.conn[handed]))
    ts = events.ts[np.concatenate((arrived.row, streams.row[handed]))]
    key = np.concatenate((np.full(len(arrived.row), NONE), streams.key[handed]))
    order = np.lexsort((ts, conn))  # stable: at equal times the arrival comes before its hand-off
    in_socket = np.empty_like(key)
    in_socket[order] = np.maximum.accumulate(key[order])
    new = np.maximum(arrived.start, in_socket[: len(arrived.row)])
    keep = new < arrived.end
    new, until = new[keep], arrived.end[keep]
    # Ahead of a hole is what comes before bytes in front of it: in order of connections, later ones have larger keys.
    later = np.append(np.minimum.accumulate(new[::-1])[::-1], np.iinfo(np.int64).max)[1:]
    ahead = later < new
    if ahead.any():
        # Repeated arrivals there count once.
        low, high = union(new[ahead], until[ahead])
        new, until = np.concatenate((new[~ahead], low)), np.concatenate((until[~ahead], high))
    return Coverage(new, until).repeated(start, end)


def pick(values: npt.NDArray[Any], row: I64) -> npt.NDArray[Any]:
    """``values[row]``, NONE where row is NONE."""
    if not len(values):
        return np.full(len(row), NONE)
    return np.where(row >= 0, values[np.maximum(row, 0)], NONE)


class _Arrivals:
    """Arrived byte ranges in order of time: event rows, keys, and what covers what."""

    def __init__(self, row: I64, conn: I64, start: I64, end: I64) -> None:
        self.row, self.conn, self.start, self.end = row, conn, start, end
        self.coverage = Coverage(start, end)

    def only(self, rows: Bool) -> _Arrivals:
        return _Arrivals(self.row[rows], self.conn[rows], self.start[rows], self.end[rows])


def packets(events: Events, streams: Streams, kind: str) -> _Arrivals:
    """Packets with payload of one kind in time order, without second passes through another device.

    A packet that crosses a bridge or bond is seen once per device of the namespace: that is
    no retransmission.
    """
    position = streams.of(kind) if kind != "P" else np.flatnonzero(streams.kind == PEER)
    position = position[events.length[streams.row[position]] > 0]
    # Key order of connections is by time within a connection only; ranges of different
    # connections never overlap, so this order serves.
    row, start = streams.row[position], streams.key[position]
    end = start + events.length[row]
    device = events.ifindex[row]
    order = np.lexsort((np.arange(len(row)), end, start))
    head = np.ones(len(row), dtype=bool)
    head[1:] = (start[order[1:]] != start[order[:-1]]) | (end[order[1:]] != end[order[:-1]])
    group = np.flatnonzero(head)[np.cumsum(head) - 1] if len(row) else order
    second_pass = np.zeros(len(row), dtype=bool)
    second_pass[order] = device[order] != device[order[group]]
    keep = ~second_pass
    return _Arrivals(row[keep], streams.conn[position][keep], start[keep], end[keep])


def _arrivals(events: Events, streams: Streams, ledger: Ledger) -> _Arrivals:
    """Arrived data without keep-alive probes.

    A keep-alive of other systems than Linux carries one byte that was sent before: the last byte
    of a longer packet. A packet of one byte that repeats a packet of one byte is a retransmission.
    """
    all_packets = packets(events, streams, "A")
    length = all_packets.end - all_packets.start
    single = np.flatnonzero(length == 1)
    before = all_packets.coverage.first(all_packets.start[single])
    probe = (before != single) & (length[before] > 1) & (all_packets.end[before] == all_packets.end[single])
    ledger.add("keep_alive_probes", int(np.count_nonzero(probe)))
    if not probe.any():
        return all_packets
    keep = np.ones(len(length), dtype=bool)
    keep[single[probe]] = False
    return all_packets.only(keep)


def _handoffs(events: Events, streams: Streams, conn: I64, end: I64, read_ns: I64) -> I64:
    """Row of the first hand-off after which all bytes before ``end`` are in the socket; NONE if it was not recorded.

    The kernel hands data off while it holds the socket, so nobody reads it before. If the first such hand-off comes after the
    read and reaches further than ``end``, it belongs to later data, and the message's own came before the capture or was lost. If
    it does not reach further, it is the message's own, and one of the two clocks is wrong.
    """
    position = streams.of("H")
    if not len(position):
        return np.full(len(end), NONE)
    # rcv_nxt never decreases; the maximum guards against events of one softirq
    # that were taken at the same time in another order.
    reached = np.maximum.accumulate(streams.key[position])
    found = np.searchsorted(reached, end, side="left")
    inside = np.minimum(found, len(position) - 1)
    row = streams.row[position[inside]]
    same = (found < len(position)) & (streams.conn[position[inside]] == conn)
    later = (events.ts[row] > read_ns) & (reached[inside] > end)
    return np.where(same & ~later, row, NONE)


def _peer_rows(events: Events, streams: Streams, start: I64, arrival_row: I64) -> I64:
    """Row of the last time the peer gave the first byte to a driver before it arrived."""
    sent = _all_packets(events, streams)
    none = np.full(len(start), NONE)
    if not len(sent.row) or not len(start):
        return none
    covering = sent.coverage.first(start)
    known = np.flatnonzero((covering >= 0) & (arrival_row >= 0))
    earliest = covering[known]
    limit = events.ts[arrival_row[known]]
    # A packet that was sent again, or that crosses several devices, starts at the same byte each
    # time; the copy that arrived is the last one before the arrival.
    copies = np.lexsort((events.ts[sent.row], sent.start))
    time_rank = np.searchsorted(np.sort(events.ts[sent.row]), events.ts[sent.row[copies]], side="right")
    limit_rank = np.searchsorted(np.sort(events.ts[sent.row]), limit, side="right")
    starts, group = np.unique(sent.start[copies], return_inverse=True)
    wide = len(copies) + 1
    key = group * wide + time_rank
    wanted = np.searchsorted(starts, sent.start[earliest]) * wide + limit_rank
    found = np.searchsorted(key, wanted, side="right") - 1
    inside = np.maximum(found, 0)
    copy = copies[inside]
    good = (found >= 0) & (sent.start[copy] == sent.start[earliest]) & (sent.end[copy] > start[known])
    none[known[good]] = sent.row[copy[good]]
    return none


def _all_packets(events: Events, streams: Streams) -> _Arrivals:
    """All packets that peers on this host gave to a driver, including second passes."""
    position = np.flatnonzero(streams.kind == PEER)
    position = position[events.length[streams.row[position]] > 0]
    start = streams.key[position]
    return _Arrivals(
        streams.row[position], streams.conn[position], start, start + events.length[streams.row[position]]
    )


def _count_missing(
    streams: Streams,
    conn: I64,
    start: I64,
    end: I64,
    arrived: _Arrivals,
    arrival_row: I64,
    last_row: I64,
    handoff_row: I64,
    ledger: Ledger,
) -> None:
    """Count reads whose arrival or hand-off is not known: the capture began too late, or events were lost."""
    unknown = np.iinfo(np.int64).max
    first_byte = np.full(streams.n_connections, unknown)
    np.minimum.at(first_byte, arrived.conn, arrived.start)
    earlier = (start < first_byte[conn]) & ~streams.rx_syn_seen[conn]
    missing = (arrival_row == NONE) | (last_row == NONE)
    ledger.add("read_older_than_capture", int(np.count_nonzero(missing & earlier)))
    ledger.add("read_without_arrival", int(np.count_nonzero(missing & ~earlier)))
    ledger.add("read_without_hand_off", int(np.count_nonzero((handoff_row == NONE) & ~earlier)))
    ledger.add("hand_off_older_than_capture", int(np.count_nonzero((handoff_row == NONE) & earlier)))


def _count_unread(
    events: Events, streams: Streams, arrived: _Arrivals, conn: I64, end: I64, ledger: Ledger
) -> None:
    """Count data that arrived or was handed off but was never read."""
    read_to = np.full(streams.n_connections, NONE)
    np.maximum.at(read_to, conn, end)
    is_read = read_to[arrived.conn] != NONE
    unread = arrived.end > read_to[arrived.conn]
    ledger.add("arrived_but_not_read", int(np.count_nonzero(unread & is_read)))
    ledger.add("arrived_without_readers", int(np.count_nonzero(~is_read)))
    handed = streams.of("H")
    # A hand-off of the peer's FIN counts one number beyond the data.
    waiting = (streams.key[handed] > read_to[streams.conn[handed]] + 1) & (
        read_to[streams.conn[handed]] != NONE
    )
    ledger.add("handed_off_but_not_read", int(np.count_nonzero(waiting)))
