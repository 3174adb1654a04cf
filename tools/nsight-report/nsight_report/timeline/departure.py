# SPDX-License-Identifier: GPL-2.0-only
"""What a sent message waited for between the send call and the driver, outside the queue discipline's known time (messages.qdisc_dur_ns).

The context that passed on its last packet shows it.

The send call itself gives packets to the queue discipline, and that gives them to the driver, if nothing holds them back. If
the congestion window or the receiver's window did, an acknowledgement opens it: TCP sends from the receive softirq. The same
happens if Nagle's algorithm held back the last part: of a reply in several writes that fits into a connection's initial
window, or of what a connection sends after so little that all of it fits. A shaping queue discipline releases its packets from the transmit softirq; TCP's own pacing from the timer softirq.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..interval_joins import Int
from ..tables.data_frames import column, to_pandas
from ..tables.intervals import IntervalTable
from .detours import innermost

_CONTEXTS = ("cpu", "start_ns", "end_ns", "kind", "symbol")
#: Subjects, by the softirq; ``reasons`` returns positions in it.
SUBJECTS = (
    "for the window to open",
    "in the queue discipline",
    "for pacing",
    "for an acknowledgement (Nagle)",
)
_WINDOW, QUEUE_DISCIPLINE, _NAGLE = 0, 1, 3
#: Ten segments (RFC 6928) of 1,448 bytes.
INITIAL_WINDOW = 14_480
_BY_SOFTIRQ = {"NET_RX": 0, "NET_TX": 1, "TIMER": 2, "HRTIMER": 2, "TASKLET": 2}


def reasons(messages: pd.DataFrame, contexts: IntervalTable) -> Int:
    """By row of ``messages`` a position in SUBJECTS, -1 if nothing shows it, and for all received messages."""
    cpu, at = (column(messages[name]) for name in _stamps(messages))
    sent = ~(messages["direction"].isin(["rx", "interval"])).to_numpy(bool)
    found = np.full(len(messages), -1)
    rows = np.flatnonzero(sent & (cpu >= 0) & (at >= 0))
    if not len(rows):
        return found
    near = to_pandas(contexts.overlapping(cpu[rows], at[rows], at[rows] + 1, _CONTEXTS))
    place = innermost(near, cpu[rows], at[rows])
    rows, place = rows[place >= 0], place[place >= 0]
    softirq = (near["kind"].astype(str) == "softirq").to_numpy(bool)[place]
    symbol = near["symbol"].astype(str).to_numpy(object)[place]
    found[rows] = [_BY_SOFTIRQ.get(name, -1) if of else -1 for name, of in zip(symbol, softirq, strict=True)]
    if "n_sends" in messages:
        small = (messages["n_sends"] > 1) & (messages["sent_bytes"] <= INITIAL_WINDOW)
        # Of a TLS connection's first replies, too: session tickets went ahead of them, which nobody acknowledged yet.
        tcp = messages["proto"] == 6
        early = tcp & (messages["sent_start"] > 0) & (messages["sent_end"] <= INITIAL_WINDOW)
        found[(found == _WINDOW) & (small | early).to_numpy(bool)] = _NAGLE
    return found


def _stamps(messages: pd.DataFrame) -> tuple[str, str]:
    return ("driver_cpu", "left_ns") if "left_ns" in messages else ("recv_cpu", "driver_ns")
