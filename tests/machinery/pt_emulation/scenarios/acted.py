# SPDX-License-Identifier: GPL-2.0-only
"""When a cause acted, only from the observer's log."""

from __future__ import annotations

import subprocess
from pathlib import Path

from . import truth
from .base import Cause

Intervals = list[tuple[int, int]]

#: Causes that act while other tasks have the core: for them it does not matter whether the marking task has it.
BY_OTHERS = ("lock", "neighbour")


def intervals(walk: Path, log: Path, kallsyms: Path, cause: Cause) -> Intervals | None:
    """Intervals in TSC; None for a cause that has none in the log. ``walk``: the program pt-walk."""
    if cause.evidence == "excess" or cause.id == "neighbour":
        return None
    if cause.evidence == "functions":
        found = truth._functions(walk, log, truth.read_symbols(kallsyms), cause.symbols)
        return [(a, b) for a, b in found if b - a >= cause.above]
    if cause.evidence == "wake-ups":
        return truth.wake_ups(truth._entries(walk, log, truth.read_symbols(kallsyms)), 0, 0)
    text = subprocess.run([str(walk), "marks", str(log)], check=True, capture_output=True, text=True).stdout
    if cause.id in BY_OTHERS:
        return truth.merged(truth.parse_marks(text).disturbances.get(cause.mark or 0, []))
    return on_core(text, cause.mark or 0)


def on_core(text: str, mark: int) -> Intervals:
    """The parts of each marked interval in which the marking task had the core; ``text``: output of ``pt-walk marks``.

    Here task 0x1 marks, is switched out at 20 for 0x2, and comes back at 50:

    >>> on_core("0\\t10\\tmark\\t18\\t0x4\\t0x0\\n0\\t20\\twatch\\t0xf\\t0x1\\t0x2\\n0\\t50\\twatch\\t0xf\\t0x2\\t0x1\\n"
    ...         "0\\t70\\tmark\\t19\\t0x4\\t0x0\\n", 4)
    [(10, 20), (50, 70)]
    """
    rows = [line.split("\t") for line in text.splitlines()]
    # The first task that is switched out had the core until then.
    running: dict[str, str] = {}
    for row in reversed(rows):
        if row[2] == "watch":
            running[row[0]] = row[4]
    since: dict[str, int] = {}  # task that is within its marks -> when it got the core, -1: it has not
    found: Intervals = []
    for row in rows:
        cpu, tsc = row[0], int(row[1])
        if row[2] == "watch":
            before, after = row[4], row[5]
            if since.get(before, -1) >= 0:
                found.append((since[before], tsc))
                since[before] = -1
            if after in since:
                since[after] = tsc
            running[cpu] = after
        elif row[2] == "mark" and int(row[4], 16) == mark:
            task = running.get(cpu, "")
            if int(row[3]) == truth.BEGIN:
                since[task] = tsc
            elif int(row[3]) == truth.END and task in since:
                if since[task] >= 0:
                    found.append((since[task], tsc))
                del since[task]
    return found
