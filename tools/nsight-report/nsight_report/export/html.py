# SPDX-License-Identifier: GPL-2.0-only
"""The report as one HTML file that opens offline and requests nothing from the network.

Names in it come from the capture: the template engine escapes them, data is JSON that cannot end its element
(``page_data.embedded``), and the scripts set names as text only. If that should ever fail, a content security policy
allows only the scripts and styles of this package, by their hashes, and forbids every connection.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..errors import BadInput
from ..names import last_callers, printable
from ..plots.figures import Figure, Sheet, drawn
from ..report_text import phase_columns, requests_told, slowest_told
from ..summary import (
    MODE,
    PERCENTILES,
    RECORDED_WITH,
    SlowMessage,
    Summary,
    only_located,
    selected,
    summarise,
)
from ..tables.data_frames import each
from ..tables.store import write_atomically, writing
from ..units import duration, percent, percentile
from . import first_screen, page_data, theme
from .terminal import describe, described

if TYPE_CHECKING:
    from ..capture_tables import CaptureTables

_HERE = Path(__file__).parent
_SCRIPTS = ("vendor/uPlot.iife.js", *(f"page/{name}.js" for name in ("lifetime", "look", "table", "page")))
_BEGIN = "page/begin.js"  # in the head
_STYLES = ("vendor/uPlot.min.css", "page/page.css")
_ROWS = 25  # in the table below a figure; the CSV beside it has all
# The page draws these itself; without scripts, and in print, it shows the pictures.
_DRAWN_BY_THE_PAGE = ("balloon", "causes", "cdf")


def write_report(
    capture: CaptureTables, summary: Summary, output: Path, n_lifetimes: int | None = None
) -> Path:
    """Write report.html and its figures (SVG, PNG, CSV) to ``output``; returns the page's path.

    ``n_lifetimes``: number of messages whose lifetime the page shows, as far as they fit.

    Raises OutputError when the disk is full or the directory is not writable.
    """
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
    sheet = Sheet.of(capture, summary)
    figures = drawn(sheet)
    for figure in figures:
        figure.save(output)
    page = output / "report.html"
    write_atomically(page, render(sheet, figures, n_lifetimes).encode("utf-8", "replace"))
    return page


def render(sheet: Sheet, figures: list[Figure], n_lifetimes: int | None = None) -> str:
    """The page as text; ``n_lifetimes`` as in ``write_report``."""
    environment = Environment(
        loader=FileSystemLoader(_HERE / "page"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(
        duration=_duration,
        name=printable,
        percent=percent,
        cell=_cell,
        dropped=described,
        last_callers=last_callers,
    )
    environment.tests["only_located"] = only_located
    capture, summary = sheet.capture, sheet.summary
    m = capture.manifest
    host = {
        "host": m.text("host", "hostname"),
        "kernel": m.text("host", "kernel"),
        "processor": m.text("host", "cpu_model"),
        "cores": m.text("host", "n_cpus"),
        "clock source": m.text("host", "clocksource"),
        "recorded with": m.command(),
        "stopped by": m.text("stopped_by"),
    }
    begin = _text(_BEGIN)
    scripts, styles = ([_text(name) for name in names] for names in (_SCRIPTS, _STYLES))
    styles.append(theme.stylesheet())
    pictures = {figure.name: theme.picture(figure.svg) for figure in figures}
    data = page_data.overview(sheet)
    overview = page_data.embedded(data)
    # The page stays below its limit: lifetimes get what the rest leaves.
    rest = len(overview) + sum(map(len, pictures.values()))
    room = max(0, min(page_data.MOST_LIFETIME_BYTES, page_data.MOST_BYTES - rest))
    lifetimes = page_data.lifetimes(sheet, n_lifetimes, room)
    timelines = [figure for figure in figures if figure.name.endswith("-timeline")]
    return environment.get_template("report.html.j2").render(
        policy=policy([begin, *scripts], styles),
        begin=begin,
        scripts=scripts,
        styles=styles,
        capture=capture.name,
        s=summary,
        facts=first_screen.facts(sheet),
        answers=first_screen.answers(summary),
        bars=first_screen.bars(sheet),
        colour=lambda cause: first_screen.colour(sheet, str(cause)),
        latencies=first_screen.latencies(summary),
        requests_told=requests_told,
        slowest_told=slowest_told,
        phase_columns=phase_columns,
        losses=list(each(summary.losses)),
        mode=MODE[summary.mode],
        recorded_with=RECORDED_WITH[summary.mode],
        limitations=summary.limitations,
        host={key: value for key, value in host.items() if value},
        stamps=_stamps,
        tools=_tools(m.mapping("tools")),
        rows=_ROWS,
        figures={figure.name: figure for figure in figures},
        pictures=pictures,
        shown=[f for f in figures if f.name not in _DRAWN_BY_THE_PAGE and f not in timelines],
        timelines=timelines,
        slowest=[(slow, describe(slow)) for slow in summary.slowest],
        other=_other(sheet),
        data=overview,
        left_out=page_data.left_out(data, sheet),
        lifetimes=lifetimes,
        room=room // 1_000_000,
        uplot_version=json.loads(_text("vendor/uplot.json"))["version"],
        uplot_licence=_text("vendor/LICENSE.uPlot").strip(),
    )


def policy(scripts: list[str], styles: list[str]) -> str:
    """A content security policy that allows these scripts and styles, pictures in the file, and nothing else."""

    def hashes(texts: list[str]) -> str:
        made = (base64.b64encode(hashlib.sha256(t.encode()).digest()).decode("ascii") for t in texts)
        return " ".join(f"'sha256-{digest}'" for digest in made)

    return (
        f"default-src 'none'; script-src {hashes(scripts)}; style-src {hashes(styles)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _other(sheet: Sheet) -> dict[str, Any] | None:
    """The capture that this one is compared with: its name, its summary, and the difference in words."""
    other = sheet.capture.other
    if other is None:
        return None
    ours = sheet.summary
    latencies = selected(other, ["latency_ns"])["latency_ns"].to_numpy()
    there = {p: ns for p in PERCENTILES if (ns := percentile(latencies, p)) is not None}
    parts = [
        f"p{p:g} {duration(ns)} ({duration(there[p])} there)"
        for p, ns in ours.percentiles.items()
        if p in there
    ]
    words = f"Latency here: {', '.join(parts) or 'too few messages for percentiles'}."
    mine = set(ours.causes["cause"].astype(str))
    try:
        theirs = summarise(other.diagnosed())
    except BadInput as error:
        # Compared with itself, a slice of the same percentiles as the slow messages leaves no baseline.
        return {
            "name": printable(other.name),
            "summary": None,
            "words": f"{words} Its own causes are unknown: {error}.",
        }
    gone = [c for c in theirs.causes["cause"].astype(str) if c not in mine][:3]
    if gone:
        words += f" Causes there that are none here: {', '.join(printable(c) for c in gone)}."
    return {"name": printable(other.name), "summary": theirs, "words": words}


def _text(name: str) -> str:
    return (_HERE / name).read_text("utf-8")


def _stamps(slow: SlowMessage) -> list[tuple[str, int]]:
    """Name and time of each measured timestamp, in time order."""
    names = ("nic", "arrival", "handoff", "call", "app", "driver", "completion")
    found = [(name, slow.row[f"{name}_ns"]) for name in names]
    return sorted(((name, int(ns)) for name, ns in found if not pd.isna(ns)), key=lambda item: item[1])


def _tools(tools: dict[str, Any]) -> dict[str, str]:
    """Tool name to its version and command line."""
    found = {}
    for name, entry in tools.items():
        if isinstance(entry, dict):
            argv = entry.get("argv")
            line = " ".join(str(a) for a in argv) if isinstance(argv, list) else ""
            found[name] = f"{entry.get('version', '')} {line}".strip()
    return found


def _duration(ns: object) -> str:
    return duration(None if ns is None else int(ns))  # type: ignore[call-overload]


def _cell(value: object) -> str:
    if pd.isna(value):  # type: ignore[call-overload]
        return ""
    return f"{value:.6g}" if isinstance(value, float) else printable(value, 120)
