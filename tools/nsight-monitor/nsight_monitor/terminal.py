# SPDX-License-Identifier: GPL-2.0-only
"""Tables for a terminal: line after line, or one table that is redrawn at each interval."""

from __future__ import annotations

import os
import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .histogram import PERCENTILES, Histogram, bounds_text, text
from .names import plain
from .snapshots import Header, Window
from .views import NO_STAMP, Row, View

_LABELS = [*(f"p{p / 100:g}" for p in PERCENTILES), "max"]
_DEAREST = ("max", "p99", "p50", "p99.9", "p90", "p99.99")
_NUMBERS, _COLUMN = f"{'count':>10}  {'mean':>7}", 15
_SPARKS = "▁▂▃▄▅▆▇█"
_HISTORY = 20
_CLEAR = "\x1b[H\x1b[2J"


def table(rows: Sequence[Row], width: int | None = None) -> Iterator[str]:
    """One line for each row; percentiles as the bounds of their bucket, "-" if there are too few latencies.

    ``width``: characters of the terminal. Columns that do not fit are left out; p99 and max are the last to
    go.
    """
    grouped = any(r.group for r in rows)
    stage = max([len("stage"), *(len(r.stage) for r in rows)])
    group = max([len("group"), *(len(r.group) for r in rows)]) + 2 if grouped else 0
    shown = list(range(len(_LABELS)))
    if width is not None:
        group = min(group, max(width // 4, len("  group")))
        n = max((width - stage - group - len(_NUMBERS)) // _COLUMN, 1)
        shown = sorted(map(_LABELS.index, _DEAREST[:n]))
    yield f"{'stage':{stage}}{'  group' if grouped else '':{group}}{_NUMBERS}" + "".join(
        f"{_LABELS[i]:>{_COLUMN}}" for i in shown
    )
    for row in rows:
        h = row.histogram
        of = f"  {row.group}"[:group] if grouped else ""
        values = [bounds_text(h.percentile(p)) for p in PERCENTILES] + [bounds_text(h.largest())]
        yield f"{row.stage:{stage}}{of:{group}}{h.count:>10}  {text(h.mean_ns):>7}" + "".join(
            f"{values[i]:>{_COLUMN}}" for i in shown
        )


def remarks(view: View) -> Iterator[str]:
    """What was not measured, and why not."""
    c = view.counts
    without = {k.removeprefix(NO_STAMP): n for k, n in c.items() if k.startswith(NO_STAMP) and n}
    known = c.get("stamp_sender_driver", 0) + c.get("stamp_kernel", 0)
    if without:
        lost, all_ = sum(without.values()), sum(without.values()) + known
        reasons = ", ".join(f"{k} {n}" for k, n in sorted(without.items()))
        yield f"{lost} of {all_} packets without a receive stamp ({reasons}): measured from the receive probe on"
    rest = {k: n for k, n in c.items() if n and "stamp" not in k}
    if rest:
        yield "also: " + ", ".join(f"{k.replace('_', ' ')} {n}" for k, n in sorted(rest.items()))
    if view.missed:
        by = ", ".join(f"{p.removeprefix('on_')} {n}" for p, n in sorted(view.missed_by.items()) if n)
        yield f"{view.missed} runs of the programs were left out by the kernel{f' ({by})' if by else ''}"


def block(view: View) -> str:
    """An interval in text mode."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(view.realtime_ns / 1e9))
    lines = [f"{when}  {view.duration_ns / 1e9:.1f} s", *table(view.rows), *remarks(view)]
    return "\n".join(lines) + "\n"


def stages(header: Header) -> str:
    """Which stages this kernel has, which are measured only if named, and what is missing for the others."""
    width = max(len(s.name) for s in header.stages)
    lines = []
    for s in header.stages:
        has = "no" if s.missing else "yes" if s.measured else "by name"
        lines.append(f"{s.name:{width}}  {has:7}  from: {s.begin}; to: {s.end}")
        if s.missing:
            lines.append(f"{'':{width}}           needs {s.missing}")
    return "\n".join(lines)


def window(of: Window, directory: str | None) -> str:
    """The content of a flight recorder's window, slowest first, and how to find the cause."""
    slowest = sorted(of.slow, key=lambda s: -s.ns)
    what = ", ".join(f"{plain(s.stage)} {text(s.ns)}" for s in slowest[:3])
    more = f" and {len(slowest) - 3} more" if len(slowest) > 3 else ""
    return f"window: {what}{more}: nsight-report {plain(str(Path(directory or '.', of.name)))}"


class Screen:
    """Like ``block``, drawn in place, slowest first, with the history of p99 in each line. ``has_keys``: the
    first line says which."""

    def __init__(self) -> None:
        self.has_keys = False
        self._orders = deque(_ORDERS)
        self._history: dict[tuple[str, str], deque[int]] = {}
        self._notes: deque[str] = deque(maxlen=3)

    def note(self, line: str) -> None:
        """Show this line at the end of the screen from now on."""
        self._notes.append(line)

    def sort_by_next(self) -> None:
        """From now on."""
        self._orders.rotate(-1)

    def remember(self, view: View) -> None:
        """Each view once: for the history."""
        seen = {(r.stage, r.group): _tail(r.histogram) for r in view.rows}
        for key in self._history.keys() | seen.keys():
            self._history.setdefault(key, deque(maxlen=_HISTORY)).append(seen.get(key, 0))
        self._history = {k: h for k, h in self._history.items() if k in seen or any(h)}

    def draw(self, view: View, size: os.terminal_size | None, paused: bool = False) -> str:
        """The text for a terminal of this size, whose lines are not wrapped; None: plain text for a file."""
        order = self._orders[0]
        rows = sorted(view.rows, key=_ORDERS[order])
        head, *lines = table(rows, size.columns if size else None)
        space = size.columns - len(head) - 2 if size else _HISTORY
        lines = [
            f"{line}  {self._sparks((r.stage, r.group), space)}" for line, r in zip(lines, rows, strict=True)
        ]
        when = time.strftime("%H:%M:%S", time.localtime(view.realtime_ns / 1e9))
        top = f"nsight-monitor  {when}  {view.duration_ns / 1e9:.1f} s  "
        if self.has_keys:
            top += f"{'paused  ' if paused else ''}by {order}; keys: s sort, space pause, q end"
        else:
            top += "slowest first; Ctrl-C ends"
        head, after = f"{head}  p99 so far", [*remarks(view), *self._notes]
        if not size:
            return "\n".join([top, head, *lines, *after]) + "\n\n"
        after = [part for line in after for part in textwrap.wrap(line, size.columns)]
        # The cursor is below the last line; one line shows how many rows are hidden.
        room = max(size.lines - len(after) - 4, 1)
        more = [f"... {len(lines) - room} more"] if len(lines) > room else []
        screen = [top, head, *lines[:room], *more, *after][: max(size.lines - 1, 1)]
        return _CLEAR + "\n".join(line[: size.columns] for line in screen) + "\n"

    def _sparks(self, key: tuple[str, str], most: int) -> str:
        """The newest ones."""
        history = self._history.get(key) or [0]
        low, high = min(history), max(history)
        sparks = "".join(_SPARKS[(value - low) * 7 // max(high - low, 7)] for value in history)
        return sparks[max(len(sparks) - max(most, 0), 0) :]


def _tail(histogram: Histogram) -> int:
    """Number of p99's bucket, or of the largest latency's if there are too few."""
    bounds = histogram.percentile(9900) or histogram.largest()
    return bounds.low.bit_length() if bounds else 0


def _largest(histogram: Histogram) -> int:
    bounds = histogram.largest()
    return bounds.low if bounds else 0


#: What the live table is sorted by. Rows come in the order of their stages.
_ORDERS: dict[str, Callable[[Row], tuple[float, ...]]] = {
    "p99": lambda r: (-_tail(r.histogram), -r.histogram.mean_ns),
    "max": lambda r: (-_largest(r.histogram), -r.histogram.mean_ns),
    "mean": lambda r: (-r.histogram.mean_ns,),
    "count": lambda r: (-r.histogram.count,),
    "stage": lambda r: (),
}
