# SPDX-License-Identifier: GPL-2.0-only
"""Messages at the protocol's own boundaries: framed byte ranges matched with read or write calls."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..losses import Ledger
from .columns import I64, NONE, Bool, Events, Vocabulary
from .connections import Streams, key_of
from .frames import Frames


@dataclass(frozen=True)
class Cut:
    """Messages as byte ranges ``[start, end)`` (keys of ``streams``) of the calls that carried them.

    ``first`` and ``last``: position (in ``streams``) of the call with the first and the last byte;
    ``nbytes``, ``key``: as in ``Frames``; ``type``: index into the frames' types, NONE for a call without framing; ``n_calls``: calls the message
    took; ``n_in_call``: messages that its last call completed; ``n_in_first``: those that its first call completed.
    """

    first: I64
    last: I64
    start: I64
    end: I64
    nbytes: I64
    key: I64
    type: I64
    n_calls: I64
    n_in_call: I64
    n_in_first: I64


def unframed(events: Events, streams: Streams, position: I64) -> Cut:
    """One message for each call."""
    start = streams.key[position]
    one = np.ones(len(position), np.int64)
    end = start + events.length[streams.row[position]]
    none = np.full(len(position), NONE)
    return Cut(position, position, start, end, end - start, none, none, one, one, one)


def cut(
    frames: Frames,
    events: Events,
    streams: Streams,
    vocabulary: Vocabulary,
    position: I64,
    received: bool,
    ledger: Ledger,
) -> Cut:
    """Cut the byte streams of the calls at ``position`` into framed messages.

    A message whose last byte was in no call is counted and left out; a call without any byte in a
    framed message stays a separate message, without type.
    """
    order = np.argsort(streams.key[position], kind="stable")
    position = position[order]
    call_start = streams.key[position]
    call_end = call_start + events.length[streams.row[position]]
    conn, origin = _connections(frames, events, streams, vocabulary, position, received)
    known = conn[frames.stream] != NONE
    stream = frames.stream[known]
    start = key_of(conn[stream], origin[stream] + frames.offset[known])
    end = start + frames.length[known]
    first, began = _covering(call_start, call_end, start)
    last, ended = _covering(call_start, call_end, end - 1)
    whole = began & ended
    what = "read" if received else "sent"
    ledger.add(
        "framed_messages_not_in_capture",
        int(np.count_nonzero(~whole)),
        what=what,
        calls="reads" if received else "sends",
    )
    start, end, first, last = start[whole], end[whole], first[whole], last[whole]
    touched = np.zeros(len(position) + 1, np.int64)
    np.add.at(touched, first, 1)
    np.add.at(touched, last + 1, -1)
    alone = np.flatnonzero(np.cumsum(touched)[:-1] == 0)
    ledger.add("calls_without_framing", len(alone), what=what)
    completed = np.bincount(last, minlength=len(position))
    plain = unframed(events, streams, position[alone])
    return Cut(
        np.concatenate([position[first], plain.first]),
        np.concatenate([position[last], plain.last]),
        np.concatenate([start, plain.start]),
        np.concatenate([end, plain.end]),
        np.concatenate([frames.nbytes[known][whole], plain.nbytes]),
        np.concatenate([frames.key[known][whole], plain.key]),
        np.concatenate([frames.type[known][whole], plain.type]),
        np.concatenate([last - first + 1, plain.n_calls]),
        np.concatenate([completed[last], plain.n_in_call]),
        np.concatenate([completed[first], plain.n_in_first]),
    )


def _covering(start: I64, end: I64, key: I64) -> tuple[I64, Bool]:
    """The last range (ordered by start) that begins at or before each key, and whether it contains the key."""
    if not len(start):
        return np.zeros(len(key), np.int64), np.zeros(len(key), dtype=bool)
    found = np.maximum(np.searchsorted(start, key, side="right") - 1, 0)
    return found, (start[found] <= key) & (key < end[found])


def _connections(
    frames: Frames, events: Events, streams: Streams, vocabulary: Vocabulary, position: I64, received: bool
) -> tuple[I64, I64]:
    """For each framed stream the connection whose calls carry it, and the offset of its byte 0 there.

    If several connections used the addresses, the one with the nearest sequence numbers.
    """
    n_streams = len(frames.base)
    conn, origin = np.full(n_streams, NONE), np.zeros(n_streams, np.int64)
    row = streams.row[position]
    calls = pd.DataFrame(
        {
            "conn": streams.conn[position],
            "local": events.local[row],
            "remote": events.remote[row],
            "seq": events.seq[row],
            "at": streams.offset[position],
        }
    ).drop_duplicates("conn")
    endpoint = {
        (vocabulary.addresses[a], int(p)): i
        for i, (a, p) in enumerate(zip(vocabulary.endpoint_address, vocabulary.endpoint_port))
    }
    mine, peer = (frames.target, frames.source) if received else (frames.source, frames.target)
    wanted = pd.DataFrame(
        {
            "stream": np.arange(n_streams),
            "local": [endpoint.get(end, NONE) for end in mine],
            "remote": [endpoint.get(end, NONE) for end in peer],
            "base": frames.base,
        }
    )
    pairs = wanted.merge(calls, on=["local", "remote"])
    away = (
        (pairs["base"] - pairs["seq"]).to_numpy(np.int64).astype(np.uint32).astype(np.int32).astype(np.int64)
    )
    pairs["origin"] = pairs["at"] + away
    pairs = pairs.iloc[np.argsort(np.abs(away), kind="stable")].drop_duplicates("stream")
    conn[pairs["stream"]], origin[pairs["stream"]] = pairs["conn"], pairs["origin"]
    return conn, origin
