# SPDX-License-Identifier: GPL-2.0-only
"""Draws the rows of ``timeline``: a track per core with nested boxes, timestamps, anomalies, other messages."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from ..names import printable
from ..tables.data_frames import each
from ..units import counted, duration
from .folding import NARROWEST
from .style import BLACK, BLUE, GREY, VERMILLION, legend_below
from .timeline import WRAPS, track_of_cause

FILL = {
    "own thread": "#BFE3F5",
    "thread": "#D9D9D9",
    "syscall": "#FBE7B2",
    "softirq": "#BFE5D6",
    "hardirq": "#EBCFDD",
    "exception": "#F7CFA0",
    "function": "#ECEBF7",
    "stall": "#B9B4D6",
    "absent": "#CFC7BF",
}
# The outline of boxes that are too narrow for a normal one: their fill, darker.
_EDGE = {
    "own thread": "#7FBEDD",
    "syscall": "#E0C062",
    "softirq": "#6FBFA0",
    "hardirq": "#C890B0",
    "exception": "#D99A4E",
    "function": "#A9A6CF",
    "stall": "#7F78B0",
    "absent": "#98897C",
}
NARROW_FUNCTION = _EDGE["function"]
RED = "#F2A07F"  # the fill of a call that an anomaly names
NAMES = {
    "own thread": "thread that gets the {thing}",
    "thread": "other thread",
    "syscall": "system call",
    "softirq": "softirq",
    "hardirq": "interrupt",
    "exception": "exception",
    "function": "function",
    "stall": "stands at one instruction",
    "absent": "host took the core",
}
_TRACK_NAMES = {
    "R": "receive core (R)",
    "A": "application core (A)",
    "T": "transmit core (T)",
    "R and A": "receive and application core",
}
_WHITE = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8}  # keeps lines off labels
UNTRACED = "untraced time"
At = Callable[[int], float]  # time in ns to the position on the axis
Bases = dict[int, tuple[float, int, str]]  # core to base, number of levels, track
_CHAR = 0.0068  # width of a character of the label font, as a share of the axes
_TEXT = 8


def height_inches(frame: pd.DataFrame) -> float:
    """A figure height at which boxes keep their height whatever the number of tracks and levels."""
    _bases, top = _layout(frame)
    n_messages = int((frame["what"] == "message").sum())
    return 1.9 + 0.26 * (top + 0.55 * n_messages + _mark_levels(frame))


def plot(frame: pd.DataFrame, title: str, *, ax: Axes, thing: str = "message") -> Axes:
    """Draw ``rows``. Time counts from the first timestamp; red is what an anomaly names, blank is not decoded,
    dashed ends are inferred, grey is time in which a core was not the message's. ``thing``: what messages are called."""
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
    _elsewhere(ax, frame, at, bases)
    n_short = _boxes(ax, frame, at, bases, width)
    _anomalies(ax, frame, at, bases, width)
    bottom = _messages(ax, frame, at, width)
    levels = _marks(ax, marks, at, bottom, top, width)
    ax.set_ylim(bottom - 0.2, top + 0.3 + 0.75 * levels)
    ticks = {
        base + depth / 2: f"core {cpu}\n{_TRACK_NAMES.get(track, track)}"
        for cpu, (base, depth, track) in bases.items()
    }
    if bottom < 0:
        ticks[bottom / 2] = f"other {thing}s\non this core"
    ax.set_yticks(list(ticks), list(ticks.values()))
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    ax.spines["left"].set_visible(False)
    ax.set_ylabel("core")
    ax.set_xlabel(f"time since the first timestamp ({unit})")
    left_out = list(frame.loc[frame["what"] == "left out", "name"])
    if n_short:
        left_out.append(f"{counted(n_short, 'call')} too short beside the longer interval")
    ax.set_title(title + (f"\nnot drawn: {', '.join(left_out)}" if left_out else ""), loc="left", fontsize=11)
    _legend(ax, frame, thing)
    return ax


