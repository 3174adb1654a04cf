# SPDX-License-Identifier: GPL-2.0-only
"""Slow and baseline messages side by side: what the flame graphs and the call trees of a report compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from .calls.stacks import compared, mean_stacks

if TYPE_CHECKING:
    from .capture_tables import CaptureTables

# Messages per role whose calls are read: more hardly change a mean, and with Intel PT one message can have 50,000 calls.
_SAMPLE = 60
_MOST_CALLS = 1_500_000


@dataclass(frozen=True)
class CallPaths:
    """Mean time per call path of ``n_slow`` and of ``n_baseline`` messages; see ``calls.stacks.compared``."""

    stacks: pd.DataFrame
    n_slow: int
    n_baseline: int


def call_paths(capture: CaptureTables) -> CallPaths:
    """Call paths of the slow messages and of the baseline messages (of the other capture, if one was given).

    If there are many messages, evenly spaced ones are read; the result says how many.
    """
    roles = capture.compared
    role = roles["role"].astype(str)
    slow = _lifetimes(capture, roles.loc[role == "slow", "message_id"])
    baseline = _lifetimes(capture.other or capture, roles.loc[role == "baseline", "message_id"])
    return CallPaths(compared(mean_stacks(slow), mean_stacks(baseline)), len(slow), len(baseline))


def _lifetimes(capture: CaptureTables, numbers: pd.Series[int]) -> list[pd.DataFrame]:
    ids: npt.NDArray[np.int64] = np.sort(numbers.to_numpy(np.int64))
    ids = (
        ids[np.unique(np.linspace(0, len(ids) - 1, min(len(ids), _SAMPLE)).astype(np.int64))]
        if len(ids)
        else ids
    )
    spans = capture.diagnosed_messages.rows(ids, ["first_ns", "last_ns"]).astype("int64")
    expected = 2 * capture.calls_per_ns() * float((spans["last_ns"] - spans["first_ns"]).sum())
    # Reading is cheapest in time order. Where the limit may cut, a random order keeps the sample spread over the capture.
    in_order = ids if expected < _MOST_CALLS / 2 else np.random.default_rng(0).permutation(ids)
    found, n_calls = [], 0
    for calls in capture.lifetimes(in_order.tolist(), ("symbol", "kind")):
        found.append(calls)
        n_calls += len(found[-1])
        if n_calls > _MOST_CALLS:
            break
    return found
