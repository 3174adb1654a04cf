# SPDX-License-Identifier: GPL-2.0-only
"""Requests as input of a diagnosis: in the form of messages, with the timestamps of both directions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..stage import REQUEST
from ..tables.data_frames import column
from ..tables.messages import Keep, Messages
from .phases import PHASES
from .rows import I64

#: Columns of rows in addition to those of messages. ``in_ns``: first byte of what was received; ``read_ns``: it was read;
#: ``send_ns``, ``sent_ns``, ``left_ns``: a send call (server: the last, client: the first) was entered, it
#: returned, and the last byte reached the driver. ``tid`` is the reader, ``send_tid`` the sender; ``first_id``, ``last_id``:
#: numbers of the messages that were received. ``sent_bytes``, ``n_sends``: of everything that was sent, and in how many calls; -1
#: if others may have been in flight on the connection. ``sent_start``, ``sent_end``: byte range of the last of it.
BESIDE = (
    "role",
    "first_id",
    "last_id",
    "send_tid",
    "in_ns",
    "read_ns",
    "send_ns",
    "sent_ns",
    "left_ns",
    "send_cpu",
    "driver_cpu",
    "sent_bytes",
    "n_sends",
    "sent_start",
    "sent_end",
)
_ASKED = (
    "request_id", "role", "last_message_id", "reply_message_id", "last_reply_message_id", "join", "n_messages", "n_reply_messages", "nbytes",
    "reply_nbytes", "request_type", "tid", "reply_tid", "first_ns", "last_ns",
    "latency_ns", *PHASES,
)  # fmt: skip


class Lifetimes(Messages):
    """The requests of one role: ``columns`` and ``rows`` like those of messages.

    In a row, message_id is the request_id and direction is ``request``; first_ns, last_ns and latency_ns are the request's.
    completion_ns is that of what was sent last; all other values are those of the last message that it received: of the
    request, at a client of the reply.
    """

    def __init__(self, requests: Messages, messages: Messages, role: str) -> None:
        self._requests, self._messages, self._role = requests, messages, role
        self.n_read, self.num_rows = 0, messages.num_rows
        received, sent = ("", "reply_") if role == "server" else ("reply_", "")
        self._sent_bytes, self._sent_messages = f"{sent}nbytes", f"n_{sent}messages"
        self._first = "request_id" if role == "server" else "reply_message_id"
        self._received, self._sent = f"last_{received}message_id", f"last_{sent}message_id"
        self._named = {
            "message_id": "request_id", "app_ns": "read_ns", "tid": f"{received}tid", "send_tid": f"{sent}tid"
        }  # fmt: skip

    @property
    def column_names(self) -> list[str]:
        """Same names as for messages."""
        return self._messages.column_names

    def columns(self, names: Sequence[str], keep: Keep | None = None) -> pd.DataFrame:
        """Like ``Messages.columns``, in the order in which requests began; ``tid`` is accompanied by ``send_tid``."""
        names = list(dict.fromkeys([*names, *(["send_tid"] if "tid" in names else [])]))
        known = {*self._named, *self._requests.column_names}
        stored = {name: self._named.get(name, name) for name in names if name in known}
        every = self._requests.columns([*stored.values(), "role", self._received], self._of_role)
        others = [name for name in names if name not in known and name != "direction"]
        of = self._of_messages(every[self._received].to_numpy(np.int64), others)
        found = {name: every[place].array for name, place in stored.items()}
        found |= {name: of[name].array for name in others}
        if "direction" in names:
            found["direction"] = pd.Categorical.from_codes(np.zeros(len(every), np.int8), pd.Index([REQUEST]))
        frame = pd.DataFrame(found)[names]
        return frame if keep is None else frame[keep(frame)].reset_index(drop=True)

    def rows(self, message_ids: I64, names: Sequence[str] | None = None) -> pd.DataFrame:
        """Like ``Messages.rows``, with the columns ``BESIDE`` unless some are named."""
        asked = self._requests.rows(message_ids, _ASKED)
        asked = asked[self._of_role(asked)].reset_index(drop=True)
        came, gone = column(asked[self._received]), column(asked[self._sent])
        ends = self._messages.rows(np.union1d(came, gone))
        place = pd.Index(column(ends["message_id"]))
        received, sent = (
            ends.iloc[place.get_indexer(pd.Index(of))].reset_index(drop=True) for of in (came, gone)
        )
        at = self._points(asked)
        alone = (asked["join"] == "alternation").to_numpy(bool)
        n_sends = column(asked[self._sent_messages]) - 1 + column(sent["n_reads"])
        frame = received.assign(
            message_id=column(asked["request_id"]),
            direction=REQUEST,
            **{
                name: asked[name].array
                for name in ("role", "request_type", "first_ns", "last_ns", "latency_ns")
            },
            **{name: column(asked[self._named[name]]) for name in ("tid", "send_tid")},
            first_id=column(asked[self._first]),
            last_id=came,
            **at,
            sent_ns=np.clip(column(sent["app_ns"]), at["send_ns"], at["left_ns"]),
            qdisc_dur_ns=sent["qdisc_dur_ns"].array,
            completion_ns=sent["completion_ns"].array,
            send_cpu=sent["app_cpu"].array,
            driver_cpu=sent["recv_cpu"].array,
            sent_bytes=np.where(alone, column(asked[self._sent_bytes]), -1),
            n_sends=np.where(alone, n_sends, -1),
            sent_start=column(sent["byte_start"]),
            sent_end=column(sent["byte_end"]),
        )
        return frame[[*self.column_names, *BESIDE] if names is None else list(names)]

    def _points(self, asked: pd.DataFrame) -> dict[str, I64]:
        """The borders between phases; the phases add up, whatever timestamps are missing."""
        first = column(asked["first_ns"])
        receive, queue, service, transmit = (column(asked[name]) for name in PHASES)
        begin = first if self._role == "server" else first + transmit + service
        read = begin + receive + queue
        send = read + service if self._role == "server" else first
        return {"in_ns": begin, "read_ns": read, "send_ns": send, "left_ns": send + transmit}

    def _of_role(self, rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
        return (rows["role"] == self._role).to_numpy(bool)

    def _of_messages(self, ids: I64, names: list[str]) -> pd.DataFrame:
        if not names:
            return pd.DataFrame(index=range(len(ids)))
        every = self._messages.columns(["message_id", *names])
        return every[names].iloc[pd.Index(every["message_id"]).get_indexer(pd.Index(ids))]
