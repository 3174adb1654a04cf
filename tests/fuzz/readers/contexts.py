# SPDX-License-Identifier: GPL-2.0-only
"""Calls, contexts and thread states of any events that a perf.data or records can hold: 48 bytes each are one."""

from __future__ import annotations

import guard
import native_arrays
import numpy as np

with guard.instrumented():
    from nsight_report import calls
    from nsight_report.capture.perf_data import Decoded

SYSCALLS = {"0": "read", "1": "write", "232": "epoll_wait"}


def one(data: bytes) -> None:
    """Make the tables of the events in ``data``."""
    events = native_arrays.events(data)
    decoded = Decoded(events, native_arrays.STRINGS, "monotonic", {})
    made, contexts, states, _lost = calls.build(decoded, SYSCALLS)
    assert (made["dur_ns"].to_numpy() >= 0).all(), "a call that ends before it begins"
    for table in (contexts, states):
        assert (table["end_ns"].to_numpy() >= table["start_ns"].to_numpy()).all(), (
            "an interval ends before it begins"
        )
    # Damaged events may tell of a thread on two cores at once, but no core has two threads.
    cpu, start, end = (contexts[name].to_numpy() for name in ("cpu", "start_ns", "end_ns"))
    assert ((cpu[1:] != cpu[:-1]) | (start[1:] >= end[:-1])).all(), "intervals of a core overlap"
    assert np.isin(contexts["call_id"].to_numpy(), made["call_id"].to_numpy()).all()


guard.fuzz(one)
