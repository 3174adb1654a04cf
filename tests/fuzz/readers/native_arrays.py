# SPDX-License-Identifier: GPL-2.0-only
"""Bytes as the arrays that nsight-perfdata writes: values that it never writes, whatever the perf.data, are corrected.

native/events.h and tracepoint_events.h describe their contents, records.c and decoded_events.c what is refused.
"""

from __future__ import annotations

import guard
import numpy as np
import numpy.typing as npt

with guard.instrumented():
    from nsight_report.capture.perf_data import CODE, EVENT, KINDS, NO_CPU, WIDE, WIDE_CODE, WIDE_KINDS

STRINGS = ["", "server", "client", "local_timer", "eth0", "hog", "swapper/0", "\x1b[31m", "tid 7", "x" * 200]
_LATEST = np.uint64((1 << 63) - 1) // np.uint64(2)
#: Kinds whose c is a string.
_NAMED = [CODE[kind] for kind in KINDS if kind.startswith(("sched_w", "sched_process", "irq_", "vector_"))]
_NAMED += [CODE["napi_poll"], CODE["comm"]]
#: Records that belong to no core, beside those of tracepoints.
_OTHERS = [
    CODE[kind]
    for kind in ("comm", "fork", "exit", "lost", "throttle", "unthrottle", "switch_in", "switch_out")
]


def events(data: bytes) -> npt.NDArray[np.void]:
    """An array of EVENT in order of time."""
    rows = _rows(data, EVENT)
    rows["kind"] %= len(KINDS)
    tracepoint = ~np.isin(rows["kind"], _OTHERS)
    rows = rows[(rows["ts"] <= _LATEST) & ~(tracepoint & (rows["cpu"] == NO_CPU))]
    low, high = (rows["c"] & 0xFFFFFFFF) % len(STRINGS), (rows["c"] >> 32 & 0xFFFFFFFF) % len(STRINGS)
    switch = rows["kind"] == CODE["sched_switch"]
    rows["c"] = np.where(switch, low | high << 32, np.where(np.isin(rows["kind"], _NAMED), low, rows["c"]))
    softirq = rows["kind"] == CODE["softirq_exit"]
    rows["c"] = np.where(softirq, low, rows["c"])
    return rows[np.argsort(rows["ts"], kind="stable")]


def wide(data: bytes) -> npt.NDArray[np.void]:
    """An array of WIDE in order of time."""
    rows = _rows(data, WIDE)
    rows["kind"] %= len(WIDE_KINDS)
    known = (rows["cpu"] != NO_CPU) | (rows["kind"] == WIDE_CODE["clock_map"])
    rows = rows[(rows["ts"] <= _LATEST) & (rows["ts"] > 0) & known]
    rows["order"] = np.arange(len(rows))
    return rows[np.argsort(rows["ts"], kind="stable")]


def _rows(data: bytes, kind: np.dtype[np.void]) -> npt.NDArray[np.void]:
    return np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind).copy()
