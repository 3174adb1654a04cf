# SPDX-License-Identifier: GPL-2.0-only
"""The balloon plot (Fig. 3 of the paper): when slow messages came, how slow, and why.

Adjacent balloons with one colour have one lasting cause; scattered balloons have
independent causes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ..names import printable
from ..tables.data_frames import cause_names
from ..units import duration
from .style import GREY, NOT_SLOWER, UNEXPLAINED, Look, latency_axis, legend_below

_SMALLEST, _LARGEST = 20.0, 420.0  # points squared
_MANY = 40
_TOP = 8  # causes with an entry in the legend; the others share one
OTHER = "other causes"


def rows(messages: pd.DataFrame, coverage: pd.DataFrame, anomalies: pd.DataFrame) -> pd.DataFrame:
    """One row per message: message_id, latency_ns, slow, and for slow ones deviation_ns and the top cause."""
    names = cause_names(anomalies)
    sums = (
        pd.DataFrame(
            {"message_id": anomalies["message_id"], "cause": names, "cause_ns": anomalies["deviation_ns"]}
        )
        .groupby(["message_id", "cause"])[["cause_ns"]]
        .sum()
        .reset_index()
        .sort_values(["message_id", "cause_ns", "cause"], ascending=[True, False, True])
        .drop_duplicates("message_id")
    )
    frame = messages[["message_id", "latency_ns"]].merge(
        coverage[["message_id", "deviation_ns", "coverage"]], on="message_id", how="left"
    )
    frame["slow"] = frame["deviation_ns"].notna()
    frame = frame.merge(sums, on="message_id", how="left")
    frame["cause"] = frame["cause"].astype(object)
    nothing = frame["slow"] & frame["cause"].isna()
    frame.loc[nothing, "cause"] = np.where(
        frame.pop("coverage")[nothing].to_numpy(float, na_value=0) == 1, NOT_SLOWER, UNEXPLAINED
    )
    return frame


def sizes(deviation_ns: pd.Series) -> np.ndarray:
    """Balloon areas: they grow with the deviation, between a visible minimum and a maximum."""
    values = deviation_ns.to_numpy(dtype=float, na_value=0.0)
    top = values.max() if len(values) and values.max() > 0 else 1.0
    # With many balloons, each is smaller so that they do not cover each other.
    largest = max(_LARGEST * min(1.0, (_MANY / max(len(values), 1)) ** 0.5), 3 * _SMALLEST)
    return _SMALLEST + (largest - _SMALLEST) * np.clip(values / top, 0, 1)


def plot(frame: pd.DataFrame, looks: Mapping[str, Look], *, ax: Axes, thing: str = "message") -> Axes:
    """Draw ``rows``: all messages as dots, slow messages as balloons coloured by top cause; ``thing``: what they are called."""
    rest, slow = frame[~frame["slow"]], frame[frame["slow"]]
    # One image for the dots: a million of them as vectors would make the SVG unusable.
    ax.plot(
        rest["message_id"].to_numpy(dtype=float),
        np.maximum(rest["latency_ns"].to_numpy(dtype=float), 1),
        linestyle="none",
        marker=".",
        markersize=2.5,
        color=GREY,
        alpha=0.6,
        rasterized=True,
    )
    legend = [
        Line2D([], [], linestyle="none", marker=".", color=GREY, label=f"other {thing}s (n={len(rest):,})")
    ]
    order = slow.groupby("cause", observed=True)["deviation_ns"].sum().sort_values(ascending=False).index
    areas = pd.Series(sizes(slow["deviation_ns"]), index=slow.index)
    for rank, cause in enumerate(order):
        part = slow[slow["cause"] == cause]
        look = looks[cause] if rank < _TOP else Look("#555555", "o")
        filled = look.marker != "x"
        ax.scatter(
            part["message_id"].to_numpy(dtype=float),
            np.maximum(part["latency_ns"].to_numpy(dtype=float), 1),
            s=areas[part.index].to_numpy(),
            c=look.colour,
            marker=look.marker,
            alpha=0.65,
            rasterized=len(slow) > 2000,
            edgecolors="black" if filled else None,
            linewidths=0.5 if filled else 1.2,
            label=printable(cause),
        )
        if rank < _TOP:
            worst = duration(int(part["latency_ns"].max()))
            legend.append(
                Line2D([], [], linestyle="none", marker=look.marker, color=look.colour, markersize=8,
                       label=f"{printable(cause)} (n={len(part):,}, max {worst})")
            )  # fmt: skip
    if len(order) > _TOP:
        n = int(slow["cause"].isin(order[_TOP:]).sum())
        legend.append(
            Line2D([], [], linestyle="none", marker="o", color="#555555", label=f"{OTHER} (n={n:,})")
        )
    if len(frame):
        latency_axis(ax, "y", float(frame["latency_ns"].min()), float(frame["latency_ns"].max()), room=2.2)
    ax.set_xlabel(f"{thing}, in order of arrival")
    ax.xaxis.set_major_formatter(lambda value, _pos: f"{value:,.0f}")
    ax.set_ylabel("latency")
    ax.set_title(f"Slow {thing}s by largest cause (balloon area: extra latency)", loc="left", fontsize=11)
    legend_below(ax, legend, 2)
    return ax
