# SPDX-License-Identifier: GPL-2.0-only
"""events.tsv: lines of events and of messages become a table in order of time, or are counted."""

from __future__ import annotations

import guard
import pyarrow.parquet as pq

with guard.instrumented():
    from nsight_report.capture import message_events

SCRATCH = guard.directory()
PATH = SCRATCH / "events.tsv"


def one(data: bytes) -> None:
    """Read ``data`` as a file of message events; the clock map knows the first half of all times."""
    PATH.write_bytes(data)
    written, lost = message_events.load(PATH, SCRATCH, lambda ns: (ns - 5, ns < 1 << 61))
    made = pq.read_table(written.path)
    ts = made["ts_ns"].to_numpy()
    assert (ts[1:] >= ts[:-1]).all(), "not in order"
    length = made["len"].to_numpy()
    assert ((length > -(1 << 31)) & (length < 1 << 31)).all(), "a length that no call returns"
    assert all(row["count"] > 0 for row in lost.to_pylist())


guard.fuzz(one)
