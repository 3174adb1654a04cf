# SPDX-License-Identifier: GPL-2.0-only
"""How much of the extra latency of slow messages is explained, how much is only located, and how much is neither."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from .attribution.causes import LOW_COVERAGE

N_WORST = 5


class Whole(NamedTuple):
    """The extra latency of all slow messages together, as shares that add up to 1."""

    explained: float
    located: float
    unexplained: float

    def percentages(self) -> tuple[int, int, int]:
        """In whole percent that add up to 100.

        >>> Whole(0.823, 0.175, 0.002).percentages(), Whole(1 / 3, 1 / 3, 1 / 3).percentages()
        ((82, 18, 0), (34, 33, 33))
        """
        whole = [int(100 * share) for share in self]
        by_rest = sorted(range(3), key=lambda i: (whole[i] - 100 * self[i], i))
        for i in by_rest[: 100 - sum(whole)]:
            whole[i] += 1
        return whole[0], whole[1], whole[2]


class Covered(NamedTuple):
    """Coverage of the slow messages that took longer: of their extra latency in total, and of single messages."""

    whole: Whole
    median: float
    least: float
    located_median: float
    worst: pd.DataFrame


def beyond_noise(coverage: pd.DataFrame) -> pd.DataFrame:
    """Slow messages whose extra latency is larger than the recording can tell from no difference."""
    return coverage[(coverage["deviation_ns"] > coverage["noise_ns"]).to_numpy(bool)]


def covered(slower: pd.DataFrame) -> Covered | None:
    """Of rows of ``coverage`` that are ``beyond_noise``; None if there are none: an empty share would count as complete."""
    if not len(slower):
        return None
    total, explained, located = (int(slower[c].sum()) for c in ("deviation_ns", "explained_ns", "located_ns"))
    shares = slower["coverage"].to_numpy(float)
    return Covered(
        Whole(explained / total, located / total, (total - explained - located) / total),
        float(np.median(shares)),
        float(shares.min()),
        float(np.median(slower["located_ns"] / slower["deviation_ns"])),
        worst_covered(slower),
    )


def worst_covered(coverage: pd.DataFrame) -> pd.DataFrame:
    """Rows of ``coverage`` of the messages with the lowest coverage, the worst first."""
    low = coverage[coverage["coverage"] < LOW_COVERAGE]
    return low.sort_values(["coverage", "message_id"]).head(N_WORST)


def only_located(row: Any) -> bool:
    """Whether a row of ``causes`` mostly says where the time went, and not why."""
    return bool(2 * row.located_ns > row.total_deviation_ns)
