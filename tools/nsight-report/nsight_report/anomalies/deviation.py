# SPDX-License-Identifier: GPL-2.0-only
"""From time spent to anomalies: each target message against the reference messages."""

from __future__ import annotations

import numpy as np
import pandas as pd

from .exposure import HOL, IDLE, INTERFERENCE, KINDS, THREAD, UNSEEN, WAIT, Exposure, Machine
from .windows import SIDES

# An anomaly that fewer than half of the reference messages meet at all is unexpected.
ANOMALY = {HOL: "hol", INTERFERENCE: "interference", IDLE: "gap", WAIT: "gap"}


def reference_medians(reference: Exposure, n_reference: int) -> pd.Series:
    """Median time of the reference messages in each (side, kind, subject), absence counting as 0."""
    frame = pd.DataFrame(
        {"side": reference.side, "kind": reference.kind, "subject": reference.subject, "ns": reference.ns}
    ).sort_values("ns")
    groups = frame.groupby(["side", "kind", "subject"])["ns"]
    # Messages without the context come first in the order: shift the rank of the median by their number.
    rank = n_reference // 2 - (n_reference - groups.transform("size"))
    at_median = frame[groups.cumcount() == rank]
    return at_median.set_index(["side", "kind", "subject"])["ns"]


def deviations(
    target: Exposure, reference: Exposure, n_reference: int, machine: Machine, granularity_ns: int
) -> pd.DataFrame:
    """Rows of ``schema.ANOMALIES`` (without category; ``row`` in place of message_id).

    Kept are deviations above ``granularity_ns``. Time that nothing was recorded for is no
    anomaly: it stays unexplained.
    """
    medians = reference_medians(reference, n_reference)
    index = pd.MultiIndex.from_arrays([target.side, target.kind, target.subject])
    expected = medians.reindex(index).fillna(0).to_numpy(np.int64)
    deviation = target.ns - expected
    keep = (deviation > granularity_ns) & (target.kind != UNSEEN)
    kind = target.kind[keep]
    plain = np.where(expected[keep] == 0, "context", "slower")
    foreign = (kind == THREAD) & (target.other[keep] >= 0)
    anomaly = np.where(foreign, "interference", plain)
    for code, word in ANOMALY.items():
        anomaly = np.where(kind == code, word, anomaly)
    names = np.array([*machine.names.list, ""], dtype=object)
    return pd.DataFrame(
        {
            "row": target.row[keep],
            "side": np.array(SIDES, dtype=object)[target.side[keep]],
            "anomaly": anomaly,
            "subject": names[target.subject[keep]],
            "kind": np.array(KINDS, dtype=object)[kind],
            "observed_ns": target.ns[keep],
            "reference_ns": expected[keep],
            "deviation_ns": deviation[keep],
            "start_ns": target.start[keep],
            "end_ns": target.end[keep],
            "cpu": target.cpu[keep],
            "other_message_id": target.other[keep],
            "path": "",
            "dso": "",
            "n_calls": 0,
            "reference_n_calls": 0,
        }
    )
