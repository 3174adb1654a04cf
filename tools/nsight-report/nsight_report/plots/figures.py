# SPDX-License-Identifier: GPL-2.0-only
"""Makes the figures of a report: PNG, SVG, and the CSV of what is drawn, beside each other."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure as Canvas

from ..frames import cause_names, each
from ..names import printable
from ..store import write_atomically
from ..summary import Summary, selected
from ..units import duration
from . import balloon, causes, cdf, timeline, timeline_axes
from .style import RC, UNEXPLAINED, looks

if TYPE_CHECKING:
    from ..api import Capture

_WIDTH = 11.0


@dataclass(frozen=True)
class Figure:
    """One drawn figure. ``data`` is exactly what is drawn; ``alt`` says it for who cannot see it."""

    name: str
    title: str
    alt: str
    caption: str
    data: pd.DataFrame
    svg: bytes
    png: bytes

    def save(self, directory: Path) -> None:
        """Write NAME.svg, NAME.png and NAME.csv."""
        write_atomically(directory / f"{self.name}.svg", self.svg)
        write_atomically(directory / f"{self.name}.png", self.png)
        write_atomically(
            directory / f"{self.name}.csv", self.data.to_csv(index=False).encode("utf-8", "replace")
        )


def caption(capture: Capture, summary: Summary) -> str:
    """Host, kernel, workload, coverage and command: where a figure comes from."""
    m = capture.manifest
    coverage = "-" if summary.coverage_median is None else f"{summary.coverage_median:.0%} (median)"
    apps = selected(capture)["comm"].astype(str).value_counts().index[:3]
    parts = [
        f"host {m.text('host', 'hostname') or 'unknown'}, kernel {m.text('host', 'kernel') or 'unknown'}, grade {summary.grade}",
        f"workload {', '.join(apps) or 'none'}, {summary.n:,} messages",
        f"target {summary.target}, reference {summary.reference}, coverage {coverage}",
        f"recorded with: {m.command() or 'unknown'}",
    ]
    return printable("; ".join(parts), 600)


def draw(capture: Capture, summary: Summary) -> list[Figure]:
    """The figures of a report: balloons, distribution, causes, a timeline for each slowest message."""
    note = caption(capture, summary)
    names = [str(c) for c in capture.causes["cause"]]  # by total deviation
    names += list(cause_names(capture.anomalies).unique())
    look = looks([*names, UNEXPLAINED])

    messages = selected(capture)
    figures = []
    rows = balloon.rows(messages, capture.coverage, capture.anomalies)
    top = ", ".join(f"{c.cause} {c.share:.0%}" for c in each(capture.causes.head(3))) or "none found"
    figures.append(
        _figure(
            "balloon", "Slow messages and their causes",
            f"Latency of each of {summary.n:,} messages in order of arrival; the {summary.n_target:,} target messages are "
            f"balloons coloured by cause. Largest causes: {top}.",
            note, rows, (_WIDTH, 5.6), lambda fig: balloon.plot(rows, look, ax=fig.subplots()),
        )
    )  # fmt: skip
    boxes = causes.rows(capture.anomalies)
    if len(boxes):
        figures.append(
            _figure(
                "causes", "Delay by cause", f"Box plot of the delay that each cause adds to a target message: {top}.",
                note, boxes, (_WIDTH, 1.8 + 0.62 * boxes["cause"].nunique()),
                lambda fig: causes.plot(boxes, look, ax=fig.subplots()),
            )
        )  # fmt: skip
    spread = cdf.rows(messages)

    def both(fig: Canvas) -> None:
        left, right = fig.subplots(1, 2)
        cdf.plot(spread, "messages", ax=left)
        cdf.plot_tail(spread, ax=right)

    known = ", ".join(f"p{p:g} {duration(ns)}" for p, ns in summary.percentiles.items())
    figures.append(
        _figure(
            "cdf", "Latency distribution and tail", f"Cumulative latency distribution and its tail: {known}, max {duration(summary.max_ns)}.",
            note, spread, (_WIDTH, 4.2), both,
        )
    )  # fmt: skip
    figures += [_timeline(capture, summary, i, note) for i in range(len(summary.slowest))]
    return figures


def _timeline(capture: Capture, summary: Summary, index: int, note: str) -> Figure:
    slow = summary.slowest[index]
    number = int(slow.row["message_id"])
    rows = timeline.rows(slow.row, capture.calls, capture.messages, capture.anomalies)
    why = ", ".join(f"{printable(c)} +{duration(ns)}" for c, ns in slow.causes[:3]) or "no cause found"
    latency = duration(int(slow.row["latency_ns"]))
    title = f"Message {number}: {latency} (usual {duration(slow.reference_ns)})"
    return _figure(
        f"message-{number}-timeline", title,
        f"What the cores did during the {latency} of message {number}, from its first to its last stamp. Causes: {why}.",
        note, rows, (_WIDTH, timeline_axes.height_inches(rows)),
        lambda fig: timeline_axes.plot(rows, title, ax=fig.subplots()),
    )  # fmt: skip


def _figure(
    name: str, title: str, alt: str, note: str, data: pd.DataFrame, size: tuple[float, float],
    plot: Callable[[Canvas], object],
) -> Figure:  # fmt: skip
    # Figure without pyplot: no global state, no display, nothing to close.
    with mpl.rc_context(RC):
        fig = Canvas(figsize=size)
        plot(fig)
        fig.supxlabel(textwrap.fill(note, 200), fontsize=7, color="#555555", x=0.01, ha="left")
        # Lay out once, not again for each format.
        fig.draw_without_rendering()
        fig.set_layout_engine("none")
        svg, png = io.BytesIO(), io.BytesIO()
        fig.savefig(svg, format="svg", metadata={"Date": None})
        fig.savefig(png, format="png")
    return Figure(name, title, alt, note, data, svg.getvalue(), png.getvalue())
