# SPDX-License-Identifier: GPL-2.0-only
"""The lifetime of one message as calls: on its receive core, then on its application core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

#: Decoded before and behind a message: as long as an interrupt takes.
MARGIN_NS = 20_000


@dataclass(frozen=True)
class Stretch:
    """A stretch of one core that belongs to a message; ``side`` R before, A after the hand-off. In ns."""

    side: str
    cpu: int
    start_ns: int
    end_ns: int


def stretches(message: pd.Series[Any]) -> list[Stretch]:
    """Which stretch of which core is the message's. ``message``: a row of ``messages``.

    Received: from the first stamp to the hand-off on the core that took it from the NIC, from there
    to the read on the application's. Sent: from the call on the application's core to the driver, on
    the core that handed it over from where that differs. A stamp that is missing leaves out its stretch.
    """
    first, handoff, app = (_int(message[c]) for c in ("first_ns", "handoff_ns", "app_ns"))
    recv_cpu, app_cpu = _int(message["recv_cpu"]), _int(message["app_cpu"])
    if message["direction"] == "tx":
        call, driver = _int(message["call_ns"]), _int(message["driver_ns"])
        parts = [("A", app_cpu, call if call is not None else first, app), ("R", recv_cpu, app, driver)]
    else:
        parts = [("R", recv_cpu, first, handoff), ("A", app_cpu, handoff, app)]
    return [
        Stretch(side, cpu, start, end)
        for side, cpu, start, end in parts
        if cpu is not None and start is not None and end is not None and start < end
    ]


def _int(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def windows(messages: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Begin and end (rows of two, ns) of the lifetimes of ``messages``.

    A little more than that: a call that the lifetime begins in should have its own begin.
    """
    begin, end = (messages[name].to_numpy(np.int64) for name in ("first_ns", "last_ns"))
    return np.column_stack([begin - MARGIN_NS, end + MARGIN_NS])


def calls_of(message: pd.Series[Any], calls: pd.DataFrame) -> pd.DataFrame:
    """Rows of ``calls`` within the message's lifetime, stretch by stretch, each in order.

    Columns besides those of ``calls``: ``side`` (R or A), ``within_start_ns``, ``within_dur_ns`` and
    ``within_self_ns``: the part of the call that lies in the stretch, and of that what no other call
    in it has. The sum of ``within_self_ns`` is the time of the stretches in which the core is known.
    """
    found = [_within(part, calls) for part in stretches(message)]
    if not found:
        found = [_within(Stretch("R", -1, 0, 0), calls)]
    return pd.concat(found, ignore_index=True)


def _within(part: Stretch, calls: pd.DataFrame) -> pd.DataFrame:
    begin = calls["start_ns"].to_numpy(np.int64)
    end = begin + calls["dur_ns"].to_numpy(np.int64)
    on_core = calls["cpu"].to_numpy(np.int64) == part.cpu
    hit = np.flatnonzero(on_core & (begin < part.end_ns) & (end > part.start_ns))
    rows = calls.iloc[hit].copy()
    low, high = np.maximum(begin[hit], part.start_ns), np.minimum(end[hit], part.end_ns)
    dur = high - low
    own = dur.copy()
    # Callers come before what they call: table order.
    place = pd.Index(rows["call_id"].to_numpy(np.int64)).get_indexer(rows["parent_id"].to_numpy(np.int64))
    np.subtract.at(own, place[place >= 0], dur[place >= 0])
    rows.insert(0, "side", part.side)
    return rows.assign(within_start_ns=low, within_dur_ns=dur, within_self_ns=own)
