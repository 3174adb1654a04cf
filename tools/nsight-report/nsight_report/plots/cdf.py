# SPDX-License-Identifier: GPL-2.0-only
"""The latency distribution and its tail, of one or several captures (Figs. 1 and 17 of the paper)."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ..units import BEYOND
from .style import BLACK, BLUE, GREEN, PURPLE, SKY, VERMILLION, latency_axis

_MOST = 4000  # points drawn: evenly spaced ranks in the lower part, every message of the last thousand
#: Lines of captures, in their order: colour and dashes, so that they differ in print too.
_LINES = (
    (BLUE, "-"),
    (VERMILLION, "--"),
    (GREEN, "-."),
    (PURPLE, (0, (5, 1, 1, 1, 1, 1))),
    (SKY, (0, (1, 1))),
)


def rows(messages: pd.DataFrame, label: str = "messages") -> pd.DataFrame:
    """latency_ns and the percent of messages at or below it; every message of the last thousand.

    ``n`` is the number of messages, ``capture`` the label. Several captures are several frames, concatenated.
    """
    values = np.sort(messages["latency_ns"].to_numpy(dtype=np.int64))
    n = len(values)
    ranks = np.unique(
        np.concatenate([np.linspace(0, n - 1, _MOST).astype(np.int64), np.arange(max(0, n - 1000), n)])
    )
    ranks = ranks[(ranks >= 0) & (ranks < n)]
    return pd.DataFrame(
        {"capture": label, "latency_ns": values[ranks], "percent": (ranks + 1) * 100.0 / max(n, 1), "n": n}
    )


def plot(frame: pd.DataFrame, *, ax: Axes, thing: str = "message") -> Axes:
    """Draw ``rows`` as cumulative distributions; n is in the legend; ``thing``: what messages are called."""
    for (label, part), (colour, dashes) in zip(frame.groupby("capture", sort=False), cycle(_LINES)):
        ax.step(
            part["latency_ns"].to_numpy(dtype=float), part["percent"], where="post", color=colour, linestyle=dashes,
            label=f"{label} (n={int(part['n'].iloc[0]):,})",
        )  # fmt: skip
    if len(frame):
        latency_axis(ax, "x", float(frame["latency_ns"].min()), float(frame["latency_ns"].max()))
        ax.legend(loc="lower right")
    ax.set_ylim(0, 101)
    ax.set_xlabel("latency")
    ax.set_ylabel(f"{thing}s at or below (%)")
    ax.set_title(f"All {thing}s", loc="left", fontsize=11)
    return ax


def plot_tail(frame: pd.DataFrame, *, ax: Axes, thing: str = "message") -> Axes:
    """Draw the tails of ``rows``: share of messages slower than a latency, both axes logarithmic.

    Dotted beyond the last percentile that n supports: there, the line consists of single messages.
    """
    parts = list(zip(frame.groupby("capture", sort=False), cycle(_LINES)))
    few = False
    for (label, part), (colour, dashes) in parts:
        n = int(part["n"].iloc[0])
        # Ranks at or above (percent - one message), so that the maximum is at 1/n and not at zero.
        slower = 100.0 - part["percent"].to_numpy() + 100.0 / n
        x = part["latency_ns"].to_numpy(dtype=float)
        firm = slower * n / 100.0 >= BEYOND
        ax.step(x[firm], slower[firm], where="pre", color=colour, linestyle=dashes,
                label=f"{label} (n={n:,})" if len(parts) > 1 else f"n={n:,}")  # fmt: skip
        loose = slower * n / 100.0 <= BEYOND + 1
        if loose.any():
            few = True
            ax.step(x[loose], slower[loose], where="pre", color=colour, linestyle=":")
    ax.set_yscale("log")
    if len(frame):
        most = int(frame["n"].max())
        latency_axis(ax, "x", float(frame["latency_ns"].min()), float(frame["latency_ns"].max()))
        ax.set_ylim(100.0 / most / 1.5, 130)
        decades = [d for d in (100.0, 10.0, 1.0, 0.1, 0.01, 0.001, 0.0001) if d >= 100.0 / most / 1.5]
        ax.set_yticks(decades, [f"{d:g} %" + ("" if d == 100 else f"  (p{100 - d:g})") for d in decades])
        handles = ax.get_legend_handles_labels()[0]
        if few:  # once and last: it applies to every line
            handles.append(Line2D([], [], color=BLACK, linestyle=":", label=f"fewer than {BEYOND} {thing}s"))
        ax.legend(handles=handles, loc="upper right" if len(parts) == 1 else "lower left")
    ax.set_xlabel("latency")
    ax.set_ylabel(f"{thing}s at least as slow")
    ax.set_title("Tail", loc="left", fontsize=11)
    return ax
