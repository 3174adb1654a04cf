# SPDX-License-Identifier: GPL-2.0-only
"""Makes the figures of a report: PNG, SVG, and a CSV of the drawn data, in one directory."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas

from ..comparison import CallPaths, call_paths
from ..names import printable, readable
from ..summary import MODE, SlowMessage, Summary, selected
from ..tables.data_frames import cause_names, each
from ..tables.store import write_atomically
from ..units import counted, duration, percent
from . import balloon, causes, cdf, cores, flame, queuing, timeline, timeline_axes
from .style import NOT_SLOWER, RC, UNEXPLAINED, Look, looks

if TYPE_CHECKING:
    from ..capture_tables import CaptureTables

_WIDTH = 11.0
OF_MESSAGES = (
    "first_ns", "latency_ns", "conn_id", "recv_cpu", "app_cpu", "raddr", "rport", "lport", "direction", "request_type"
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """One drawn figure. ``data`` is exactly what is drawn; ``alt`` describes it in words."""

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
        write_atomically(directory / f"{self.name}.csv", csv_text(self.data).encode("utf-8", "replace"))


def csv_text(data: pd.DataFrame) -> str:
    """As CSV, with names as the figure shows them."""
    texts = data.select_dtypes(["object", "string", "category"])
    return data.assign(**{str(name): texts[name].map(readable) for name in texts}).to_csv(index=False)


def _workload(capture: CaptureTables) -> str:
    """The threads with most of the messages."""
    return ", ".join(selected(capture, ["comm"])["comm"].astype(str).value_counts().index[:3])


def caption(capture: CaptureTables, summary: Summary, workload: str) -> str:
    """Host, kernel, workload, coverage and command: the origin of a figure."""
    m = capture.manifest
    coverage = "-" if summary.covered is None else f"{summary.covered.median:.0%} (median)"
    parts = [
        f"host {m.text('host', 'hostname') or 'unknown'}, kernel {m.text('host', 'kernel') or 'unknown'}, mode {MODE[summary.mode]}",
        f"workload {workload or 'none'}, {counted(summary.n, summary.thing)}",
        f"slow {summary.thing}s {summary.slow}, baseline {summary.baseline}, coverage {coverage}",
        f"recorded with: {m.command() or 'unknown'}",
    ]
    return printable("; ".join(parts), 600)


@dataclass
class Sheet:
    """Data shared by the figures of one report. ``messages``: columns ``OF_MESSAGES`` of the diagnosed ones."""

    capture: CaptureTables
    summary: Summary
    messages: pd.DataFrame
    look: dict[str, Look]
    top: str
    note: str
    workload: str

    @classmethod
    def of(cls, capture: CaptureTables, summary: Summary) -> Sheet:
        """For an analysed capture."""
        top = (
            ", ".join(f"{printable(c.cause)} {c.share:.0%}" for c in each(capture.causes.head(3)))
            or "none found"
        )
        workload = _workload(capture)
        note = caption(capture, summary, workload)
        messages = selected(capture, OF_MESSAGES)
        return cls(capture, summary, messages, cause_looks(capture), top, note, workload)

    @cached_property
    def paths(self) -> CallPaths:
        """Call paths of slow and baseline messages, read once."""
        return call_paths(self.capture)


def cause_looks(capture: CaptureTables) -> dict[str, Look]:
    """The look of each cause of a capture, the most important first."""
    names = [str(c) for c in capture.causes["cause"]]  # by total deviation
    names += list(cause_names(capture.anomalies).unique())
    return looks([*names, UNEXPLAINED, NOT_SLOWER])


def draw(capture: CaptureTables, summary: Summary) -> list[Figure]:
    """The figures of a report, in the order of ``DRAWN``: overview first, then single messages."""
    return drawn(Sheet.of(capture, summary))


def drawn(sheet: Sheet) -> list[Figure]:
    """The figures of ``sheet``."""
    return [figure for make in DRAWN for figure in make(sheet)]


def _balloons(sheet: Sheet) -> Iterator[Figure]:
    s = sheet.summary
    rows = balloon.rows(sheet.messages, sheet.capture.coverage, sheet.capture.anomalies)
    yield _figure(
        "balloon", f"Slow {s.thing}s and their causes",
        f"Latency of each of {s.n:,} {s.thing}s in order of arrival; the {s.n_slow:,} slow {s.thing}s are "
        f"balloons coloured by cause. Largest causes: {sheet.top}.",
        sheet.note, rows, (_WIDTH, 5.6), lambda fig: balloon.plot(rows, sheet.look, ax=fig.subplots(), thing=s.thing),
    )  # fmt: skip


def _causes(sheet: Sheet) -> Iterator[Figure]:
    thing = sheet.summary.thing
    names: tuple[tuple[str, causes.By], ...] = (("causes", "deviation"), ("causes-by-messages", "messages"))
    for name, by in names:
        rows = causes.rows(sheet.capture.anomalies, by)
        alt = f"Box plot of the delay that each cause adds to a slow {thing}: {sheet.top}."
        if len(rows) and (by == "deviation" or rows["cause"].nunique() > 1):
            yield _boxes(sheet, name, causes.title_by(by, thing), alt, rows)


def _closer(sheet: Sheet) -> Iterator[Figure]:
    """Details of the largest cause, and of the slowest message."""
    thing = sheet.summary.thing
    for c in each(sheet.capture.causes.head(1)):
        rows = causes.rows_of_cause(sheet.capture.anomalies, str(c.cause))
        if len(rows):
            alt = f"Box plot of what exactly added latency within the largest cause, {printable(c.cause)}."
            yield _boxes(
                sheet, "largest-cause", f"What is behind {printable(c.cause)}", alt, rows, str(c.cause)
            )
    for slow in sheet.summary.slowest[:1]:
        number = int(slow.row["message_id"])
        rows = causes.rows_of_message(sheet.capture.anomalies, number)
        if len(rows):
            title = f"What delayed {thing} {number} (diamonds) beside all slow {thing}s"
            alt = f"What delayed {thing} {number}, each with a box plot of the same in all slow {thing}s."
            yield _boxes(sheet, f"message-{number}-causes", title, alt, rows)


def _boxes(
    sheet: Sheet, name: str, title: str, alt: str, rows: pd.DataFrame, cause: str | None = None
) -> Figure:
    look = sheet.look
    if cause is not None:  # details of one cause have the look of that cause
        look = dict.fromkeys(rows["cause"], look[cause])
    return _figure(
        name, title, alt, sheet.note, rows, (_WIDTH, 1.8 + 0.46 * rows["cause"].nunique()),
        lambda fig: causes.plot(rows, look, ax=fig.subplots(), title=title, thing=sheet.summary.thing),
    )  # fmt: skip


def _distribution(sheet: Sheet) -> Iterator[Figure]:
    s = sheet.summary
    parts = [cdf.rows(sheet.messages, sheet.capture.name)]
    other = sheet.capture.other
    if other is not None:
        parts.append(cdf.rows(selected(other, ["latency_ns"]), f"against {other.name}"))
    rows = pd.concat(parts, ignore_index=True)

    def both(fig: Canvas) -> None:
        left, right = fig.subplots(1, 2)
        cdf.plot(rows, ax=left, thing=s.thing)
        cdf.plot_tail(rows, ax=right, thing=s.thing)

    known = ", ".join(f"p{p:g} {duration(ns)}" for p, ns in s.percentiles.items())
    yield _figure(
        "cdf", "Latency distribution and tail",
        f"Cumulative latency distribution and its tail: {known}, max {duration(s.max_ns)}.",
        sheet.note, rows, (_WIDTH, 4.2), both,
    )  # fmt: skip


def _queuing(sheet: Sheet) -> Iterator[Figure]:
    rows, thing = queuing.rows(sheet.capture.queuing), sheet.summary.thing
    if not len(rows):
        return

    def both(fig: Canvas) -> None:
        above, below = fig.subplots(2, 1, sharex=False)
        queuing.plot_depth(rows, ax=above, thing=thing)
        queuing.plot_delay(rows, ax=below)

    told = "; ".join(
        f"{queue}: {counted(len(more), thing)}, {more.median():g} more ahead in the median, {more.max()} at most"
        for queue, more in rows.groupby("queue", sort=False)["more"]
    )
    yield _figure(
        "queuing", f"Queues ahead of slow {thing}s", f"How many more than usual were ahead of slow {thing}s at each queue. {told}.",
        sheet.note, rows, (_WIDTH, 6.2), both,
    )  # fmt: skip


def _cores(sheet: Sheet) -> Iterator[Figure]:
    rows = cores.rows(sheet.capture.cores)
    if not len(rows):
        return

    def three(fig: Canvas) -> None:
        axes = fig.subplots(1, len(cores.TITLES), sharey=True)
        for role, ax in zip(cores.TITLES, axes, strict=True):
            cores.plot(rows, role, ax=ax, thing=sheet.summary.thing)
        axes[0].set_ylabel("share of the core's time (%)")
        fig.legend(handles=cores.legend(rows), loc="outside right upper", title="context", fontsize=8)

    busy = (
        rows[rows["role"] == "slow"].groupby(["label"])["lifetime_share"].sum().sort_values(ascending=False)
    )
    told = ", ".join(f"{printable(label)} {percent(share)}" for label, share in busy.head(4).items())
    yield _figure(
        "cores", "Contexts on each core",
        f"Share of each core's time by context. Of the slow {sheet.summary.thing}s' lifetimes: {told}. Above a bar: the part of "
        f"the {sheet.summary.thing}s' lifetimes that passed on this core.",
        sheet.note, rows, (_WIDTH, 4.6), three,
    )  # fmt: skip


def _flames(sheet: Sheet) -> Iterator[Figure]:
    paths, thing = sheet.paths, sheet.summary.thing
    rows = flame.rows(paths.stacks)
    if not len(rows):
        return
    size = (_WIDTH, flame.height_inches(rows))
    yield _figure(
        "flame", f"Where the time of slow {thing}s goes",
        f"Flame graph of the mean time of {counted(paths.n_slow, 'slow ' + thing)}: mostly what is always there.",
        sheet.note, rows, size, lambda fig: flame.plot(rows, paths.n_slow, ax=fig.subplots(), thing=thing),
    )  # fmt: skip
    if not paths.n_baseline:
        return
    more = rows[rows["level"] > 0].assign(more=lambda r: r["slow_ns"] - r["baseline_ns"]).nlargest(3, "more")
    longest = ", ".join(f"{printable(r.name, 60)} +{duration(r.more)}" for r in each(more))
    yield _figure(
        "flame-difference", f"What took longer than in baseline {thing}s",
        f"Flame graph of slow {thing}s, coloured by the difference to {counted(paths.n_baseline, 'baseline ' + thing)}. Most: {longest}.",
        sheet.note, rows, size,
        lambda fig: flame.plot(rows, paths.n_slow, ax=fig.subplots(), n_baseline=paths.n_baseline, thing=thing),
    )  # fmt: skip


def _timelines(sheet: Sheet) -> Iterator[Figure]:
    slowest, capture = sheet.summary.slowest, sheet.capture
    drawn = timeline.Timelines(capture.diagnosed_messages.columns(timeline.OF_MESSAGES), capture.anomalies)
    numbers = [int(slow.row["message_id"]) for slow in slowest]
    rows = capture.diagnosed_messages.rows(np.array(numbers)).set_index("message_id").loc[numbers]
    read = capture.lifetimes(numbers, timeline.OF_CALLS)
    for slow, where, lifetime in zip(slowest, capture.intervals(rows), read, strict=True):
        yield _timeline(sheet, slow, timeline.as_table(drawn.parts(slow.row, where, lifetime)))


def _timeline(sheet: Sheet, slow: SlowMessage, rows: pd.DataFrame) -> Figure:
    number, thing = int(slow.row["message_id"]), sheet.summary.thing
    why = ", ".join(f"{printable(c)} +{duration(ns)}" for c, ns in slow.causes[:3]) or "no cause found"
    latency = duration(int(slow.row["latency_ns"]))
    title = f"{thing.capitalize()} {number}: {latency} (usual {duration(slow.baseline_ns)})"
    return _figure(
        f"message-{number}-timeline", title,
        f"What the cores did during the {latency} of {thing} {number}, from its first to its last timestamp. Causes: {why}.",
        sheet.note, rows, (_WIDTH, timeline_axes.height_inches(rows)),
        lambda fig: timeline_axes.plot(rows, title, ax=fig.subplots(), thing=thing),
    )  # fmt: skip


#: Makers of figures, in the order of the report.
DRAWN: tuple[Callable[[Sheet], Iterator[Figure]], ...] = (
    _balloons,
    _causes,
    _distribution,
    _closer,
    _queuing,
    _cores,
    _flames,
    _timelines,
)


def _figure(
    name: str, title: str, alt: str, note: str, data: pd.DataFrame, size: tuple[float, float],
    plot: Callable[[Canvas], object],
) -> Figure:  # fmt: skip
    # Figure without pyplot: no global state, no display, nothing to close.
    with mpl.rc_context(RC):
        fig = Canvas(figsize=size)
        plot(fig)
        for ax in fig.axes:
            for text in ax.texts:
                text.set_in_layout(False)  # all are inside their axes
        fig.supxlabel(textwrap.fill(note, 170), fontsize=7, color="#555555", x=0.01, ha="left")
        # The layout is computed once, and the figure drawn once per format: savefig would draw it twice more for each.
        canvas = FigureCanvasAgg(fig)
        engine = fig.get_layout_engine()
        if engine is not None:
            engine.execute(fig)
        fig.set_layout_engine("none")
        svg, png = io.BytesIO(), io.BytesIO()
        canvas.print_png(png, pil_kwargs={"compress_level": 4})  # a third of the time, and hardly larger
        FigureCanvasSVG(fig).print_svg(svg, metadata={"Date": None})
    return Figure(name, title, alt, note, data, svg.getvalue(), png.getvalue())
