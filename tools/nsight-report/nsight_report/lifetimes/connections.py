# SPDX-License-Identifier: GPL-2.0-only
"""TCP connections: which events belong to each, and the position of each event in the two byte streams.

A connection is a namespace, a local and a remote endpoint, and one lifetime of the socket: when
the addresses are used again, another connection begins. Sequence numbers wrap after 4 GiB and do
not start at 0, so they become 64-bit offsets, and a (connection, offset) pair becomes one integer
that sorts: the streams of all connections are searched at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..losses import Ledger
from .columns import I32, I64, NONE, Bool, Events

_OFFSET_BITS = 40
_BIAS = 1 << 38  # offsets may be negative: bytes before the first one that was read
FIN, SYN = 0x01, 0x02
_CLOSE = 7  # TCP_CLOSE, include/net/tcp_states.h
PEER = ord("P")  # an X event of the peer, seen as the sender of what this side receives


@dataclass(frozen=True)
class Streams:
    """TCP events by connection, in the order of connection and time.

    ``row`` is the index into the events, ``kind`` the letter's code or PEER, ``conn`` the
    connection. ``offset`` counts bytes in the event's own direction; ``key`` joins
    connection and offset. ``base`` (as in the events) and ``rx_syn_seen`` are per connection.
    """

    row: I64
    kind: npt.NDArray[np.uint8]
    conn: I64
    offset: I64
    key: I64
    n_connections: int
    base: I64
    rx_syn_seen: Bool

    def of(self, letter: str) -> I64:
        """Positions of one kind of events."""
        return np.flatnonzero(self.kind == ord(letter))


def key_of(conn: I64, offset: I64) -> I64:
    """One integer for (connection, offset), ordered like the pair."""
    return np.asarray((conn << _OFFSET_BITS) + offset + _BIAS)


def streams(events: Events, ledger: Ledger) -> Streams:
    """Sort the TCP events into connections and give each its place in the byte stream."""
    own = np.flatnonzero(events.base != NONE)
    bases, first, base = np.unique(events.base[own], return_index=True, return_inverse=True)
    peer_rows, peer_base = _peers(events, own, base, own[first])
    row = np.concatenate((own, peer_rows))
    base = np.concatenate((base, peer_base))
    kind = np.concatenate((events.kind[own], np.full(len(peer_rows), PEER, np.uint8)))
    # At equal times the sender's event comes first: it is the cause of the other.
    order = np.lexsort((kind != PEER, events.ts[row], base))
    row, base, kind = row[order], base[order], kind[order]
    conn = _generations(events, row, base, kind)
    n_connections = int(conn[-1]) + 1 if len(conn) else 0
    base_of = bases[base[np.flatnonzero(np.diff(conn, prepend=-1))]].astype(np.int64)
    offset = np.zeros(len(row), np.int64)
    valid = np.ones(len(row), dtype=bool)
    syn_seen = []
    for arrive, read, others in ((b"A", b"R", b"HP"), (b"X", b"S", b"T")):
        part = np.flatnonzero(np.isin(kind, np.frombuffer(arrive + read + others, np.uint8)))
        offsets, good, seen = _unwrap(events, row[part], kind[part], conn[part], n_connections, arrive, read)
        offset[part], valid[part] = offsets, good
        syn_seen.append(seen)
    lost = int(np.count_nonzero(~valid & (kind != PEER)))
    ledger.add("sequence_number_outside_connection", lost)
    return Streams(
        row[valid],
        kind[valid],
        conn[valid],
        offset[valid],
        key_of(conn[valid], offset[valid]),
        n_connections,
        base_of,
        syn_seen[0],
    )


def _peers(events: Events, own: I64, base: I64, first: I64) -> tuple[I64, I64]:
    """The connections (in any namespace) that would receive the bytes of each X. ``first``: a row of each base."""
    receives = np.zeros(len(first), dtype=bool)
    receives[base[np.isin(events.kind[own], (ord("A"), ord("R")))]] = True
    candidates = np.flatnonzero(receives)
    n_end = int(max(events.local.max(initial=0), events.remote.max(initial=0))) + 1
    wanted = _pair(events.local[first[candidates]], events.remote[first[candidates]], n_end)
    order = np.argsort(wanted, kind="stable")
    candidates, wanted = candidates[order], wanted[order]
    sent = own[(events.kind[own] == ord("X")) & (events.length[own] > 0)]
    mirrored = _pair(events.remote[sent], events.local[sent], n_end)
    low = np.searchsorted(wanted, mirrored, side="left")
    n_receivers = np.searchsorted(wanted, mirrored, side="right") - low
    rows = np.repeat(sent, n_receivers)
    nth = np.arange(len(rows)) - np.repeat(np.cumsum(n_receivers) - n_receivers, n_receivers)
    return rows, candidates[np.repeat(low, n_receivers) + nth].astype(np.int64)


def _pair(one: I32, other: I32, n_end: int) -> I64:
    return one.astype(np.int64) * n_end + other


def _generations(events: Events, row: I64, base: I64, kind: npt.NDArray[np.uint8]) -> I64:
    """Number of the connection of each row: address tuples that were used again are split.

    A connection begins at a SYN that follows anything but SYNs, unless it repeats the previous SYN;
    if the SYN was lost, after the last event of the previous socket. So a request that the previous
    owner of the addresses left unread is never joined to a read of the next owner.
    """
    cut = np.ones(len(row), dtype=bool)
    cut[1:] = base[1:] != base[:-1]
    flags = events.flags[row]
    packet = (kind == ord("A")) | (kind == ord("X"))
    is_syn = packet & ((flags & SYN) != 0)
    closing = (kind == ord("O")) & (flags == _CLOSE)
    active = ~is_syn & (kind != PEER) & ((kind != ord("O")) | closing)
    n_active = np.cumsum(active)
    syn = np.flatnonzero(is_syn)
    if len(syn):
        same = np.concatenate(([False], base[syn[1:]] == base[syn[:-1]]))
        # Activity since the previous SYN of this tuple, or since its first event.
        first = np.maximum.accumulate(np.where(cut, np.arange(len(row)), 0))[syn]
        since = np.where(same, n_active[np.concatenate((syn[:1], syn[:-1]))], n_active[first] - active[first])
        repeat = _repeats(base[syn], kind[syn], events.seq[row][syn])
        cut[syn] |= (n_active[syn] > since) & ~repeat
    used = np.flatnonzero(np.isin(kind, np.frombuffer(b"HRS", np.uint8)) & (events.sk[row] != 0))
    if len(used):
        number = np.cumsum(cut)
        other = (base[used[1:]] == base[used[:-1]]) & (events.sk[row[used[1:]]] != events.sk[row[used[:-1]]])
        unseen = other & (number[used[1:]] == number[used[:-1]])
        cut[used[:-1][unseen] + 1] = True
    return np.cumsum(cut) - 1


def _repeats(base: I64, kind: npt.NDArray[np.uint8], seq: I64) -> Bool:
    """Which SYNs repeat the previous SYN of the same tuple and direction."""
    order = np.lexsort((np.arange(len(base)), kind, base))
    again = np.zeros(len(base), dtype=bool)
    now, before = order[1:], order[:-1]
    again[now] = (base[now] == base[before]) & (kind[now] == kind[before]) & (seq[now] == seq[before])
    return again


def _unwrap(
    events: Events,
    row: I64,
    kind: npt.NDArray[np.uint8],
    conn: I64,
    n_connections: int,
    packet: bytes,
    call: bytes,
) -> tuple[I64, Bool, Bool]:
    """Offsets of the rows in their stream, which of them are plausible, and whether the SYN of each connection was seen.

    Consecutive sequence numbers of a stream differ by less than 2 GiB, so the signed 32-bit
    difference is the true one; retransmitted and reordered data give negative steps. The peer's
    packets are not part of this chain: they may belong to another network that uses the
    same addresses.
    """
    seen = np.zeros(n_connections, dtype=bool)
    if not len(row):
        return np.zeros(0, np.int64), np.zeros(0, dtype=bool), seen
    seq, length = events.seq[row], events.length[row]
    is_packet, is_call = kind == packet[0], kind == call[0]
    is_syn = is_packet & ((events.flags[row] & SYN) != 0)
    chained = (kind != PEER) & (kind != ord("T"))
    link = np.flatnonzero(chained)
    step = np.zeros(len(link), np.int64)
    step[1:] = np.where(conn[link[1:]] == conn[link[:-1]], _difference(seq[link[1:]], seq[link[:-1]]), 0)
    total = np.cumsum(step)
    # The nearest chained row before, or the first one of the connection.
    nearest = np.searchsorted(link, np.arange(len(row)), side="right") - 1
    before_first = (nearest < 0) | (conn[link[np.maximum(nearest, 0)]] != conn) if len(link) else None
    if before_first is None:
        return np.zeros(len(row), np.int64), np.zeros(len(row), dtype=bool), seen
    nearest = np.minimum(np.where(before_first, nearest + 1, nearest), len(link) - 1)
    anchor = link[nearest]
    offset = total[nearest] + _difference(seq, seq[anchor])
    known = conn[anchor] == conn
    origin = _origin(offset, conn, n_connections, is_syn, is_call & (length > 0), is_packet & (length > 0))
    seen[conn[is_syn]] = True
    offset = offset - origin[conn]
    # Data starts after the SYN, which uses one sequence number itself.
    offset[is_syn] = 0
    return offset, known & (np.abs(offset) < _BIAS - (1 << 32)), seen


def _difference(now: I64, before: I64) -> I64:
    return (now - before).astype(np.uint32).astype(np.int32).astype(np.int64)


def _origin(offset: I64, conn: I64, n_connections: int, syn: Bool, call: Bool, packet: Bool) -> I64:
    """Offset of the first byte: after the SYN, else the first byte that an application saw, else the first on the wire."""
    unknown = np.iinfo(np.int64).max
    origin = np.full(n_connections, unknown, np.int64)
    for rows, shift in ((syn, 1), (call, 0), (packet, 0)):
        found = np.full(n_connections, unknown, np.int64)
        np.minimum.at(found, conn[rows], offset[rows] + shift)
        origin = np.where(origin == unknown, found, origin)
    return np.where(origin == unknown, 0, origin)
