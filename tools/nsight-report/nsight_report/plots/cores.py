# SPDX-License-Identifier: GPL-2.0-only
"""The core-context summary (Fig. 20 of the paper): what ran on each core during slow messages, and during normal ones."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Patch, Rectangle

from ..cores import CONTEXTS, ROLES
from ..names import printable
from ..units import percent
from .style import BLUE, DARK, GREEN, GREY, ORANGE, PURPLE, VERMILLION, YELLOW

TITLES = {
    "slow": "while slow {}s were there",
    "baseline": "while baseline {}s were there",
    "all": "whole recording",
}
#: Number of names shown separately for each kind of context; the others share one.
_NAMED = {"application": 1, "thread": 3, "softirq": 3}
_OTHERS = {"application": "other threads of the application", "thread": "other threads", "softirq": "other softirqs",
           "hardirq": "interrupts", "exception": "page faults and exceptions", "recording": "NSight's own cost",
           "idle": "idle", "host": "host took the core", "untraced": "not recorded"}  # fmt: skip
_COLOURS = {
    "application": (BLUE, "#7FB8D8"), "thread": (VERMILLION, ORANGE, "#F5C26B", "#FBE3B9"),
    "softirq": (GREEN, "#66C4A8", "#B3E2D4", "#D9F0E9"), "hardirq": (PURPLE,), "exception": (YELLOW,),
    "recording": (DARK,), "idle": ("#E4E4E4",), "host": ("#B9B4D6",), "untraced": ("white",),
}  # fmt: skip
#: A name with less than this on every core is merged with the others.
_SHOWN = 0.01
_MOST_TICKS = 12


def rows(cores: pd.DataFrame) -> pd.DataFrame:
    """One row per role, core and separately drawn context: role, cpu, context, label, share, lifetime_share."""
    frame = cores.astype({"role": str, "context": str, "name": str})
    label = frame["context"].map(_OTHERS)
    for context, most in _NAMED.items():
        of = frame[frame["context"] == context]
        # A name is shown if it matters on one core in one of the roles.
        first = of.groupby("name")["share"].max()
        shown = list(first[first >= _SHOWN].sort_values(ascending=False, kind="stable").index[:most])
        named = (frame["context"] == context) & frame["name"].isin(shown)
        prefix = "softirq " if context == "softirq" else ""
        label = label.where(~named, prefix + frame["name"])
    # Two processes can have one name: a label has one colour.
    of_app = frame["name"].isin(frame.loc[frame["context"] == "application", "name"])
    label = label.where(
        (frame["context"] != "thread") | ~of_app | (label != frame["name"]), label + " (other process)"
    )
    frame = frame.assign(label=label, rank=frame["context"].map({c: i for i, c in enumerate(CONTEXTS)}))
    frame = (
        frame.groupby(["role", "rank", "context", "label", "cpu"])[["share", "lifetime_share"]]
        .sum()
        .reset_index()
    )
    size = frame.groupby(["rank", "label"])["share"].transform("sum")
    role = frame["role"].map({r: i for i, r in enumerate(ROLES)})
    frame = frame.assign(size=-size, order=role).sort_values(["order", "cpu", "rank", "size", "label"])
    return frame[["role", "cpu", "context", "label", "share", "lifetime_share"]].reset_index(drop=True)


def plot(frame: pd.DataFrame, role: str, *, ax: Axes, thing: str = "message") -> Axes:
    """Draw ``rows`` of one role: a bar of shares for each core; above it, the part of the messages' lifetimes on that core."""
    part = frame[frame["role"] == role]
    cpus = sorted(frame["cpu"].unique())
    place = {cpu: i for i, cpu in enumerate(cpus)}
    bottom = np.zeros(len(cpus))
    width = 0.8 if len(cpus) > 3 else 0.5
    for label, context, colour in _looks(frame):
        of = part[(part["label"] == label) & (part["context"] == context)]
        height = np.zeros(len(cpus))
        height[[place[c] for c in of["cpu"]]] = of["share"].to_numpy(float) * 100
        blank = context == "untraced"
        # One artist for all cores of a context: a machine has hundreds.
        bars = [
            Rectangle((i - width / 2, bottom[i]), width, height[i]) for i in np.flatnonzero(height).tolist()
        ]
        drawn = PatchCollection(
            bars, facecolor=colour, edgecolor=GREY if blank else "white", linewidth=0.4, hatch="///" if blank else None
        )  # fmt: skip
        ax.add_collection(drawn, autolim=False)
        bottom += height
    if role != "all" and len(cpus) <= _MOST_TICKS // 2:
        lived = part.groupby("cpu")["lifetime_share"].sum()
        for cpu, share in lived.items():
            if share > 0:
                ax.text(place[cpu], 101, percent(float(share)), ha="center", fontsize=8)
    step = -(-len(cpus) // _MOST_TICKS)
    ax.set_xticks(range(0, len(cpus), max(step, 1)), [str(c) for c in cpus[:: max(step, 1)]])
    ax.set_xlim(-0.6, max(len(cpus), 1) - 0.4)
    ax.set_ylim(0, 108)
    ax.set_yticks(range(0, 101, 20))
    ax.set_xlabel("core")
    ax.set_title(TITLES[role].format(thing), loc="left", fontsize=9)
    ax.grid(axis="x", visible=False)
    return ax


def legend(frame: pd.DataFrame) -> list[Patch]:
    """The meaning of the colours of ``plot``, from the top of the bars down."""
    return [
        Patch(
            facecolor=colour, label=printable(label, 30),
            edgecolor=GREY if context == "untraced" else "white", hatch="///" if context == "untraced" else None,
        )
        for label, context, colour in reversed(_looks(frame))
    ]  # fmt: skip


def _looks(frame: pd.DataFrame) -> list[tuple[str, str, str]]:
    """(label, context, colour) from the bottom up, the same for every role."""
    known = frame.groupby(["context", "label"])["share"].sum().reset_index()
    known["rank"] = known["context"].map({c: i for i, c in enumerate(CONTEXTS)})
    known["rest"] = known["label"] == known["context"].map(_OTHERS)
    known = known.sort_values(["rank", "rest", "share", "label"], ascending=[True, True, False, True])
    nth = known.groupby("context").cumcount()
    return [
        (str(label), str(context), _COLOURS[context][min(n, len(_COLOURS[context]) - 1)])
        for label, context, n in zip(known["label"], known["context"], nth, strict=True)
    ]
