# SPDX-License-Identifier: GPL-2.0-only
"""Options for building lifetimes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
PhcToMonotonic = Callable[[I64, I64], tuple[I64, I64]]

#: Intervals, their names so far, and the names of their threads.
Intervals = tuple[dict[str, npt.NDArray[np.int64]], list[str], list[str]]

FRAMINGS = ("memcached", "redis", "http", "http2", "postgres")


@dataclass(frozen=True)
class LifetimeOptions:
    """LifetimeOptions of ``lifetimes.build``.

    ``phc_to_monotonic(timestamps, ifindexes)`` converts hardware timestamps to ``(monotonic ns, error ns)``;
    an error below 0 says that this timestamp cannot be converted. Without it hardware timestamps are counted
    and not used. ``realtime_offset_ns`` is realtime minus monotonic at the time of the capture; it only
    serves to name the clock of software timestamps. ``framing`` (one of ``FRAMINGS``) cuts messages at
    the protocol's own boundaries, found in the packets of ``payload`` (a pcap file). ``intervals``: what threads did,
    in addition to the messages, some at a time (``assemble.Messages.add_intervals``).
    """

    phc_to_monotonic: PhcToMonotonic | None = None
    realtime_offset_ns: int | None = None
    framing: str | None = None
    payload: Path | None = None
    intervals: Iterable[Intervals] = ()
