# SPDX-License-Identifier: GPL-2.0-only
"""Messages of framed connections that are no half of a request by their protocol: without these, the others are joined in order.

An interim reply of HTTP (100 Continue) is followed by the reply. memcached answers no request with ``noreply``, and a quiet one
only sometimes. PostgreSQL answers no goodbye, and sends notifications at any time. Redis pushes what a client subscribed to: in
RESP3 such a message has its own type. In RESP2 it looks like a reply, as do commands that a replica is sent, so from the first
subscription (PSYNC) of a connection on it is not known which messages are replies. After CLIENT REPLY OFF nothing is answered until
CLIENT REPLY ON (framing_redis.c); if only the latter was recorded, nothing before its reply is joined.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..losses import Ledger
from .rows import I64, Rows

Bool = npt.NDArray[np.bool_]

#: What framing_memcached.c and framing_redis.c append to the type of a request that is not answered, or only sometimes.
NOREPLY, QUIET = "-noreply", "-quiet"
#: The same for requests in memcached's binary protocol, whose names end with q.
_QUIET_OPCODES = frozenset([
    "getq", "getkq", "setq", "addq", "replaceq", "deleteq", "incrementq", "decrementq", "quitq", "flushq", "appendq", "prependq", "gatq",
])  # fmt: skip
_PUSH = "push"
_REPLIES_ON = "CLIENT-reply-on"
_SUBSCRIBES = frozenset(["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "MONITOR", "PSYNC", "SYNC"])
#: Requests and replies that stand alone, by protocol.
_ALONE = {
    "http": (frozenset(["empty"]), frozenset()),
    "redis": (frozenset(["empty"]), frozenset()),
    "postgres": (frozenset(["terminate", "cancel"]), frozenset(["notification"])),
}  # fmt: skip


def unpaired(
    rows: Rows, asks: Bool, is_framed: Bool, types: dict[str, int], framing: str | None, ledger: Ledger
) -> Bool:
    """Which of ``rows`` (in order of connection and time) belong to no pair of request and reply; all but interim replies are counted."""
    of = rows["request_type"]
    asked, answered = _ALONE.get(framing or "", (frozenset(), frozenset()))
    alone = is_framed & asks & _has(of, types, lambda word: word in asked or word.endswith(NOREPLY))
    told = is_framed & ~asks & _has(of, types, lambda word: word in answered)
    ledger.add("requests_without_reply", int(np.count_nonzero(alone)))
    ledger.add("replies_without_request", int(np.count_nonzero(told)))
    if framing == "http":
        return alone | is_framed & ~asks & _has(of, types, _is_interim)
    if framing == "redis":
        unclear = is_framed & ~alone & _until_replies(rows["conn_id"], of, asks, alone, types)
        ledger.add("requests_ambiguous", int(np.count_nonzero(unclear & asks)))
        alone |= unclear
        return alone | _of_redis(rows["conn_id"], of, asks, is_framed & ~alone, types, ledger)
    return alone | told


def may_stay_unanswered(rows: Rows, asks: Bool, types: dict[str, int], framing: str | None) -> Bool:
    """Which requests are answered only sometimes."""
    if framing != "memcached":
        return np.zeros(len(rows), bool)
    return asks & _has(
        rows["request_type"], types, lambda word: word in _QUIET_OPCODES or word.endswith(QUIET)
    )


def _until_replies(conn: I64, of: I64, asks: Bool, alone: Bool, types: dict[str, int]) -> Bool:
    """Rows up to the reply of a CLIENT REPLY ON, unless what turned replies off before it was recorded (one of ``alone``)."""
    turned_on = asks & _has(of, types, lambda word: word == _REPLIES_ON)
    if not turned_on.any():
        return turned_on
    place = np.arange(len(conn))
    first_off, last_on = np.full(int(conn.max()) + 1, len(conn)), np.full(int(conn.max()) + 1, -1)
    np.minimum.at(first_off, conn[alone], place[alone])
    late = turned_on & (place < first_off[conn])
    np.maximum.at(last_on, conn[late], place[late])
    # The reply may be missing: then nothing of the connection is clear.
    reply = np.full(len(last_on), len(conn))
    after = ~asks & (last_on[conn] >= 0) & (place > last_on[conn])
    np.minimum.at(reply, conn[after], place[after])
    return (last_on[conn] >= 0) & (place <= reply[conn])


def _of_redis(conn: I64, of: I64, asks: Bool, is_framed: Bool, types: dict[str, int], ledger: Ledger) -> Bool:
    pushed = is_framed & ~asks & _has(of, types, lambda word: word == _PUSH)
    subscribes = is_framed & asks & _has(of, types, lambda word: word in _SUBSCRIBES)
    if not (pushed.any() or subscribes.any()):
        return pushed
    # In RESP3 a subscription is confirmed by a push, which is no reply to it.
    in_resp3 = np.isin(conn, np.unique(conn[pushed]))
    confirmed = subscribes & in_resp3
    first = np.full(int(conn.max()) + 1, len(conn))
    np.minimum.at(first, conn[subscribes], np.flatnonzero(subscribes))
    unclear = is_framed & ~in_resp3 & (np.arange(len(conn)) >= first[conn])
    ledger.add("replies_without_request", int(np.count_nonzero(pushed)))
    ledger.add("requests_without_reply", int(np.count_nonzero(confirmed)))
    ledger.add("requests_ambiguous", int(np.count_nonzero(unclear & asks)))
    return pushed | confirmed | unclear


def _is_interim(status: str) -> bool:
    # After 101 another protocol follows, and no other reply.
    return len(status) == 3 and status[0] == "1" and status != "101"


def _has(of: I64, types: dict[str, int], wanted: Callable[[str], bool]) -> Bool:
    return np.isin(of, [number for word, number in types.items() if wanted(word)])
