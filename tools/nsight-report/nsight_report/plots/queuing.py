# SPDX-License-Identifier: GPL-2.0-only
"""The queuing breakdown (Fig. 19 of the paper): how many more messages than usual were ahead of slow ones, and the delay."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cbook import boxplot_stats
from matplotlib.ticker import MaxNLocator

from ..names import printable
from ..queuing.queues import ORDER
from .style import BLUE, DARK, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, latency_axis

_COLOURS = dict(zip(ORDER, (GREEN, GREEN, BLUE, BLUE, SKY, PURPLE, ORANGE, VERMILLION, DARK), strict=True))
_WIDTH = 0.8


def rows(queuing: pd.DataFrame) -> pd.DataFrame:
    """One row per slow message and queue in which more than usual were ahead of it, in the order of the path.

    queue (with the side), function, message_id, depth, more (than the baseline has), deviation_ns. Queues in which no
    message waited behind more than usual are left out.
    """
    frame = queuing[queuing["role"].astype(str) == "slow"]
    frame = frame.assign(more=frame["depth"] - frame["baseline_depth"])
    frame = frame[frame["more"] > 0].astype({"queue": str, "side": str, "function": str})
    rank = frame["queue"].map({name: i for i, name in enumerate(ORDER)})
    frame = frame.assign(rank=rank, queue=frame["queue"] + " (" + frame["side"] + ")")
    names = ["queue", "function", "message_id", "depth", "more", "deviation_ns"]
    return frame.sort_values(["rank", "message_id"])[names].reset_index(drop=True)


def plot_depth(frame: pd.DataFrame, *, ax: Axes, thing: str = "message") -> Axes:
    """Draw ``rows``: at each number of additional messages ahead, a line as wide as the share of the queue's messages."""
    queues = list(dict.fromkeys(frame["queue"]))
    top = int(frame["more"].max()) if len(frame) else 1
    for x, queue in enumerate(queues):
        part = frame.loc[frame["queue"] == queue, "more"].to_numpy(np.int64)
        value, count = np.unique(part, return_counts=True)
        half = _WIDTH / 2 * count / count.max()
        colour = _COLOURS[queue[: queue.rindex(" (")]]
        ax.vlines(x, value.min(), value.max(), color=GREY, linewidth=0.8)
        ax.hlines(value, x - half, x + half, color=colour, linewidth=4 if top < 40 else 2)
        ax.text(x, top + 0.06 * top + 0.4, f"{len(part):,}", ha="center", fontsize=9)
    ax.set_ylim(0, top * 1.18 + 0.8)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylabel(f"more {thing}s ahead\nthan usual")
    ax.set_title(
        f"Queuing ahead of slow {thing}s (number of {thing}s on top; line width: share of them)",
        loc="left", fontsize=11,
    )  # fmt: skip
    return _queues(ax, queues, queues)


def plot_delay(frame: pd.DataFrame, *, ax: Axes) -> Axes:
    """Draw ``rows``: boxes (quartiles, whiskers 5th to 95th percentile) of the extra time that the messages ahead took.

    The axis is logarithmic: values that are not above the usual are on a line at its foot.
    """
    queues = list(dict.fromkeys(frame["queue"]))
    if len(frame):
        above = frame.loc[frame["deviation_ns"] > 0, "deviation_ns"]
        foot = float(above.min()) / 2 if len(above) else 1.0
        # More messages ahead need not take longer: the median is over all messages, not only the delayed ones.
        stats = [_box(frame.loc[frame["queue"] == q, "deviation_ns"].to_numpy(float), foot) for q in queues]
        boxes = ax.bxp(
            stats, positions=range(len(queues)), patch_artist=True, widths=_WIDTH / 2,
            medianprops={"color": "black"}, flierprops={"marker": ".", "markersize": 3, "alpha": 0.5},
        )  # fmt: skip
        for patch, queue in zip(boxes["boxes"], queues, strict=True):
            patch.set_facecolor(_COLOURS[queue[: queue.rindex(" (")]])
            patch.set_alpha(0.75)
        latency_axis(ax, "y", foot, max(float(frame["deviation_ns"].max()), foot))
        if len(above) < len(frame):
            ax.axhline(foot, color=GREY, linewidth=0.8, linestyle=":")
            ax.text(0.998, foot, "not longer than usual", transform=ax.get_yaxis_transform(), fontsize=7, color="#555555",
                    ha="right", va="bottom")  # fmt: skip
    ax.set_ylabel("time for those ahead\nabove the usual")
    functions = dict(zip(frame["queue"], frame["function"], strict=True))
    return _queues(ax, queues, [f"{q}\n{_short(functions[q])}" for q in queues])


def _box(values: npt.NDArray[np.float64], foot: float) -> dict[str, Any]:
    """Input of ``Axes.bxp`` for ``values``, with no end below ``foot``."""
    found = boxplot_stats(values, whis=(5, 95))[0]
    return {key: np.maximum(value, foot) for key, value in found.items()}


def _queues(ax: Axes, queues: list[str], labels: list[str]) -> Axes:
    ax.set_xticks(range(len(queues)), labels, fontsize=8)
    ax.set_xlim(-0.6, max(len(queues), 1) - 0.4)
    ax.set_xlabel("queue")
    ax.grid(axis="x", visible=False)
    return ax


def _short(name: str) -> str:
    """A function's name in lines that fit between the ticks."""
    lines = []
    for word in printable(name, 60).split(" "):
        lines += textwrap.wrap(word.replace("_", "_ "), 20) or [""]
    return "\n".join(lines).replace("_ ", "_")
