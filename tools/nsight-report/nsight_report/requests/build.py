# SPDX-License-Identifier: GPL-2.0-only
"""From table ``messages`` to table ``requests``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from ..losses import Ledger
from ..tables import schema
from ..tables.external_sort import Runs, row_type, rows_of, to_table
from ..tables.messages import Messages
from ..tables.store import Writer, Written, writing
from .exchanges import FRAMING, JOINS, Exchanges, exchanges
from .phases import measure
from .roles import CLIENT, ROLES, roles
from .rows import DIRECTIONS, I64, WORDS, Connections, Rows, by_connection
from .tree import InHands, Sent, parents
from .unpaired import may_stay_unanswered, unpaired

_UDP = 17
_ROW = row_type("requests")


def build(
    messages: Messages, scratch: Path, framing: str | None = None
) -> tuple[Written | pa.Table, pa.Table]:
    """Write the requests to directory ``scratch``; return ``(requests, losses)``.

    ``framing``: the protocol at whose boundaries ``messages`` were cut. Memory holds the messages of some connections at a time
    (at least one whole connection), for every received request which thread had it when, and for every connection which side asks.
    Messages of a recording of one direction make no request, and none is counted as missing.
    """
    ledger = Ledger("requests")
    if not _both_directions(messages):
        return schema.empty("requests"), ledger.table()
    words: dict[str, dict[str, int]] = {name: {} for name in (*WORDS, "direction")}
    parts, connections = by_connection(messages, scratch, words)
    role = roles(connections, ledger)
    runs, hands = Runs(scratch / "requests.runs", _ROW, ("first_ns", "request_id")), [InHands.join([])]
    for rows in parts:
        made = _requests(rows, connections, role, words["request_type"], framing, ledger)
        received = made[made["role"] != CLIENT]
        hands.append(
            InHands(
                *(
                    received[name].astype(np.int64)
                    for name in ("request_id", "tid", "read_ns", "last_send_ns")
                )
            )
        )
        runs.add(made)
    in_hands, in_several = InHands.join(hands), 0
    lists = {name: list(of) for name, of in words.items()}
    lists |= {"role": ROLES, "join": [*JOINS[:FRAMING], f"{JOINS[FRAMING]}:{framing}"]}
    written = Written(scratch / "requests.parquet")
    with writing(written.path), Writer(written.path, schema.TABLES["requests"].arrow()) as writer:
        for rows in runs.merged():
            sent = rows["role"] == CLIENT
            of = Sent(*(rows[name][sent].astype(np.int64) for name in ("tid", "first_ns", "last_ns")))
            rows["parent_request_id"][sent], shared = parents(in_hands, of)
            in_several += shared
            writer.write(to_table("requests", rows, lists, null=-1))
    ledger.add("requests_sent_in_several", in_several)
    return written, ledger.table()


def _both_directions(messages: Messages) -> bool:
    words: dict[str, dict[str, int]] = {}
    seen: set[int] = set()
    # The table's dictionary may contain words that no message uses as direction.
    for batch in messages.batches(["direction"], words):
        seen.update(np.unique(batch["direction"]).tolist())
        if {words["direction"].get(direction) for direction in DIRECTIONS} <= seen:
            return True
    return False


def _requests(
    rows: Rows,
    connections: Connections,
    role: I64,
    types: dict[str, int],
    framing: str | None,
    ledger: Ledger,
) -> Rows:
    """Rows of table ``requests`` of some connections, by connection."""
    is_framed = (connections["surplus"][rows["conn_id"]] > 0) & (framing is not None)
    unknown = is_framed & (rows["request_type"] < 0)
    ledger.add("messages_without_frame", int(np.count_nonzero(unknown)))
    asks = (rows["tx"] == 1) == (role[rows["conn_id"]] == CLIENT)
    keep = ~(unpaired(rows, asks, is_framed & ~unknown, types, framing, ledger) | unknown)
    breaks = _breaks(rows["conn_id"], unknown)
    if not keep.all():
        rows, is_framed, asks, breaks = (
            rows.take(np.flatnonzero(keep)),
            is_framed[keep],
            asks[keep],
            breaks[:, keep],
        )
    conn = rows["conn_id"]
    is_client = role[conn] == CLIENT
    is_udp = connections["proto"][conn] == _UDP
    unsure = may_stay_unanswered(rows, asks, types, framing)
    found = exchanges(rows, asks, is_udp, is_framed & ~is_udp, unsure, breaks, ledger)
    client = is_client[found.ask]
    of = conn[found.ask]
    facts = {name: connections[name][of] for name in ("proto", "laddr", "lport", "raddr", "rport")}
    return rows_of(
        _ROW,
        {
            **measure(rows, found, client, ledger),
            **_identity(rows, found),
            **facts,
            "role": role[of],
            "parent_request_id": -1,
        },
    )


def _breaks(conn: I64, unknown: np.ndarray) -> I64:
    """By row, how many of its connection's rows are ``unknown`` so far, and how many in all."""
    if not unknown.any():
        return np.zeros((2, len(conn)), np.int64)
    total = np.append(0, np.cumsum(unknown))
    first, behind = np.searchsorted(conn, conn), np.searchsorted(conn, conn, "right")
    return np.stack([total[1:] - total[first], total[behind] - total[first]])


def _identity(rows: Rows, found: Exchanges) -> dict[str, I64]:
    """Which messages a request consists of, and whose it is. ``tid``: at a server the last reader, at a client the first sender."""
    ids, total = rows["message_id"], np.append(0, np.cumsum(rows["nbytes"]))
    of = np.where(rows["tx"][found.ask] == 1, found.ask, found.asked)
    return {
        "request_id": ids[found.ask],
        "join": found.join,
        "certain": found.certain,
        "conn_id": rows["conn_id"][found.ask],
        "last_message_id": ids[found.asked],
        "reply_message_id": ids[found.answer],
        "last_reply_message_id": ids[found.answered],
        "n_messages": found.asked - found.ask + 1,
        "n_reply_messages": found.answered - found.answer + 1,
        "nbytes": total[found.asked + 1] - total[found.ask],
        "reply_nbytes": total[found.answered + 1] - total[found.answer],
        "request_type": rows["request_type"][found.ask],
        "pid": rows["pid"][of],
        "tid": rows["tid"][of],
        "comm": rows["comm"][of],
        "reply_tid": rows["tid"][found.answered],
    }
