# SPDX-License-Identifier: GPL-2.0-only
"""Box plots of the causes (Figs. 4, 13, 15 and 18 of the paper): how much each adds, and to how many messages.

``rows`` are all causes over all slow messages, sorted by what a cause adds or by how many messages it hits.
``rows_of_cause`` and ``rows_of_message`` show details: what exactly caused the delay within one cause, or in one message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes

from ..names import printable
from ..tables.data_frames import cause_names
from ..units import counted
from .style import BLACK, Look, latency_axis

_MOST = 20  # boxes; with more causes, the ones with the smallest total are left out
_BOX = 5  # number of values from which quartiles are meaningful; fewer are drawn one by one
_WHISKERS = (5, 95)  # percentiles

By = Literal["deviation", "messages"]


def title_by(by: By, thing: str = "message") -> str:
    """The title of a figure of ``rows``; ``thing``: what messages are called.

    >>> title_by("messages", "request")
    'Causes by how many requests they hit: most on top'
    """
    if by == "deviation":
        return "Causes by what they add: largest median on top"
    return f"Causes by how many {thing}s they hit: most on top"


def rows(anomalies: pd.DataFrame, by: By = "deviation") -> pd.DataFrame:
    """One row per slow message and cause: message_id, cause, deviation_ns; the topmost cause comes last."""
    frame = _sums(anomalies.assign(cause=cause_names(anomalies)))
    return _ordered(frame, by)


def rows_of_cause(anomalies: pd.DataFrame, cause: str) -> pd.DataFrame:
    """One row per slow message and what delayed it within ``cause``: message_id, cause (the detail), deviation_ns."""
    own = anomalies[(cause_names(anomalies) == cause).to_numpy(bool)]
    return _ordered(_sums(own.assign(cause=details(own))), "deviation")


def rows_of_message(anomalies: pd.DataFrame, message_id: int) -> pd.DataFrame:
    """What delayed one message, with the same in all slow messages: like ``rows_of_cause``, plus column ``this``."""
    every = anomalies.assign(cause=cause_names(anomalies).astype(str) + ": " + details(anomalies))
    own = every.loc[(every["message_id"] == message_id).to_numpy(bool), "cause"].unique()
    frame = _sums(every[every["cause"].isin(own)])
    order = frame[frame["message_id"] == message_id].sort_values("deviation_ns")["cause"].tolist()[-_MOST:]
    frame = frame[frame["cause"].isin(order)]
    rank = frame["cause"].map({cause: i for i, cause in enumerate(order)})
    frame = frame.assign(rank=rank, this=frame["message_id"] == message_id)
    return frame.sort_values(["rank", "message_id"]).drop(columns="rank").reset_index(drop=True)


def details(anomalies: pd.DataFrame) -> pd.Series[str]:
    """What an anomaly is about, in words: its subject, and how it deviates."""
    how = anomalies["anomaly"].astype(str).map(_HOW).fillna(anomalies["anomaly"].astype(str))
    return anomalies["subject"].astype(str) + " (" + how + ")"


_HOW = {
    "context": "not usual here",
    "unexpected": "not usual here",
    "slower": "slower",
    "frequent": "more often",
    "gap": "idle or stalled",
    "hol": "other message first",
    "interference": "other program's message",
}


def _sums(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.assign(cause=frame["cause"].astype(str))
    sums = frame.groupby(["message_id", "cause"], observed=True)[["deviation_ns"]].sum().reset_index()
    return sums[sums["deviation_ns"] > 0]


def _ordered(frame: pd.DataFrame, by: By) -> pd.DataFrame:
    by_total = frame.groupby("cause")["deviation_ns"].sum().sort_values(ascending=False, kind="stable")
    frame = frame[frame["cause"].isin(by_total.index[:_MOST])]
    groups = frame.groupby("cause")["deviation_ns"]
    values = groups.median() if by == "deviation" else groups.count()
    rank = frame["cause"].map({cause: i for i, cause in enumerate(values.sort_values(kind="stable").index)})
    return (
        frame.assign(rank=rank)
        .sort_values(["rank", "message_id"])
        .drop(columns="rank")
        .reset_index(drop=True)
    )


def plot(
    frame: pd.DataFrame, looks: Mapping[str, Look], *, ax: Axes, title: str = "", thing: str = "message"
) -> Axes:
    """Draw ``rows``: boxes are quartiles, whiskers 5th to 95th percentile, the cause's marker its median.

    Causes with fewer than five messages are drawn point by point. If ``looks`` lacks a name, the look whose name is a prefix of
    it is used (details of a cause have their cause's look). Black diamonds mark the message in column ``this``.
    ``title``: by default that of ``title_by``; ``thing``: what messages are called.
    """
    causes = list(dict.fromkeys(frame["cause"]))
    values = [frame.loc[frame["cause"] == c, "deviation_ns"].to_numpy(dtype=float) for c in causes]
    boxed = [place for place, found in enumerate(values, 1) if len(found) >= _BOX]
    if boxed:
        boxes = ax.boxplot(
            [values[place - 1] for place in boxed], positions=boxed, orientation="horizontal", patch_artist=True,
            whis=_WHISKERS, widths=0.6, medianprops={"color": "black"}, showfliers=False, manage_ticks=False,
        )  # fmt: skip
        for box, place in zip(boxes["boxes"], boxed, strict=True):
            box.set_facecolor(_look(looks, causes[place - 1]).colour)
            box.set_alpha(0.55)
        # All points beyond whiskers in one artist: one per cause would take longer than everything else.
        beyond = [_beyond(values[place - 1]) for place in boxed]
        ax.plot(
            np.concatenate(beyond), np.repeat(boxed, [len(found) for found in beyond]), linestyle="none", marker=".",
            markersize=3, color="black", alpha=0.5, rasterized=True,
        )  # fmt: skip
    for place, (cause, found) in enumerate(zip(causes, values), 1):
        look = _look(looks, cause)
        shown = np.array([np.median(found)]) if len(found) >= _BOX else found
        ax.scatter(shown, np.full(len(shown), place), s=46, c=look.colour, marker=look.marker, zorder=4,
                   edgecolors="black" if look.marker != "x" else None, linewidths=0.7)  # fmt: skip
    if causes:
        if "this" in frame:
            this = frame[frame["this"]]
            at = [causes.index(c) + 1 for c in this["cause"]]
            ax.scatter(this["deviation_ns"].to_numpy(dtype=float), at, s=70, c=BLACK, marker="D", zorder=5)
        latency_axis(ax, "x", float(min(v.min() for v in values)), float(max(v.max() for v in values)))
        ax.set_yticks(
            np.arange(1, len(causes) + 1),
            [f"{printable(c, 46)}\n{counted(len(v), thing)}" for c, v in zip(causes, values)],
        )
        ax.set_ylim(0.4, len(causes) + 0.6)
    ax.set_xlabel(f"latency added to a slow {thing}")
    ax.set_ylabel("cause")
    ax.set_title(title or title_by("deviation"), loc="left", fontsize=11)
    ax.grid(axis="y", visible=False)
    return ax


def _beyond(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    low, high = np.percentile(values, _WHISKERS)
    return values[(values < low) | (values > high)]


def _look(looks: Mapping[str, Look], name: str) -> Look:
    if name in looks:
        return looks[name]
    return looks[max((known for known in looks if name.startswith(f"{known}: ")), key=len, default="")]
