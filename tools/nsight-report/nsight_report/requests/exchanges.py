# SPDX-License-Identifier: GPL-2.0-only
"""Which messages of a connection are a request, and which its reply.

The default is alternation: a request is everything asked (in one call or several) until something is answered, and the reply
everything answered until something is asked again. If each message is one of a protocol whose replies come in the order of
requests, the n-th waiting request is joined with the n-th reply; if the streams of a connection are numbered (HTTP/2), what is
asked on a stream is joined with what is answered on it. Datagrams have no order: one is joined with what is sent to its peer
before the next datagram of that peer is read. The reads of one record of TLS count as one (tls.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..losses import Ledger
from .rows import I64, Rows
from .tls import pieces

Bool = npt.NDArray[np.bool_]

#: Numbers in column ``join``; the last one stands for the framing's protocol.
JOINS = ("alternation", "udp", "framing")
ALTERNATION, UDP, FRAMING = range(3)


@dataclass(frozen=True)
class Exchanges:
    """Requests with a reply, as positions in the rows: first and last message of each; the messages in between belong to it too.

    ``certain``: no other join fits; else see ``requests_in_several_calls`` and ``earlier_datagrams_unanswered`` of the losses.
    """

    ask: I64
    asked: I64
    answer: I64
    answered: I64
    join: I64
    certain: Bool

    @staticmethod
    def both(one: Exchanges, other: Exchanges) -> Exchanges:
        """All of them."""
        names = Exchanges.__dataclass_fields__
        return Exchanges(*(np.concatenate([getattr(one, name), getattr(other, name)]) for name in names))


def exchanges(
    rows: Rows, asks: Bool, is_udp: Bool, is_framed: Bool, unsure: Bool, breaks: I64, ledger: Ledger
) -> Exchanges:
    """Join ``rows``, which are in order of connection and time, and of whole connections.

    ``asks``: rows that belong to a request, all others belong to replies; ``is_udp``, ``is_framed``: how their connections are joined;
    ``unsure``: framed requests that may stay unanswered; ``breaks``: messages without a frame, which are not among the rows, before
    each row in its connection, and in all of that.
    """
    numbered = is_framed & (rows["stream_id"] > 0)
    streams = np.flatnonzero(numbered)
    framed = np.flatnonzero(is_framed & ~numbered)
    plain = np.flatnonzero(~is_framed)
    conn = np.ascontiguousarray(rows["conn_id"])
    return Exchanges.both(
        _by_alternation(
            rows if len(plain) == len(rows) else rows.take(plain), asks[plain], is_udp[plain], plain, ledger
        ),
        Exchanges.both(
            _in_order(rows.take(framed), asks[framed], unsure[framed], breaks[:, framed], framed, ledger),
            _by_stream(conn[streams], rows["stream_id"][streams], asks[streams], streams, ledger),
        ),
    )


def _by_alternation(messages: Rows, asks: Bool, udp: Bool, place: I64, ledger: Ledger) -> Exchanges:
    """``place``: position of each row in the rows of ``Exchanges``."""
    conn, n = np.ascontiguousarray(messages["conn_id"]), len(messages)
    new = np.append(True, conn[1:] != conn[:-1])[:n]
    begins = np.flatnonzero(new | np.append(True, asks[1:] != asks[:-1])[:n])
    ends = np.append(begins[1:], n)[: len(begins)] - 1
    size = ends - begins + 1
    # One turn of asking, followed by one turn of answers of the same connection.
    asking = asks[begins]
    same = np.append(conn[begins[1:]] == conn[begins[:-1]], False)[: len(begins)]
    joined = asking & same
    answered = np.append(False, joined[:-1])[: len(begins)]
    with_other = same | np.append(False, same[:-1])[: len(begins)]
    ledger.add("messages_one_way", int(size[~with_other].sum()))
    ledger.add("requests_without_reply", int(size[asking & ~joined & with_other].sum()))
    ledger.add("replies_without_request", int(size[~asking & ~answered & with_other].sum()))
    turn = np.flatnonzero(joined)
    counts, in_handshake = pieces(messages, ~udp)
    n_pieces = np.add.reduceat(counts, begins) if n else size
    several, is_udp = n_pieces[turn] > 1, udp[begins[turn]]
    ledger.add("requests_ambiguous", int(size[turn][several & is_udp].sum()))
    ledger.add("requests_in_several_calls", int(np.count_nonzero(several & ~is_udp)))
    more = n_pieces[turn] - n_pieces[np.minimum(turn + 1, len(size) - 1)]
    more[in_handshake[begins[turn]]] = 0
    behind = ~several & _some_unanswered(conn[begins[turn]], more)
    ledger.add("earlier_datagrams_unanswered", int(np.count_nonzero(behind & is_udp)))
    ledger.add("requests_behind_several_calls", int(np.count_nonzero(behind & ~is_udp)))
    keep = ~(several & is_udp)
    turn, certain = turn[keep], ~(several | behind)[keep]
    join = np.where(is_udp[keep], UDP, ALTERNATION)
    first, last, answer, end = (
        place[of] for of in (begins[turn], ends[turn], begins[turn + 1], ends[turn + 1])
    )
    return Exchanges(first, last, answer, end, join, certain)


def _some_unanswered(conn: I64, more: I64) -> Bool:
    """By turn: whether an earlier turn of its connection left more messages unanswered than later ones made up for."""
    waiting, _ = _waiting(conn, more)
    before = np.append(0, waiting[:-1])[: len(conn)]
    return (before > 0) & np.append(False, conn[1:] == conn[:-1])[: len(conn)]


def _waiting(conn: I64, step: I64) -> tuple[I64, Bool]:
    """Per connection (in order), the running sum of ``step``, never below 0; and the steps that would have made it negative."""
    n = len(conn)
    if not n:
        return step, np.zeros(0, bool)
    first = np.append(True, conn[1:] != conn[:-1])
    start = np.flatnonzero(first)
    total = np.cumsum(step)
    own = total - np.repeat(total[start] - step[start], np.diff(np.append(start, n)))
    # Connections are kept apart: each later one lies below everything before it.
    apart = (np.cumsum(first) - 1) * (2 * np.abs(step).sum() + 1)
    low = np.minimum.accumulate(np.minimum(own, 0) - apart) + apart
    below = np.where(first, np.minimum(own, 0) < 0, low < np.append(0, low[:-1]))
    return own - low, below


def _in_order(messages: Rows, asks: Bool, unsure: Bool, breaks: I64, place: I64, ledger: Ledger) -> Exchanges:
    """The n-th reply of a connection belongs to the n-th request. ``place``: as in ``_by_alternation``.

    What lies between two messages without a frame (``breaks``) is numbered like a connection. A part of it is joined if every request
    has its reply at its end. After the last such end, only requests that were
    all read before any reply are joined: otherwise one lost reply, or one request without reply, would shift all others. None is
    joined there if one of them may stay unanswered, or if a message without a frame follows.

    A reply too many may be one to a request before the recording, and all replies before it are shifted then. If two requests
    ever waited together, the client does not wait for replies, and no request before that reply is joined.
    """
    # A request counts from its begin: it may be answered before it was read as a whole.
    since = np.where(asks & (messages["begun_ns"] >= 0), messages["begun_ns"], messages["at_ns"])
    order = np.lexsort((since, breaks[0], messages["conn_id"]))
    asks, unsure, breaks, place = asks[order], unsure[order], breaks[:, order], place[order]
    conn = _groups(messages["conn_id"][order], breaks[0])
    after_break, before_break = breaks[0] > 0, breaks[0] < breaks[1]
    waiting, extra = _waiting(conn, np.where(asks, 1, -1))
    ledger.add("replies_without_request", int(np.count_nonzero(extra)))
    rows = np.arange(len(conn))
    ask, answer = rows[asks], rows[~asks & ~extra]
    joined = _nth(conn, ask, answer)
    reply = np.where(joined >= 0, joined, 0)
    last_even = _last_of(conn, np.where(waiting == 0, rows, np.searchsorted(conn, conn) - 1))
    first_answer = _first_behind(conn, answer, last_even)
    closed = ask <= last_even[ask]
    before_any = ask < first_answer[ask]
    # Of the open part at the end, either all or none.
    shifted = np.zeros(len(conn), bool)
    odd = ask[~closed & (~before_any | unsure[ask] | before_break[ask])]
    shifted[np.isin(conn, np.unique(conn[odd]))] = True
    before_extra = ask < _last_of(conn, np.where(extra, rows, -1))[ask]
    together = after_break | (_last_of(conn, waiting) > 1)
    sure = (closed | ~shifted[ask]) & ~(before_extra & together[ask])
    ledger.add("requests_ambiguous", int(np.count_nonzero(~sure)))
    ledger.add("requests_without_reply", int(np.count_nonzero(sure & (joined < 0))))
    keep = sure & (joined >= 0)
    one, other = place[ask[keep]], place[reply[keep]]
    certain = ~(before_extra | after_break[ask])[keep]
    ledger.add("requests_near_unknown_messages", int(np.count_nonzero(~certain)))
    return Exchanges(one, one, other, other, np.full(len(one), FRAMING), certain)


def _groups(one: I64, other: I64) -> I64:
    """Numbers of the runs of equal pairs."""
    return np.cumsum(np.append(True, (one[1:] != one[:-1]) | (other[1:] != other[:-1]))[: len(one)])


def _by_stream(conn: I64, stream: I64, asks: Bool, place: I64, ledger: Ledger) -> Exchanges:
    """The answer on a stream is the reply to the request on it: one of each. ``place``: as in ``_by_alternation``."""
    order = np.lexsort((np.arange(len(conn)), stream, conn))
    conn, stream, asks, place = conn[order], stream[order], asks[order], place[order]
    new = np.append(True, (conn[1:] != conn[:-1]) | (stream[1:] != stream[:-1]))[: len(conn)]
    first = np.flatnonzero(new)
    n_asked, n_answered = (
        np.add.reduceat(of.astype(np.int64), first) if len(first) else first for of in (asks, ~asks)
    )
    pair = (n_asked == 1) & (n_answered == 1)
    ledger.add("requests_without_reply", int(np.count_nonzero((n_asked == 1) & (n_answered == 0))))
    ledger.add("replies_without_request", int(n_answered[n_asked == 0].sum()))
    ledger.add("requests_ambiguous", int(n_asked[(n_asked > 0) & (n_asked + n_answered > 2)].sum()))
    at = first[pair]
    # A server may answer before it has all of the request.
    asked_first = asks[at]
    one, other = (place[np.where(asked_first == want, at, at + 1)] for want in (True, False))
    return Exchanges(one, one, other, other, np.full(len(one), FRAMING), np.ones(len(one), bool))


def _nth(conn: I64, ask: I64, answer: I64) -> I64:
    """For each ``ask`` the ``answer`` with the same number in its connection; -1: there are fewer. Both in order of connection."""
    of, by = conn[ask], conn[answer]
    number = np.arange(len(ask)) - np.searchsorted(of, of, "left")
    at = np.searchsorted(by, of, "left") + number
    known = at < np.searchsorted(by, of, "right")
    return np.where(known, np.append(answer, -1)[np.minimum(at, len(answer))], -1)


def _last_of(conn: I64, value: I64) -> I64:
    """The largest ``value`` in each row's connection."""
    if not len(conn):
        return value
    start = np.flatnonzero(np.append(True, conn[1:] != conn[:-1]))
    return np.repeat(np.maximum.reduceat(value, start), np.diff(np.append(start, len(conn))))


def _first_behind(conn: I64, answer: I64, place: I64) -> I64:
    """By row, the first ``answer`` after row ``place`` of its connection; beyond all rows if there is none."""
    at = np.searchsorted(answer, place, "right")
    found = np.append(answer, len(conn))[at]
    inside = (found < len(conn)) & (np.append(conn, -1)[found] == conn)
    return np.where(inside, found, len(conn))
