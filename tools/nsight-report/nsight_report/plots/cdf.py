# SPDX-License-Identifier: GPL-2.0-only
"""The latency distribution and its tail (Fig. 17 of the paper)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..units import BEYOND
from .style import BLUE, latency_axis

_MOST = 4000  # points drawn: ranks evenly spaced below, every message in the last thousand


def rows(messages: pd.DataFrame) -> pd.DataFrame:
    """latency_ns and the percent of messages at or below it; every message of the last thousand."""
    values = np.sort(messages["latency_ns"].to_numpy(dtype=np.int64))
    n = len(values)
    ranks = np.unique(
        np.concatenate([np.linspace(0, n - 1, _MOST).astype(np.int64), np.arange(max(0, n - 1000), n)])
    )
    ranks = ranks[(ranks >= 0) & (ranks < n)]
    return pd.DataFrame({"latency_ns": values[ranks], "percent": (ranks + 1) * 100.0 / max(n, 1), "n": n})


def plot(frame: pd.DataFrame, label: str, *, ax: Axes) -> Axes:
    """Draw ``rows`` as a cumulative distribution; n stands in the legend."""
    if len(frame):
        ax.step(
            frame["latency_ns"].to_numpy(dtype=float), frame["percent"], where="post", color=BLUE,
            label=f"{label} (n={int(frame['n'].iloc[0]):,})",
        )  # fmt: skip
        latency_axis(ax, "x", float(frame["latency_ns"].min()), float(frame["latency_ns"].max()))
        ax.legend(loc="lower right")
    ax.set_ylim(0, 101)
    ax.set_xlabel("latency")
    ax.set_ylabel("messages at or below (%)")
    ax.set_title("All messages", loc="left", fontsize=11)
    return ax


def plot_tail(frame: pd.DataFrame, *, ax: Axes) -> Axes:
    """Draw the tail of ``rows``: share of messages slower than a latency, both axes logarithmic.

    Dotted beyond the last percentile that n supports: there it is single messages.
    """
    n = int(frame["n"].iloc[0]) if len(frame) else 0
    # Ranks at or above (percent - one message), so that the maximum is at 1/n and not at zero.
    slower = 100.0 - frame["percent"].to_numpy() + (100.0 / n if n else 0.0)
    x = frame["latency_ns"].to_numpy(dtype=float)
    firm = slower * n / 100.0 >= BEYOND
    ax.step(x[firm], slower[firm], where="pre", color=BLUE, label=f"n={n:,}")
    loose = slower * n / 100.0 <= BEYOND + 1
    if loose.any():
        ax.step(
            x[loose],
            slower[loose],
            where="pre",
            color=BLUE,
            linestyle=":",
            label=f"fewer than {BEYOND} messages",
        )
    ax.set_yscale("log")
    if n:
        latency_axis(ax, "x", float(x.min()), float(x.max()))
        ax.set_ylim(100.0 / n / 1.5, 130)
        decades = [d for d in (100.0, 10.0, 1.0, 0.1, 0.01, 0.001, 0.0001) if d >= 100.0 / n / 1.5]
        ax.set_yticks(decades, [f"{d:g} %" + ("" if d == 100 else f"  (p{100 - d:g})") for d in decades])
        ax.legend(loc="upper right")
    ax.set_xlabel("latency")
    ax.set_ylabel("messages at least as slow")
    ax.set_title("Tail", loc="left", fontsize=11)
    return ax
