# SPDX-License-Identifier: GPL-2.0-only
"""Sent datagrams: send call and hand-over to the driver.

The sending thread usually hands a datagram to the driver inside the send call: this is the X
before the S of the same thread. If a queueing discipline holds it back, another thread or
softirq hands it over later; such datagrams are paired in the order of the socket's queue, for each size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..losses import Ledger
from . import fifo
from .columns import I64, NONE, UDP, Events
from .tcp_rx import pick


def lifetimes(events: Events, ledger: Ledger) -> tuple[I64, dict[str, npt.NDArray[Any]]]:
    """Rows of the sends of datagrams, and the timestamps of each."""
    udp = events.proto == UDP
    send_row = np.flatnonzero(udp & events.of("S") & (events.length >= 0))
    # Ports from which nobody here sends belong to the peers.
    driver = np.flatnonzero(udp & events.of("X"))
    driver_row = _inside_call(events, send_row, driver)
    driver_row = _later(events, send_row, driver, driver_row)
    missing = driver_row == NONE
    ledger.add("datagrams_without_driver_event", int(np.count_nonzero(missing)))
    return send_row, {
        "driver_row": driver_row,
        "driver_ns": pick(events.ts, driver_row),
        "qdisc_dur_ns": np.full(len(send_row), NONE),
        "recv_cpu": pick(events.cpu, driver_row),
        "completion_ns": np.full(len(send_row), NONE),
        "acked_ns": np.full(len(send_row), NONE),
        "n_arrivals": (~missing).astype(np.int64),
        "retransmitted": np.zeros(len(send_row), dtype=bool),
    }


def _port(events: Events, rows: I64) -> I64:
    return np.asarray(events.netns[rows].astype(np.int64) << 16 | events.lport[rows])


def _inside_call(events: Events, sends: I64, driver: I64) -> I64:
    """Row of the X that directly precedes each S of the same thread and port, within the call."""
    result = np.full(len(sends), NONE)
    rows = np.concatenate((driver, sends))
    if not len(driver) or not len(sends):
        return result
    is_send = np.repeat([False, True], [len(driver), len(sends)])
    thread, _ = pd.factorize(_port(events, rows) << 32 | events.tid[rows])
    order = np.lexsort((is_send, events.ts[rows], thread))
    rows, is_send, thread = rows[order], is_send[order], thread[order]
    before = np.maximum(np.arange(len(rows)) - 1, 0)
    # A packet that crosses several devices of the namespace has an X at each; the first counts.
    fits = (
        is_send
        & ~is_send[before]
        & (thread == thread[before])
        & (events.length[rows] == events.length[rows[before]])
        & (events.ts[rows[before]] >= events.call[rows])
    )
    found = np.full(len(events), NONE)
    found[rows[fits]] = rows[before[fits]]
    return found[sends]


def _later(events: Events, sends: I64, driver: I64, known: I64) -> I64:
    """Fill in the X of the sends that have none, in order, for each port and size."""
    open_sends = np.flatnonzero(known == NONE)
    free = np.setdiff1d(driver, known)
    if not len(open_sends) or not len(free):
        return known
    rows = np.concatenate((sends[open_sends], free))
    is_driver = np.repeat([False, True], [len(open_sends), len(free)])
    # A softirq may transmit before the send call has returned.
    at = np.where(~is_driver & (events.call[rows] != NONE), events.call[rows], events.ts[rows])
    queue, _ = pd.factorize(_port(events, rows) << 17 | np.minimum(events.length[rows], (1 << 17) - 1))
    order = np.lexsort((is_driver, at, queue))
    taken, _ = fifo.pair(queue[order].astype(np.int64), is_driver[order])
    done = np.flatnonzero(taken >= 0)
    result = known.copy()
    result[open_sends[order[taken[done]]]] = rows[order[done]]
    return result
