# SPDX-License-Identifier: GPL-2.0-only
"""Hardware, software and peer timestamps: which of them can serve as 'the packet reached the NIC'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..losses import Ledger
from .columns import I64, NONE, Bool, Events
from .options import LifetimeOptions

NIC_SOURCES = ["none", "hw", "peer_xmit"]
NO_NIC, HW, PEER_XMIT = range(3)
NEAR_NS = 10_000_000_000  # a timestamp this far from its event is not in that clock
_TAI_NS = 37_000_000_000  # TAI minus UTC since 2017


@dataclass
class NicStamps:
    """NIC side of messages: time, source (index into NIC_SOURCES), bound on its error."""

    ns: I64
    source: npt.NDArray[np.int8]
    error: I64


def nic_stamps(
    events: Events, arrival_row: I64, peer_row: I64, options: LifetimeOptions, ledger: Ledger
) -> NicStamps:
    """The hardware timestamp of the arriving skb if usable, else the time when the sender gave it to its driver.

    ``arrival_row`` and ``peer_row`` are indices into the events, NONE where there is none.
    """
    found = peer_row >= 0
    ns = np.where(found, events.ts[np.maximum(peer_row, 0)] if len(events) else NONE, NONE)
    source = np.where(found, PEER_XMIT, NO_NIC).astype(np.int8)
    error = np.where(found, 0, NONE)
    stamps = hw_times(events, arrival_row, options, ledger)
    usable = stamps.ns != NONE
    return NicStamps(
        np.where(usable, stamps.ns, ns),
        np.where(usable, HW, source).astype(np.int8),
        np.where(usable, stamps.error, error),
    )


def hw_times(events: Events, rows: I64, options: LifetimeOptions, ledger: Ledger) -> NicStamps:
    """Hardware timestamps of the given events in monotonic time; NONE if there is none."""
    none = NicStamps(np.full(len(rows), NONE), np.zeros(len(rows), np.int8), np.full(len(rows), NONE))
    present = np.flatnonzero((rows >= 0) & (events.hw[np.maximum(rows, 0)] > 0)) if len(events) else rows[:0]
    if not len(present):
        return none
    if options.phc_to_monotonic is None:
        ledger.add("hardware_timestamps_without_nic_clock", len(present))
        return none
    where = rows[present]
    ns, error = options.phc_to_monotonic(events.hw[where], events.ifindex[where].astype(np.int64))
    good = (error >= 0) & (np.abs(ns - events.ts[where]) < NEAR_NS)
    ledger.add("hardware_timestamps_unconvertible", int(np.count_nonzero(~good)))
    none.ns[present[good]] = ns[good]
    none.error[present[good]] = error[good]
    none.source[present[good]] = HW
    return none


def classify_software_stamps(events: Events, options: LifetimeOptions, ledger: Ledger) -> None:
    """Count skb->tstamp values of arriving packets by clock. None of them is used.

    On veth and lo the field still holds the sender's monotonic transmit time; elsewhere it is
    taken in the receive softirq that the arrival event sees anyhow.
    """
    rows = np.flatnonzero(events.of("A") & (events.sw != 0))
    sw, ts = events.sw[rows], events.ts[rows]
    monotonic = np.abs(sw - ts) < NEAR_NS
    realtime = tai = np.zeros(len(rows), dtype=bool)
    if options.realtime_offset_ns is not None:
        wall = ts + options.realtime_offset_ns
        realtime = ~monotonic & (np.abs(sw - wall) < NEAR_NS)
        tai = ~monotonic & ~realtime & (np.abs(sw - wall - _TAI_NS) < NEAR_NS)
    for mask, clock, detail in (
        (monotonic, "monotonic", "the sender's transmit time, no receive timestamp; rejected"),
        (realtime, "realtime", "taken in the receive softirq; the arrival event is used instead"),
        (tai, "TAI", "taken in the receive softirq; the arrival event is used instead"),
        (~monotonic & ~realtime & ~tai, "unknown clock", "matches no clock of this host; rejected"),
    ):
        ledger.add("software_timestamps_kept_out", int(np.count_nonzero(mask)), clock=clock, detail=detail)


def reject_negative(columns: dict[str, npt.NDArray[Any]], ledger: Ledger) -> None:
    """Set timestamps to NONE that would make an interval of a received message negative.

    The read is trusted most because it defines the message; then the hand-off, then the arrivals.
    """
    app, handoff = columns["app_ns"], columns["handoff_ns"]
    _reject(columns, "handoff_ns", app, "hand-off after the read", ledger)
    columns["handoff_cpu"][columns["handoff_ns"] == NONE] = NONE
    handoff = columns["handoff_ns"]
    limit = np.where(handoff != NONE, handoff, app)
    arrived = columns["arrival_ns"] != NONE
    for name, cause in (
        ("arrival_last_ns", "arrival of the last byte after the hand-off"),
        ("arrival_ns", "arrival after the hand-off"),
    ):
        _reject(columns, name, limit, cause, ledger)
    arrival = columns["arrival_ns"]
    columns["recv_cpu"][arrived & (arrival == NONE)] = NONE
    limit = np.where(arrival != NONE, arrival, limit)
    _reject(columns, "nic_ns", limit, "NIC timestamp after the arrival", ledger)
    gone = columns["nic_ns"] == NONE
    columns["nic_source"][gone] = NO_NIC
    columns["nic_error_ns"][gone] = NONE
    columns["recv_cpu"][gone & (arrival == NONE)] = NONE


def _reject(columns: dict[str, npt.NDArray[Any]], name: str, limit: I64, cause: str, ledger: Ledger) -> None:
    bad: Bool = (columns[name] != NONE) & (limit != NONE) & (columns[name] > limit)
    ledger.add("negative_interval", int(np.count_nonzero(bad)), cause=cause)
    columns[name][bad] = NONE
