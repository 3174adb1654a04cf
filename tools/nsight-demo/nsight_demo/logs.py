# SPDX-License-Identifier: GPL-2.0-only
"""Logs of the load client and of the disturbances, as arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from .processes import BedError


def _check(path: Path, first: str) -> None:
    with open(path, "rb") as file:
        head = file.readline()
        file.seek(-min(path.stat().st_size, 5), 2)
        tail = file.read()
    if not head.startswith(first.encode()) or tail != b"#end\n":
        raise BedError(f"{path}: not a complete {first[1:]} log; did the program end by itself?")


def read_load(path: Path) -> pd.DataFrame:
    """One row per request, in sending order; times int64 CLOCK_MONOTONIC ns, recv_ns 0: no answer.

    ``byte_start`` counts from the connection's first byte (UDP: from its first datagram).
    """
    _check(path, "#nsight-load 1 ")
    frame = pd.read_csv(path, sep="\t", comment="#")
    return frame.astype({"kind": "category", "counted": "bool"})


def read_intervals(path: Path) -> np.ndarray:
    """Rows of start and end (CLOCK_MONOTONIC ns) from a hog's or flood's log, int64."""
    _check(path, "#nsight-")
    frame = pd.read_csv(path, sep="\t", comment="#", dtype=np.int64)
    return frame[["start_ns", "end_ns"]].to_numpy()


def overlap_ns(start: np.ndarray, end: np.ndarray, intervals: np.ndarray) -> np.ndarray:
    """For each [start, end) how many ns lie inside the (sorted, disjoint) intervals; ValueError if they are not.

    >>> overlap_ns(np.array([0, 15]), np.array([12, 40]), np.array([[10, 20], [30, 35]])).tolist()
    [2, 10]
    """
    if not len(intervals):
        return np.zeros(len(start), np.int64)
    begins, ends = intervals[:, 0], intervals[:, 1]
    if (begins[1:] < ends[:-1]).any():
        raise ValueError("intervals overlap, or are not in the order of time")
    done = np.concatenate([[0], np.cumsum(ends - begins)])

    def until(t: np.ndarray) -> np.ndarray:
        # Time inside intervals before t: all whole intervals, minus the part of the last one after t.
        i = np.searchsorted(begins, t, side="right")
        late = np.where(i > 0, ends[np.maximum(i - 1, 0)] - t, 0)
        return done[i] - np.maximum(late, 0)

    return np.maximum(until(np.asarray(end)) - until(np.asarray(start)), 0)