def _layout(frame: pd.DataFrame) -> tuple[Bases, float]:
    """Core to (base, levels, track name); application core at the bottom, receive core on top."""
    calls = frame[(frame["what"] == "call") & (frame["kind"] != "idle")]
    every = frame[frame["what"] == "call"]
    order = {"T": -1, "A": 0, "R and A": 1, "R": 2}
    least = NARROWEST * float(every["end_ns"].max() - every["start_ns"].min()) if len(every) else 0.0
    bases: Bases = {}
    top = 0.3
    cores = every[["cpu", "track"]].drop_duplicates()
    for core in sorted(each(cores), key=lambda c: order.get(c.track, 3)):
        # A short interval next to a long one keeps its boxes, but they do not make the figure taller; red ones may.
        seen = (calls["end_ns"] - calls["start_ns"] >= least) | (calls["red"] != "")
        own = calls[(calls["cpu"] == core.cpu) & seen]
        level = own["level"].max()
        n = 1 if pd.isna(level) else int(level) + 1
        bases[int(core.cpu)] = (top, n, core.track)
        top += n + 1.3
    return bases, top


def _elsewhere(ax: Axes, frame: pd.DataFrame, at: At, bases: Bases) -> None:
    """Shade a track while its core was not the message's: blank space there means nothing."""
    for cpu, (base, n, _track) in bases.items():
        own = frame[(frame["what"] == "interval") & (frame["cpu"] == cpu)].sort_values("start_ns")
        edge = ax.get_xlim()[0]
        for start, end in [*((at(s.start_ns), at(s.end_ns)) for s in each(own)), (ax.get_xlim()[1],) * 2]:
            if start > edge:
                ax.add_patch(
                    Rectangle((edge, base), start - edge, n, facecolor="#F3F3F3", linewidth=0, zorder=0.3)
                )
            edge = max(edge, end)


def _boxes(ax: Axes, frame: pd.DataFrame, at: At, bases: Bases, width: float) -> int:
    """Draws the calls; returns how many are above the levels of their track."""
    calls = frame[(frame["what"] == "call") & ~frame["kind"].isin(["idle", "gap"])]
    corners, looks = [], []
    n_above = 0
    for c in each(calls):
        base, levels, _track = bases[int(c.cpu)]
        if c.level >= levels:
            n_above += 1
            continue
        base += int(c.level)
        left, right = at(c.start_ns), at(c.end_ns)
        inferred = not {"inferred", "missing"}.isdisjoint((c.start_known, c.end_known))
        # Many narrow boxes with outlines would be one dark bar.
        narrow = (right - left) / width < 0.003
        edge = _EDGE.get(c.kind, "#AAAAAA") if narrow else "#666666"
        corners.append(((left, base), (left, base + 0.92), (right, base + 0.92), (right, base)))
        looks.append((
            RED if c.red else FILL.get(c.kind, "#EEEEEE"), VERMILLION if c.red else edge, 0.3 if narrow else 0.6,
            "--" if inferred and not narrow else "-",
        ))  # fmt: skip
        room = int(((right - left) / width - 0.006) / _CHAR)
        if room >= 4:
            ax.text((left + right) / 2, base + 0.44, shortened(c.name, room), fontsize=_TEXT, ha="center", va="center",
                    clip_on=True, zorder=4)  # fmt: skip
    if corners:
        fill, edges, widths, styles = zip(*looks, strict=True)
        # From a tuple of two, matplotlib takes the second as the dashes of one style.
        boxes = PolyCollection(
            corners, facecolors=fill, edgecolors=edges, linewidths=widths, linestyles=list(styles)
        )
        ax.add_collection(boxes, autolim=False)
    for cpu, (base, _levels, _track) in bases.items():
        ax.axhline(base, color="#888888", linewidth=0.8)
        empty = frame[(frame["what"] == "call") & (frame["cpu"] == cpu) & frame["kind"].isin(["idle", "gap"])]
        for c in each(empty):
            left, right = at(c.start_ns), at(c.end_ns)
            if c.kind == "idle":
                ax.plot([left, right], [base, base], color=GREY, linewidth=3, solid_capstyle="butt")
            if (right - left) / width > 0.09:
                ax.text((left + right) / 2, base + 0.5, "idle" if c.kind == "idle" else UNTRACED, fontsize=_TEXT,
                        color="#666666", ha="center", va="center", style="italic", clip_on=True)  # fmt: skip
    return n_above


