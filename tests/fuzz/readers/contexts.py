# SPDX-License-Identifier: GPL-2.0-only
"""Calls, contexts, thread states and waits of any events that a perf.data or records can hold: 48 bytes each are one."""

from __future__ import annotations

import guard
import native_arrays
import numpy as np
import pandas as pd

with guard.instrumented():
    from nsight_report import calls
    from nsight_report.calls import waits
    from nsight_report.capture.perf_data import Decoded
    from nsight_report.waits import Activity, explain

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
    # Damaged events may place a thread on two cores at once, but no core has two threads.
    cpu, start, end = (contexts[name].to_numpy() for name in ("cpu", "start_ns", "end_ns"))
    assert ((cpu[1:] != cpu[:-1]) | (start[1:] >= end[:-1])).all(), "intervals of a core overlap"
    assert np.isin(contexts["call_id"].to_numpy(), made["call_id"].to_numpy()).all()

    slept = waits.build(events, made, contexts, states, SYSCALLS)
    assert (slept["end_ns"].to_numpy() >= slept["start_ns"].to_numpy()).all(), "a wait ends before it begins"
    threads = states["tid"].to_numpy()[:8]
    span = {"start_ns": states["start_ns"].to_numpy()[:8], "end_ns": states["end_ns"].to_numpy()[:8] + 1000}
    asked = pd.DataFrame({"interval_id": np.arange(len(threads)), "tid": threads, **span})
    pieces, _lost = explain(asked, Activity(states, contexts, slept))
    leaf = pieces["is_leaf"].to_numpy()
    length = (pieces["end_ns"].to_numpy() - pieces["start_ns"].to_numpy())[leaf].sum()
    assert length == (span["end_ns"] - span["start_ns"]).sum(), "not each ns is told once"


guard.fuzz(one)
