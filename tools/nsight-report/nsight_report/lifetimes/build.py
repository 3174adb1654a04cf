# SPDX-License-Identifier: GPL-2.0-only
"""From the ``events`` table to the ``messages`` table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..losses import Ledger
from ..tables.store import Written
from . import connections, frames, framing, tcp_rx, tcp_tx, udp_rx, udp_tx
from .assemble import Messages, from_calls
from .columns import I64, NONE, Events, Vocabulary, once
from .options import LifetimeOptions
from .parts import Parts
from .stamps import classify_software_stamps, reject_negative

if TYPE_CHECKING:
    from ..tables.intervals import IntervalTable

Columns = dict[str, npt.NDArray[Any]]


def build(
    events: IntervalTable, scratch: Path, options: LifetimeOptions | None = None
) -> tuple[Written, pa.Table]:
    """Write the messages to directory ``scratch``; return ``(messages, losses)``.

    A row of ``messages`` is one read or one write, or one message of the protocol that
    ``options.framing`` names (table ``messages``), in order of ``first_ns``. A
    timestamp that was not measured is null and its letter is missing in ``timestamps``; a message without
    any timestamp before the read begins at the read (``first_ns = app_ns``, latency 0).
    Every event that led to no message, and every timestamp that was rejected, is counted in ``losses``.

    Connections are built part by part (``Parts``): only those of one part are in memory, except with framing.

    Assumes that ``ts_ns`` is one clock on all cores and that the consecutive packets of a
    connection differ by less than 2 GiB in their sequence numbers.
    """
    options = options or LifetimeOptions()
    ledger = Ledger("lifetimes")
    framed = None
    if options.framing and options.payload:
        framed = frames.load(options.payload, options.framing, ledger)
    parts = Parts(events, scratch, only_one=framed is not None)
    vocabulary = parts.vocabulary
    made = Messages(scratch, vocabulary, ledger, framed.types if framed else [])
    for part in parts.tcp():
        # Not kept in a variable: each part is freed before the next one is read.
        made.add_tcp(*_connections(parts.read(part), vocabulary, framed, options, ledger))
    recorded = once(parts.read(parts.others()), ledger)
    classify_software_stamps(recorded, options, ledger)
    made.add_datagrams(*_datagrams(recorded, vocabulary, options, ledger))
    for found in options.intervals:
        made.add_intervals(*found)
    return made.write(), ledger.table()


def _connections(
    part: Events,
    vocabulary: Vocabulary,
    framed: frames.Frames | None,
    options: LifetimeOptions,
    ledger: Ledger,
) -> tuple[list[Columns], I64]:
    """TCP messages, received and sent, and the base of each connection; connections are numbered within the part."""
    recorded = once(part, ledger)
    streams = connections.streams(recorded, ledger)
    classify_software_stamps(recorded, options, ledger)
    reads = tcp_rx.reads(recorded, streams, ledger)
    sends = tcp_tx.sends(recorded, streams)
    if framed:
        received = framing.cut(framed, recorded, streams, vocabulary, reads, True, ledger)
        sent = framing.cut(framed, recorded, streams, vocabulary, sends, False, ledger)
    else:
        received = framing.unframed(recorded, streams, reads)
        sent = framing.unframed(recorded, streams, sends)
    rx = _received_tcp(recorded, streams, received, options, ledger)
    return [rx, _sent_tcp(recorded, streams, sent, options, ledger)], streams.base


def _received_tcp(
    events: Events, streams: connections.Streams, cut: framing.Cut, options: LifetimeOptions, ledger: Ledger
) -> Columns:
    conn = streams.conn[cut.last]
    result = from_calls(events, streams.row[cut.last], "rx") | _ranges(streams, cut)
    result["begun_ns"] = _begun(events, streams, cut)
    result |= tcp_rx.lifetimes(events, streams, conn, cut.start, cut.end, result["app_ns"], options, ledger)
    reject_negative(result, ledger)
    return result


def _begun(events: Events, streams: connections.Streams, cut: framing.Cut) -> npt.NDArray[np.int64]:
    """When the thread that finished each message had turned to it in an earlier call; NONE if it had not.

    A call that finished another message does not tell when the thread was done with that one.
    """
    first, last = streams.row[cut.first], streams.row[cut.last]
    earlier = (cut.n_calls > 1) & (cut.n_in_first == 0) & (events.tid[first] == events.tid[last])
    at = np.where(events.call[first] >= 0, events.call[first], events.ts[first])
    return np.where(earlier, at, NONE)


def _sent_tcp(
    events: Events, streams: connections.Streams, cut: framing.Cut, options: LifetimeOptions, ledger: Ledger
) -> Columns:
    conn = streams.conn[cut.last]
    result = from_calls(events, streams.row[cut.last], "tx") | _ranges(streams, cut)
    # A message that took several writes began with the first.
    result["call_ns"] = events.call[streams.row[cut.first]]
    result |= tcp_tx.lifetimes(events, streams, conn, cut.start, cut.end, result["app_ns"], options, ledger)
    _check_driver(result, ledger)
    return result


def _ranges(streams: connections.Streams, cut: framing.Cut) -> Columns:
    """What the byte range of each message gives in either direction."""
    byte_start = streams.offset[cut.last] + cut.start - streams.key[cut.last]
    return {
        "conn_id": streams.conn[cut.last],
        "byte_start": byte_start,
        "byte_end": byte_start + cut.end - cut.start,
        "nbytes": cut.nbytes,
        "stream_id": cut.key,
        "request_type": cut.type,
        "n_reads": cut.n_calls,
        "n_in_read": cut.n_in_call,
    }


def _datagrams(
    events: Events, vocabulary: Vocabulary, options: LifetimeOptions, ledger: Ledger
) -> tuple[list[Columns], int]:
    """Received and sent datagrams; both directions of a pair of endpoints share a connection. Also the number of connections."""
    read_row, received = udp_rx.lifetimes(events, options, ledger)
    send_row, sent = udp_tx.lifetimes(events, ledger)
    rx, tx = from_calls(events, read_row, "rx"), from_calls(events, send_row, "tx")
    # An unconnected socket does not know its peer; the packet does.
    for part, packet in ((rx, received.pop("arrival_row")), (tx, sent.pop("driver_row"))):
        known = packet >= 0
        for name in ("local", "remote"):
            part[name][known] = getattr(events, name)[packet[known]]
    rx |= received
    tx |= sent
    reject_negative(rx, ledger)
    _check_driver(tx, ledger)
    rank = vocabulary.endpoint_rank
    joint = [
        (part["netns"].astype(np.int64) * len(rank) + rank[part["local"]]) * len(rank) + rank[part["remote"]]
        for part in (rx, tx)
    ]
    distinct, conn = np.unique(np.concatenate(joint), return_inverse=True)
    rx["conn_id"], tx["conn_id"] = conn[: len(read_row)], conn[len(read_row) :]
    for part in (rx, tx):
        part["byte_start"] = _rank(part["conn_id"])
        part["byte_end"] = part["byte_start"] + 1
    return [rx, tx], len(distinct)


def _rank(group: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """0, 1, 2... within each group, in the order given."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    rank = np.empty(len(group), np.int64)
    rank[order] = np.arange(len(group)) - np.searchsorted(ordered, ordered, side="left")
    return rank


def _check_driver(result: Columns, ledger: Ledger) -> None:
    bad = (result["driver_ns"] != NONE) & (
        result["driver_ns"] < np.maximum(result["call_ns"], result["last_call_ns"])
    )
    ledger.add("driver_before_send_call", int(np.count_nonzero(bad)))
    for name in ("driver_ns", "qdisc_dur_ns", "recv_cpu", "completion_ns", "acked_ns"):
        result[name][bad] = NONE