def shortened(name: str, room: int) -> str:
    """``name`` in ``room`` characters: for calls that share a box, the middle ones are dropped first."""
    parts = str(name).split(WRAPS)
    whole = printable(name, 400)
    if len(parts) > 1 and len(whole) > room:
        whole = f"{parts[0]} … {parts[-1]}"
        if len(whole) > room:
            whole = parts[-1]
    return printable(whole, room)


def _anomalies(ax: Axes, frame: pd.DataFrame, at: At, bases: Bases, width: float) -> None:
    drawn: dict[int, list[tuple[float, float]]] = {}
    sides = {cpu: track for cpu, (_base, _levels, track) in bases.items()}
    for a in each(frame[frame["what"] == "anomaly"]):
        core = track_of_cause(None if pd.isna(a.cpu) else int(a.cpu), a.track, sides)
        if core is None:
            continue
        base, depth, _track = bases[core]
        left, right = at(a.start_ns), at(a.end_ns)
        ax.add_patch(
            Rectangle(
                (left, base),
                right - left,
                depth,
                facecolor=VERMILLION,
                alpha=0.07,
                edgecolor="none",
                zorder=0.6,
            )
        )
        # A bracket on top, not a frame around everything: the boxes below are the subject.
        ax.plot([left, left, right, right], [base + depth - 0.1, base + depth + 0.1, base + depth + 0.1, base + depth - 0.1],
                color=VERMILLION, linewidth=1.6, zorder=3)  # fmt: skip
        label = f"{printable(a.name, 40)} {a.note}"
        half = len(label) * _CHAR * 1.15 * width / 2  # bold is wider
        limits = ax.get_xlim()
        centre = min(max((left + right) / 2, limits[0] + half), limits[1] - half)
        taken = drawn.setdefault(core, [])
        # The largest come first; a label that would cover another is left to the table.
        if all(centre + half < lo or centre - half > hi for lo, hi in taken):
            ax.text(centre, base + depth + 0.2, label, color="#A04000", fontsize=_TEXT, fontweight="bold",
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
        x, side = right + 0.008 * width, "left"
        if inside:
            before = left - (len(m.name) + 2) * _CHAR * width > ax.get_xlim()[0]
            x, side = (left if before else right - 0.012 * width), "right"
        # Above the marks, whose lines would otherwise cross it.
        ax.text(x, y, m.name, fontsize=7, va="center", ha=side, color="#444444", zorder=5, bbox=_WHITE)
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


def _legend(ax: Axes, frame: pd.DataFrame, thing: str) -> None:
    calls = frame[frame["what"] == "call"]
    present = set(calls["kind"])
    handles: list[Patch | Line2D] = [
        Patch(facecolor=colour, edgecolor="#666666", linewidth=0.6, label=NAMES[kind].format(thing=thing))
        for kind, colour in FILL.items()
        if kind in present
    ]
    ends = pd.concat([calls["start_known"], calls["end_known"]])
    if ends.isin(["inferred", "missing"]).any():
        handles.append(
            Patch(facecolor="none", edgecolor="#666666", linestyle="--", label="an end is inferred")
        )
    if (calls["red"] != "").any():
        handles.append(Patch(facecolor=RED, edgecolor=VERMILLION, label="what took longer"))
    if (frame["what"] == "anomaly").any():
        handles.append(
            Patch(facecolor="#FCEFE9", edgecolor=VERMILLION, label="root cause: its longest interval")
        )
    if "idle" in present:
        handles.append(Line2D([], [], color=GREY, linewidth=3, label="idle"))
    if "gap" in present:
        handles.append(Patch(facecolor="white", edgecolor="#CCCCCC", label=f"blank: {UNTRACED}"))
    handles.append(Patch(facecolor="#F3F3F3", edgecolor="none", label=f"not the {thing}'s core then"))
    if (frame.loc[frame["what"] == "mark", "note"] != "").any():
        handles.append(Patch(facecolor=BLACK, alpha=0.15, label="band: clock error"))
    legend_below(ax, handles, 4)
