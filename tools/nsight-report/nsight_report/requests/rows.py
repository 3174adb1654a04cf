# SPDX-License-Identifier: GPL-2.0-only
"""Messages by connection and time, where memory needs to hold only one connection; and the common facts of connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..tables.external_sort import Runs, rows_of
from ..tables.messages import Messages

I64 = npt.NDArray[np.int64]
Rows = npt.NDArray[Any]  # of the type ROW

#: Columns of a message's row, as in table ``messages``; -1: not known.
COPIED = {
    "conn_id": np.int64, "message_id": np.int64, "first_ns": np.int64, "arrival_last_ns": np.int64, "handoff_ns": np.int64, "call_ns": np.int64,
    "app_ns": np.int64, "driver_ns": np.int64, "completion_ns": np.int64, "acked_ns": np.int64, "nbytes": np.int64, "pid": np.int32, "tid": np.int32,
    "comm": np.int32, "request_type": np.int32, "stream_id": np.int64, "byte_start": np.int64, "begun_ns": np.int64,
    "last_call_ns": np.int64,
}  # fmt: skip
#: ``at_ns``: when the application got it (received: the read returned) or passed it on (sent: the call was entered).
ROW = np.dtype([*COPIED.items(), ("at_ns", np.int64), ("tx", np.int8)])
#: Facts that the first message of each connection gives.
OF_CONNECTION = ("proto", "netns", "laddr", "lport", "raddr", "rport")
DIRECTIONS = ("rx", "tx")
WORDS = ("comm", "request_type", "laddr", "raddr")


class Connections:
    """By connection: ``OF_CONNECTION``, ``first_tx`` (its first message was sent); -1 if it has no message.
    ``surplus``: how many more messages have a type than have none; a message of a numbered stream counts more than all others."""

    def __init__(self) -> None:
        self._of = {name: np.full(0, -1) for name in (*OF_CONNECTION, "first_tx", "surplus")}

    def __getitem__(self, name: str) -> I64:
        return self._of[name]

    def add(self, batch: dict[str, npt.NDArray[Any]], at: I64) -> None:
        """Messages in the order in which they began; ``at``: as in ``ROW``."""
        conn = batch["conn_id"]
        known, more = len(self["proto"]), int(conn.max(initial=-1)) + 1
        if more > known:
            room = np.full(max(more, 2 * known) - known, -1)
            self._of = {name: np.append(of, room) for name, of in self._of.items()}
        order = np.argsort(at, kind="stable")
        found, first = np.unique(conn[order], return_index=True)
        first = order[first]
        new = self["proto"][found] < 0
        for name in OF_CONNECTION:
            self[name][found[new]] = batch[name][first[new]]
        self["first_tx"][found[new]] = batch["tx"][first[new]]
        self["surplus"][found[new]] = 0
        # Calls with nothing but HTTP/2's own frames may be more than those with messages.
        counts = np.where(batch["stream_id"] > 0, 1 << 40, np.where(batch["request_type"] < 0, -1, 1))
        np.add.at(self["surplus"], conn, counts)


def by_connection(
    messages: Messages, scratch: Path, words: dict[str, dict[str, int]]
) -> tuple[Iterator[Rows], Connections]:
    """``(rows of some connections at a time, in order of connection and at_ns; connections)``; each connection is whole.

    ``words``: for ``WORDS``, the texts and their numbers; grows.
    """
    runs, connections = (
        Runs(scratch / "requests.messages", ROW, ("conn_id", "at_ns", "tx", "byte_start", "message_id")),
        Connections(),
    )
    names = [*COPIED, "last_ns", "direction", *OF_CONNECTION]
    for every in messages.batches(names, words):
        received, sent = (
            every["direction"] == words["direction"].get(direction, -1) for direction in DIRECTIONS
        )
        # The same table contains intervals that the user requested.
        chosen = received | sent
        batch = {name: values[chosen] for name, values in every.items()} | {
            "tx": sent[chosen].astype(np.int8)
        }
        at = np.where(batch["tx"] == 1, batch["first_ns"], batch["last_ns"])
        connections.add(batch, at)
        runs.add(rows_of(ROW, {**{name: batch[name] for name in COPIED}, "tx": batch["tx"], "at_ns": at}))
    return runs.merged(), connections
