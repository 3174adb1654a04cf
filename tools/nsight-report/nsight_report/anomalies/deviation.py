# SPDX-License-Identifier: GPL-2.0-only
"""From time spent to anomalies: each slow message against the baseline messages."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..interval_joins import Int
from ..timeline import SIDES, A, R, T
from ..timeline.labelled import (
    FREQUENCY,
    HOL,
    IDLE,
    INTERFERENCE,
    KINDS,
    OWN,
    SIBLING,
    SOFTIRQ,
    THREAD,
    UNTRACED,
    WAIT,
    Exposure,
)
from ..timeline.machine import Machine

# An anomaly that fewer than half of the baseline messages have at all is unexpected.
ANOMALY = {HOL: "hol", INTERFERENCE: "interference", IDLE: "gap", WAIT: "gap"}
#: Kinds of which a message may have one or another: waits, and turns of others.
EITHER = (IDLE, WAIT, HOL, INTERFERENCE, SIBLING, THREAD)
#: Kinds that belong to a message itself: its work, its processing, its waits, and what a low frequency added. A cause can take their place.
ITS_OWN = (OWN, SOFTIRQ, IDLE, WAIT, FREQUENCY)
LABEL = ["side", "kind", "subject"]


def baseline_medians(baseline: Exposure, n_baseline: int) -> pd.Series:
    """Median time of the baseline messages in each (side, kind, subject); absence counts as 0."""
    frame = pd.DataFrame(dict(zip(LABEL, (baseline.side, baseline.kind, baseline.subject))))
    frame = frame.assign(ns=baseline.ns).sort_values("ns")
    groups = frame.groupby(LABEL)["ns"]
    # Messages without the context sort first: shift the rank of the median by their number.
    rank = n_baseline // 2 - (n_baseline - groups.transform("size"))
    at_median = frame[groups.cumcount() == rank]
    return at_median.set_index(LABEL)["ns"]


def latencies(of: Exposure) -> pd.Series:
    """Lifetimes by row: their intervals have no gaps and do not overlap."""
    return pd.Series(of.ns).groupby(of.row).sum()


def median_latency(of: Exposure) -> int:
    """Median of the non-zero lifetimes; 0 if all are 0, as for sends that returned after the driver had the data."""
    return int(np.median(latencies(of))) if len(of.ns) else 0


def adding_up(medians: pd.Series, baseline: Exposure, n_baseline: int) -> pd.Series:
    """``medians`` (``baseline_medians``) reduced so that their sum is at most the median of the baseline's latencies.

    If messages wait for one thing or for another, the medians of both add up to more than any message
    had. The excess is taken from waits and from what others did, in proportion to their
    spread (mean distance from the median).
    """
    excess = int(medians.sum()) - median_latency(baseline)
    if excess <= 0:
        return medians
    index = pd.MultiIndex.from_arrays([baseline.side, baseline.kind, baseline.subject], names=LABEL)
    usual = medians.reindex(index).fillna(0).to_numpy(np.int64)
    off = pd.Series(np.abs(baseline.ns - usual), index=index).groupby(level=LABEL)
    spread = (off.sum() + (n_baseline - off.size()) * medians).reindex(medians.index).fillna(0)
    spread[~spread.index.get_level_values("kind").isin(EITHER)] = 0
    share = spread / max(float(spread.sum()), 1.0)
    return medians - np.minimum(medians, np.floor(excess * share)).astype(np.int64)


def saved(slow: Exposure, medians: pd.Series) -> pd.Series:
    """How much less time than usual each slow message spent in kinds of its own, by (row, side)."""
    usually = medians[medians.index.get_level_values("kind").isin(ITS_OWN)]
    index = pd.MultiIndex.from_arrays([slow.side, slow.kind, slow.subject])
    usual = usually.reindex(index).fillna(0).to_numpy(np.int64)
    every = pd.MultiIndex.from_product([np.unique(slow.row), range(len(SIDES))], names=["row", "side"])
    met = pd.Series(np.minimum(slow.ns, usual)).groupby([slow.row, slow.side]).sum()
    whole = usually.groupby(level="side").sum().reindex(range(len(SIDES))).fillna(0).astype(np.int64)
    whole = whole.reindex(every.get_level_values("side")).set_axis(every)
    return whole - met.reindex(every).fillna(0).astype(np.int64)


def without_saved(frame: pd.DataFrame, left: pd.Series, deviation: pd.Series) -> pd.DataFrame:
    """Anomalies minus what their messages saved in kinds of their own (``saved``), as far as they exceed the ``deviation`` by row.

    A cause does not delay a message during time in which it would have waited anyway. Savings in what others did make no
    cause smaller. The smallest anomalies of a side are reduced first.
    """
    frame = frame.sort_values(["row", "side", "deviation_ns"], kind="stable", ignore_index=True)
    ns, row = frame["deviation_ns"], frame["row"]
    excess = (ns.groupby(row).transform("sum") - row.map(deviation).clip(lower=0)).clip(lower=0)
    side = frame["side"].astype(str).map(SIDES.index)
    give = pd.Series(left.reindex(pd.MultiIndex.from_arrays([row, side])).to_numpy(np.int64), frame.index)
    # The excess is first taken from side A, where most of it is saved, and the rest from the other sides.
    most = ns.groupby([row, side]).transform("sum").clip(upper=give)
    for of in (A, T, R):
        here = side == of
        given = most.where(here, 0).groupby(row).transform("max").clip(upper=excess)
        give, excess = give.where(~here, given), excess - given
    before = ns.groupby([row, side]).cumsum() - ns
    frame["deviation_ns"] = ns - np.clip(give - before, 0, ns)
    return frame[frame["deviation_ns"] > 0]


def deviations(slow: Exposure, medians: pd.Series, machine: Machine, noise_ns: Int) -> pd.DataFrame:
    """Rows of table ``anomalies`` (without category; ``row`` in place of message_id).

    ``medians``: of the baseline messages (``adding_up``). Only deviations above the ``noise_ns`` of their row are kept. Time
    without a record is no anomaly: it stays unexplained.
    """
    index = pd.MultiIndex.from_arrays([slow.side, slow.kind, slow.subject])
    expected = medians.reindex(index).fillna(0).to_numpy(np.int64)
    deviation = slow.ns - expected
    keep = (deviation > noise_ns[slow.row]) & (slow.kind != UNTRACED)
    kind = slow.kind[keep]
    plain = np.where(expected[keep] == 0, "context", "slower")
    foreign = (kind == THREAD) & (slow.other[keep] >= 0)
    anomaly = np.where(foreign, "interference", plain)
    for code, word in ANOMALY.items():
        anomaly = np.where(kind == code, word, anomaly)
    names = np.array([*machine.names.list, ""], dtype=object)
    return pd.DataFrame(
        {
            "row": slow.row[keep],
            "side": np.array(SIDES, dtype=object)[slow.side[keep]],
            "anomaly": anomaly,
            "subject": names[slow.subject[keep]],
            "kind": np.array(KINDS, dtype=object)[kind],
            "observed_ns": slow.ns[keep],
            "baseline_ns": expected[keep],
            "deviation_ns": deviation[keep],
            "start_ns": slow.start[keep],
            "end_ns": slow.end[keep],
            "cpu": slow.cpu[keep],
            "other_message_id": slow.other[keep],
            "path": _frequencies(slow, keep, machine),
            "dso": "",
            "n_calls": 0,
            "baseline_n_calls": 0,
        }
    )


def _frequencies(slow: Exposure, keep: npt.NDArray[np.bool_], machine: Machine) -> npt.NDArray[np.object_]:
    """For time lost to a low frequency, that frequency and the usual one; else ''."""
    told = np.full(int(keep.sum()), "", object)
    at = np.flatnonzero(slow.kind[keep] == FREQUENCY)
    khz = machine.frequencies.at(slow.cpu[keep][at], slow.end[keep][at] - 1)
    usual = machine.frequencies.usual_khz / 1e6
    told[at] = [f"{of / 1e6:.2f} GHz, usually {usual:.2f} GHz" for of in khz.tolist()]
    return told
