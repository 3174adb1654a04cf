# SPDX-License-Identifier: GPL-2.0-only
"""The report as one HTML file that needs nothing else: no network, no scripts.

Names in it come from the capture and are escaped by the template engine; a content security
policy forbids everything but the file's own pictures and style, should escaping ever fail.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..frames import each
from ..names import printable
from ..plots.figures import Figure, draw
from ..store import write_atomically, writing
from ..summary import BLIND, GRADE, SlowMessage, Summary, advice, verdict
from ..units import duration, percent
from .terminal import describe

if TYPE_CHECKING:
    from ..api import Capture


def write_report(capture: Capture, summary: Summary, output: Path) -> Path:
    """Write report.html and its figures (SVG, PNG, CSV) to ``output``; returns the page's path.

    Raises OutputError when the disk is full or the directory is not writable.
    """
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
    figures = draw(capture, summary)
    for figure in figures:
        figure.save(output)
    page = output / "report.html"
    write_atomically(page, render(capture, summary, figures).encode("utf-8", "replace"))
    return page


def render(capture: Capture, summary: Summary, figures: list[Figure]) -> str:
    """The page as text."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(duration=_duration, name=printable, percent=percent, picture=_picture)
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
    by_name = {figure.name: figure for figure in figures}
    return environment.get_template("report.html.j2").render(
        capture=capture.path.resolve().name,
        s=summary,
        verdict=verdict(summary),
        losses=list(each(summary.losses)),
        advice=advice(summary.causes),
        grade=GRADE[summary.grade],
        blind=BLIND[summary.grade],
        host={key: value for key, value in host.items() if value},
        stamps=_stamps,
        tools=_tools(m.mapping("tools")),
        overview=[by_name[name] for name in ("balloon", "causes", "cdf") if name in by_name],
        slowest=[
            (slow, describe(slow), by_name.get(f"message-{int(slow.row['message_id'])}-timeline"))
            for slow in summary.slowest
        ],
    )


def _stamps(slow: SlowMessage) -> list[tuple[str, int]]:
    """Name and time of each stamp that was measured, in order of time."""
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


def _picture(figure: Figure) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(figure.svg).decode("ascii")
