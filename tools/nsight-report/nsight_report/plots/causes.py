# SPDX-License-Identifier: GPL-2.0-only
"""Box plot of the causes (Fig. 13 of the paper): how much each adds, and to how many messages."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..frames import cause_names
from .style import Look, latency_axis

_MOST = 12


def rows(anomalies: pd.DataFrame) -> pd.DataFrame:
    """One row per target message and cause: message_id, cause, deviation_ns; causes by median, largest last."""
    frame = pd.DataFrame(
        {
            "message_id": anomalies["message_id"],
            "cause": cause_names(anomalies),
            "deviation_ns": anomalies["deviation_ns"],
        }
    )
    frame = frame.groupby(["message_id", "cause"])[["deviation_ns"]].sum().reset_index()
    frame = frame[frame["deviation_ns"] > 0]
    by_total = frame.groupby("cause")["deviation_ns"].sum().sort_values(ascending=False, kind="stable")
    frame = frame[frame["cause"].isin(by_total.index[:_MOST])]
    median = frame.groupby("cause")["deviation_ns"].median().sort_values(kind="stable")
    rank = frame["cause"].map({cause: i for i, cause in enumerate(median.index)})
    return (
        frame.assign(rank=rank)
        .sort_values(["rank", "message_id"])
        .drop(columns="rank")
        .reset_index(drop=True)
    )


def plot(frame: pd.DataFrame, looks: Mapping[str, Look], *, ax: Axes) -> Axes:
    """Draw ``rows``: boxes are quartiles, whiskers 5th to 95th percentile; the number is of messages."""
    causes = list(dict.fromkeys(frame["cause"]))
    values = [frame.loc[frame["cause"] == c, "deviation_ns"].to_numpy(dtype=float) for c in causes]
    if causes:
        boxes = ax.boxplot(
            values, orientation="horizontal", patch_artist=True, whis=(5, 95), widths=0.6,
            medianprops={"color": "black"}, flierprops={"marker": ".", "markersize": 3, "alpha": 0.5},
        )  # fmt: skip
        for patch, cause in zip(boxes["boxes"], causes):
            patch.set_facecolor(looks[cause].colour)
            patch.set_alpha(0.75)
        low, high = min(v.min() for v in values), max(v.max() for v in values)
        latency_axis(ax, "x", float(low), float(high))
        ax.set_yticks(
            np.arange(1, len(causes) + 1),
            [f"{c}\n{len(v):,} message{'s' if len(v) != 1 else ''}" for c, v in zip(causes, values)],
        )
    ax.set_xlabel("latency added to a target message")
    ax.set_title("Causes, largest median on top", loc="left", fontsize=11)
    ax.grid(axis="y", visible=False)
    return ax
