# SPDX-License-Identifier: GPL-2.0-only
"""The figures of the case study from its captures: the tails of all iterations in one, and each iteration's causes.

    make case-study STORY=memcached
    PYTHONPATH=tools/nsight-report python Documentation/examples/case_study.py build/case-study/memcached figures [PORT]

Writes tails.png, and of each iteration NAME-balloons.png, NAME-causes.png and NAME-slowest.png, each with a CSV of what
is drawn; prints the figures that Documentation/case-study.md quotes from the reports.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import nsight_report
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from nsight_report.plots import balloon, causes, cdf, timeline, timeline_axes
from nsight_report.plots.figures import cause_looks
from nsight_report.plots.style import RC
from nsight_report.summary import selected
from nsight_report.units import percentile

US = 1_000  # all times are ns


def save(path: Path, rows: pd.DataFrame, height: float, draw: Callable[[Figure], object]) -> None:
    """Draw ``rows`` in the report's style; the CSV beside the picture is what is drawn."""
    with rc_context(RC):
        figure = Figure(figsize=(11, height))
        draw(figure)
        figure.savefig(path.with_suffix(".png"))
    rows.to_csv(path.with_suffix(".csv"), index=False)


def tails(captures: dict[str, nsight_report.Capture], directory: Path) -> None:
    """Distribution and tail of every iteration (Figs. 1 and 17 of the paper)."""
    rows = pd.concat([cdf.rows(selected(capture), name) for name, capture in captures.items()])

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        cdf.plot(rows, ax=left)
        cdf.plot_tail(rows, ax=right)

    save(directory / "tails", rows, 4.2, draw)


def iteration(name: str, capture: nsight_report.Capture, directory: Path) -> None:
    """Balloons (Fig. 3), causes (Fig. 13) and the lifetime of the slowest message (Fig. 5) of one iteration."""
    look = cause_looks(capture)
    rows = balloon.rows(selected(capture), capture.coverage, capture.anomalies)
    save(directory / f"{name}-balloons", rows, 5.6, lambda f: balloon.plot(rows, look, ax=f.subplots()))
    boxes = causes.rows(capture.anomalies)
    if len(boxes):
        height = 1.8 + 0.46 * boxes["cause"].nunique()
        save(directory / f"{name}-causes", boxes, height, lambda f: causes.plot(boxes, look, ax=f.subplots()))
    if not len(capture.coverage):
        return
    slowest = int(capture.coverage.sort_values("latency_ns")["message_id"].iloc[-1])
    message = capture.message(slowest)
    life = timeline.rows(capture, slowest)
    height = timeline_axes.height_inches(life)
    title = f"{name}: message {slowest}, {message['latency_ns'] / US:,.0f} us"
    save(
        directory / f"{name}-slowest",
        life,
        height,
        lambda f: timeline_axes.plot(life, title, ax=f.subplots()),
    )


def table(captures: dict[str, nsight_report.Capture]) -> pd.DataFrame:
    """A row an iteration: messages, percentiles in us, and the causes that add most with their share."""
    found = []
    for name, capture in captures.items():
        latency = selected(capture)["latency_ns"].to_numpy(dtype="int64")
        first = capture.causes.head(3)
        told = ", ".join(f"{c} {share:.0%}" for c, share in zip(first["cause"], first["share"])) or "none"
        at = [(percentile(latency, p) or 0) / US for p in (50, 90, 99)]  # the report's own, by rank
        found.append([name, len(latency), *at, told])
    return pd.DataFrame(found, columns=["iteration", "messages", "p50_us", "p90_us", "p99_us", "causes"])


def main(story: str, output: str, port: str | None = None) -> None:
    """Draw all iterations that ``story`` (a directory of captures) holds, in the order of their names."""
    directory = Path(output)
    directory.mkdir(parents=True, exist_ok=True)
    options = {} if port is None else {"port": int(port)}
    captures = {p.stem: nsight_report.open(str(p), **options) for p in sorted(Path(story).glob("*.nsight"))}
    if not captures:
        sys.exit(f"error: {story}: no capture (*.nsight)\nhint: make case-study records them")
    tails(captures, directory)
    for name, capture in captures.items():
        iteration(name, capture, directory)
    print(table(captures).round(1).to_string(index=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
