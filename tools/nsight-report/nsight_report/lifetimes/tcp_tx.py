# SPDX-License-Identifier: GPL-2.0-only
"""Sent TCP messages: send call, time in the queue discipline and at the driver, completion of a byte range."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..interval_joins import overlaps
from ..losses import Ledger
from .columns import I64, NONE, Events
from .connections import Streams
from .coverage import Coverage
from .options import LifetimeOptions
from .stamps import NEAR_NS, hw_times
from .tcp_rx import packets

TSTAMP_SND, TSTAMP_ACK = 0, 2  # SCM_TSTAMP_SND, include/uapi/linux/errqueue.h; 1 is the scheduler


def sends(events: Events, streams: Streams) -> I64:
    """Positions (in ``streams``) of the sends that took data, one message each."""
    position = streams.of("S")
    return position[events.length[streams.row[position]] > 0]


def lifetimes(
    events: Events,
    streams: Streams,
    conn: I64,
    start: I64,
    end: I64,
    returned: I64,
    options: LifetimeOptions,
    ledger: Ledger,
) -> dict[str, npt.NDArray[Any]]:
    """Timestamps of sent byte ranges ``[start, end)`` (keys of ``streams``), whose send calls ``returned`` then."""
    sent = packets(events, streams, "X")
    last = sent.coverage.first(end - 1)
    driver_row = np.where(last >= 0, sent.row[np.maximum(last, 0)], NONE) if len(sent.row) else last
    driver_ns = np.where(driver_row >= 0, events.ts[driver_row], NONE) if len(events) else driver_row
    reached = np.full(streams.n_connections, NONE)
    np.maximum.at(reached, sent.conn, sent.end)
    missing = driver_row == NONE
    at_end = missing & (end > reached[conn])
    ledger.add("sent_but_not_driven", int(np.count_nonzero(at_end)))
    ledger.add("sent_without_driver_event", int(np.count_nonzero(missing & ~at_end)))
    return {
        "driver_ns": driver_ns,
        "qdisc_dur_ns": _in_queue_discipline(events, sent.row, sent.conn, conn, driver_row, returned),
        "recv_cpu": np.where(driver_row >= 0, events.cpu[driver_row], NONE) if len(events) else driver_row,
        "completion_ns": _completions(events, streams, end, driver_ns, options, ledger),
        "acked_ns": _acknowledged(events, streams, end),
        "n_arrivals": sent.coverage.n_overlapping(start, end),
        "retransmitted": sent.coverage.repeated(start, end),
    }


def _in_queue_discipline(events: Events, row: I64, of: I64, conn: I64, driver_row: I64, returned: I64) -> I64:
    """How long, from ``returned`` until the driver had it, the queue discipline had data of each one's connection.

    ``row`` and ``of``: the event and the connection of every packet given to the driver. TCP writes into skb->tstamp when it
    passes a packet on (net/ipv4/tcp_output.c: __tcp_transmit_skb). Earlier data counts, because later data waits for
    it: in the queue behind it, or in the socket, which keeps only a few packets below it (TCP small queues).
    """
    result = np.full(len(conn), NONE)
    passed, left = events.sw[row], events.ts[row]
    known = (passed > 0) & (passed <= left) & (left - passed < NEAR_NS)
    if not known.any():
        return result
    told = np.zeros(len(events), bool)
    told[row[known]] = True
    at = np.flatnonzero((driver_row >= 0) & told[driver_row])
    result[at] = 0
    # Only what comes after the call is asked for: most messages reach the driver within it.
    at = at[events.ts[driver_row[at]] > returned[at]]
    of, passed, left = of[known], passed[known], left[known]
    near = np.isin(of, conn[at])
    of, passed, left = of[near], passed[near], left[near]
    order = np.lexsort((left, passed, of))
    of, passed, left = of[order], passed[order], left[order]
    # Packets overlap: each counts from when the connection's earlier ones had left.
    until = pd.Series(left).groupby(of).cummax().to_numpy()
    first = np.append(True, of[1:] != of[:-1])[: len(of)]
    begin = np.where(first, passed, np.maximum(passed, np.append(0, until[:-1])[: len(of)]))
    alone = until > begin
    query, _, low, high = overlaps(
        conn[at], returned[at], events.ts[driver_row[at]], of[alone], begin[alone], until[alone]
    )
    np.add.at(result, at[query], high - low)
    return result


def _completions(
    events: Events, streams: Streams, end: I64, driver_ns: I64, options: LifetimeOptions, ledger: Ledger
) -> I64:
    """Completion timestamp of the packet with the last byte; the NIC's own if there is one."""
    stamp_row = _stamped(events, streams, end, TSTAMP_SND)
    if not (stamp_row >= 0).any():
        return stamp_row
    hardware = hw_times(events, stamp_row, options, ledger).ns
    software = np.where((stamp_row >= 0) & (events.hw[stamp_row] == 0), events.ts[stamp_row], NONE)
    stamp = np.where(hardware != NONE, hardware, software)
    bad = (stamp != NONE) & (driver_ns != NONE) & (stamp < driver_ns)
    ledger.add("completion_before_driver", int(np.count_nonzero(bad)))
    return np.where(bad, NONE, stamp)


def _acknowledged(events: Events, streams: Streams, end: I64) -> I64:
    """When the peer's acknowledgement of the last byte arrived."""
    row = _stamped(events, streams, end, TSTAMP_ACK)
    return np.where(row >= 0, events.ts[row], NONE) if len(events) else row


def _stamped(events: Events, streams: Streams, end: I64, kind: int) -> I64:
    """Row of the first timestamp of this kind for the last byte of each range."""
    position = streams.of("T")
    row = streams.row[position]
    use = (events.flags[row] == kind) & (events.length[row] > 0)
    position, row = position[use], row[use]
    if not len(row):
        return np.full(len(end), NONE)
    first = Coverage(streams.key[position], streams.key[position] + events.length[row]).first(end - 1)
    return np.where(first >= 0, row[np.maximum(first, 0)], NONE)
