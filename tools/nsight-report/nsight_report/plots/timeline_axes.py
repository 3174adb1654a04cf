# SPDX-License-Identifier: GPL-2.0-only
"""Draws the rows of ``timeline``: a lane per core with nested boxes, stamps, anomalies, other messages."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Patch, Rectangle

from ..frames import each
from ..names import printable
from ..units import duration
from .style import BLACK, BLUE, GREY, VERMILLION, legend_below

_FILL = {
    "own thread": "#BFE3F5",
    "thread": "#D9D9D9",
    "syscall": "#FBE7B2",
    "softirq": "#BFE5D6",
    "hardirq": "#EBCFDD",
    "function": "#FBE7B2",
    "gap": "#FFFFFF",
}
# The outline of boxes too narrow to have one of their own: their fill, darker.
_EDGE = {"own thread": "#7FBEDD", "syscall": "#E0C062", "softirq": "#6FBFA0", "hardirq": "#C890B0"}
_NAMES = {
    "own thread": "thread that gets the message",
    "thread": "other thread",
    "syscall": "system call",
    "softirq": "softirq",
    "hardirq": "interrupt",
    "function": "function",
    "gap": "not decoded or lost",
}
_LANE_NAMES = {
    "R": "receive core (R)",
    "A": "application core (A)",
    "R and A": "receive and application core",
}
_WHITE = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8}  # keeps lines off labels
At = Callable[[int], float]  # time in ns to the position on the axis
Bases = dict[int, tuple[float, int, str]]  # core to base, number of depths, lane
_CHAR = 0.0068  # width of a character of the label font, as a share of the axes
_TEXT = 8


def height_inches(frame: pd.DataFrame) -> float:
    """A figure height at which boxes keep their height whatever the number of lanes and depths."""
    _bases, top = _layout(frame)
    n_messages = int((frame["what"] == "message").sum())
    return 1.9 + 0.36 * (top + 0.55 * n_messages + _mark_levels(frame))


def plot(frame: pd.DataFrame, title: str, *, ax: Axes) -> Axes:
    """Draw ``rows``. Time counts from the first stamp; blank is idle, dashed ends are inferred."""
    marks = frame[frame["what"] == "mark"]
    origin = (
        int((marks["start_ns"].iloc[0] + marks["end_ns"].iloc[0]) // 2)
        if len(marks)
        else int(frame["start_ns"].min())
    )
    last = int(marks["end_ns"].max()) if len(marks) else int(frame["end_ns"].max())
    span = max(last - origin, 1)
    low, high = -0.04 * span, 1.04 * span
    scale, unit = (1e6, "ms") if span >= 2_000_000 else (1e3, "us") if span >= 2_000 else (1.0, "ns")

    def at(ns: int) -> float:
        return (int(ns) - origin) / scale

    bases, top = _layout(frame)
    ax.set_xlim(low / scale, high / scale)
    width = (high - low) / scale
    _boxes(ax, frame, at, bases, width)
    _anomalies(ax, frame, at, bases, width)
    bottom = _messages(ax, frame, at, width)
    levels = _marks(ax, marks, at, bottom, top, width)
    ax.set_ylim(bottom - 0.2, top + 0.3 + 0.75 * levels)
    ticks = {
        base + depth / 2: f"core {cpu}\n{_LANE_NAMES.get(lane, lane)}"
        for cpu, (base, depth, lane) in bases.items()
    }
    if bottom < 0:
        ticks[bottom / 2] = "other messages\non this core"
    ax.set_yticks(list(ticks), list(ticks.values()))
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel(f"time since the first stamp ({unit})")
    left_out = ", ".join(frame.loc[frame["what"] == "left out", "name"])
    ax.set_title(title + (f"\nnot drawn: {left_out}" if left_out else ""), loc="left", fontsize=11)
    _legend(ax, frame)
    return ax


def _layout(frame: pd.DataFrame) -> tuple[Bases, float]:
    """Core to (base, depths, lane name); application core below, receive core on top."""
    calls = frame[(frame["what"] == "call") & (frame["kind"] != "idle")]
    every = frame[frame["what"] == "call"]
    order = {"A": 0, "R and A": 1, "R": 2}
    bases: Bases = {}
    top = 0.3
    cores = every[["cpu", "lane"]].drop_duplicates()
    for core in sorted(each(cores), key=lambda c: order.get(c.lane, 3)):
        depth = calls.loc[calls["cpu"] == core.cpu, "depth"].max()
        n = 1 if pd.isna(depth) else int(depth) + 1
        bases[int(core.cpu)] = (top, n, core.lane)
        top += n + 0.8
    return bases, top


def _boxes(ax: Axes, frame: pd.DataFrame, at: At, bases: Bases, width: float) -> None:
    calls = frame[(frame["what"] == "call") & (frame["kind"] != "idle")]
    boxes = []
    for c in each(calls):
        base = bases[int(c.cpu)][0] + int(c.depth)
        left, right = at(c.start_ns), at(c.end_ns)
        inferred = not {"inferred", "missing"}.isdisjoint((c.start_known, c.end_known))
        # Thousands of narrow boxes with outlines would be one dark bar.
        narrow = (right - left) / width < 0.003
        boxes.append(
            Rectangle(
                (left, base), right - left, 0.92, facecolor=_FILL.get(c.kind, "#EEEEEE"),
                edgecolor=_EDGE.get(c.kind, "#AAAAAA") if narrow else "#555555", linewidth=0.3 if narrow else 0.6,
                linestyle="--" if inferred and not narrow else "-",
            )
        )  # fmt: skip
        if c.kind == "gap":
            ax.add_patch(
                Rectangle((left, base), right - left, 0.92, fill=False, hatch="///", linewidth=0, zorder=1.1)
            )
        room = int(((right - left) / width - 0.008) / _CHAR)
        if room >= 3:
            ax.text((left + right) / 2, base + 0.44, printable(c.name, room), fontsize=_TEXT, ha="center", va="center",
                    clip_on=True)  # fmt: skip
    ax.add_collection(PatchCollection(boxes, match_original=True), autolim=False)
    for cpu, (base, _depth, _lane) in bases.items():
        ax.axhline(base, color="#888888", linewidth=0.8)
        whole = frame[(frame["what"] == "call") & (frame["cpu"] == cpu) & (frame["kind"] == "idle")]
        for c in each(whole):
            if (at(c.end_ns) - at(c.start_ns)) / width > 0.06:
                ax.text((at(c.start_ns) + at(c.end_ns)) / 2, base + 0.44, "idle", fontsize=_TEXT, color="#777777",
                        ha="center", va="center", style="italic", clip_on=True)  # fmt: skip


def _anomalies(ax: Axes, frame: pd.DataFrame, at: At, bases: Bases, width: float) -> None:
    drawn: dict[int, list[tuple[float, float]]] = {}
    for a in each(frame[frame["what"] == "anomaly"]):
        if pd.isna(a.cpu) or int(a.cpu) not in bases:
            continue
        base, depth, _lane = bases[int(a.cpu)]
        left, right = at(a.start_ns), at(a.end_ns)
        ax.add_patch(
            Rectangle((left, base - 0.12), right - left, depth + 0.2, facecolor=VERMILLION, alpha=0.14,
                      edgecolor="none", zorder=0.6)
        )  # fmt: skip
        ax.add_patch(
            Rectangle((left, base - 0.12), right - left, depth + 0.2, fill=False, edgecolor=VERMILLION, linewidth=1.6 if (right - left) / width > 0.01 else 0.8,
                      zorder=3)
        )  # fmt: skip
        label = f"{printable(a.name, 40)} {a.note}"
        half = len(label) * _CHAR * 1.15 * width / 2  # bold is wider
        limits = ax.get_xlim()
        centre = min(max((left + right) / 2, limits[0] + half), limits[1] - half)
        taken = drawn.setdefault(int(a.cpu), [])
        # The largest come first; a label that would cover one of them is left to the table.
        if all(centre + half < lo or centre - half > hi for lo, hi in taken):
            ax.text(centre, base + depth + 0.12, label, color="#A04000", fontsize=_TEXT, fontweight="bold",
                    ha="center", va="bottom", zorder=5, bbox=_WHITE)  # fmt: skip
            taken.append((centre - half, centre + half))


def _messages(ax: Axes, frame: pd.DataFrame, at: At, width: float) -> float:
    others = frame[frame["what"] == "message"]
    y = 0.0
    for m in each(others):
        y -= 0.55
        left, right = at(m.start_ns), at(m.end_ns)
        ax.plot([left, right], [y, y], color=GREY, linewidth=3.5, solid_capstyle="butt")
        if m.end_known != "cut":
            ax.plot([right], [y], marker="o", markersize=4.5, color=BLUE)
        inside = right + (len(m.name) + 2) * _CHAR * width > ax.get_xlim()[1]
        if inside and left - (len(m.name) + 2) * _CHAR * width > ax.get_xlim()[0]:
            ax.text(left - 0.006 * width, y, m.name, fontsize=7, va="center", ha="right", color="#444444")
        elif inside:
            ax.text(right, y + 0.12, m.name, fontsize=7, va="bottom", ha="right", color="#444444")
        else:
            ax.text(right + 0.008 * width, y, m.name, fontsize=7, va="center", color="#444444")
    return y - 0.35 if len(others) else 0.0


def _mark_levels(frame: pd.DataFrame) -> int:
    return max(1, int((frame["what"] == "mark").sum()))


def _marks(ax: Axes, marks: pd.DataFrame, at: At, bottom: float, top: float, width: float) -> int:
    ends: list[float] = []  # right end of the last label on each level
    for m in each(marks):
        centre = (int(m.start_ns) + int(m.end_ns)) // 2
        x = at(centre)
        if m.end_ns > m.start_ns:
            ax.axvspan(at(m.start_ns), at(m.end_ns), color=BLACK, alpha=0.15, linewidth=0)
        label = f"{m.name} +{duration(centre - int(_origin(marks)))}" + (f" ({m.note})" if m.note else "")
        size = (len(label) + 2) * _CHAR * width
        right_aligned = x + size > ax.get_xlim()[1]
        start = x - size if right_aligned else x
        level = next((i for i, end in enumerate(ends) if end < start), len(ends))
        if level == len(ends):
            ends.append(0.0)
        ends[level] = start + size
        y = top + 0.15 + 0.75 * level
        ax.plot([x, x], [bottom, y + 0.3], color=BLACK, linestyle="--", linewidth=1.0)
        ax.text(x + (-0.005 if right_aligned else 0.005) * width, y, label, fontsize=_TEXT, va="bottom", zorder=5,
                ha="right" if right_aligned else "left",
                bbox=_WHITE)  # fmt: skip
    return max(len(ends), 1)


def _origin(marks: pd.DataFrame) -> int:
    return int((marks["start_ns"].iloc[0] + marks["end_ns"].iloc[0]) // 2)


def _legend(ax: Axes, frame: pd.DataFrame) -> None:
    calls = frame[frame["what"] == "call"]
    present = set(calls["kind"])
    handles = [
        Patch(
            facecolor=colour,
            edgecolor="#555555",
            linewidth=0.6,
            label=_NAMES[kind],
            hatch="///" if kind == "gap" else None,
        )
        for kind, colour in _FILL.items()
        if kind in present
    ]
    if (
        calls["end_known"].isin(["inferred", "missing"]) | calls["start_known"].isin(["inferred", "missing"])
    ).any():
        handles.append(Patch(facecolor="none", edgecolor="#555555", linestyle="--", label="end inferred"))
    if (frame["what"] == "anomaly").any():
        handles.append(Patch(facecolor="#F7DCCB", edgecolor=VERMILLION, label="root cause"))
    legend_below(ax, handles, 4)
