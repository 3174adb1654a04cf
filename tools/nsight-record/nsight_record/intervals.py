# SPDX-License-Identifier: GPL-2.0-only
"""``--interval``: from one mark of a program to another, or from when a timer was due. Needs recorder bpf."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import Usage

#: As tools/bpf/record.h has it.
MOST = 16
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_WORD = r"[^:,\s]+?"
_KEYS = r"arg\d+(?:\.\.arg\d+)*"
_MARKS = re.compile(
    rf"(?:(?P<name>[^=:/]+)=)?(?:usdt:(?P<usdt>.+):(?P<provider>{_WORD})|uprobe:(?P<uprobe>.+)):"
    rf"(?P<begin>{_WORD})\.\.(?:(?P<handover>{_WORD})\.\.)?(?P<end>{_WORD})(?:,(?P<keys>{_KEYS}))?"
)
_TIMER = re.compile(r"(?:(?P<name>[^=:/]+)=)?timer:(?P<of>[^\s:/]{1,15})")
_HINT = (
    "write usdt:FILE:PROVIDER:MARK..MARK, uprobe:FILE:FUNCTION..FUNCTION (with ,argN after it if that argument is the key) or "
    "timer:PID|THREAD, with NAME= before it if you like"
)
_COUNTED = ("begun", "again", "alone", "unpaired")
_COUNTS = re.compile(r"^interval (\d+) (\d+) (\d+) (\d+) (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Interval:
    """One kind of intervals; ``spec`` is in nsight-collect's form."""

    name: str
    spec: str

    @staticmethod
    def parse(text: str) -> Interval:
        """Parses what the user wrote, and finds the program on PATH. Raises Usage."""
        if timer := _TIMER.fullmatch(text):
            return Interval(_named(timer["name"] or f"timer-{timer['of']}", text), f"timer:{timer['of']}")
        found = _MARKS.fullmatch(text)
        if not found:
            raise Usage(f"--interval {text}: not understood", _HINT)
        given = found["usdt"] or found["uprobe"]
        path = given if "/" in given and Path(given).is_file() else shutil.which(given)
        if path is None:
            raise Usage(f"--interval {text}: {given}: no such program or library", "give its path")
        marks = [found["begin"], *([found["handover"]] if found["handover"] else []), found["end"]]
        if found["keys"] and found["keys"].count("..") not in (0, len(marks) - 1):
            raise Usage(
                f"--interval {text}: {found['keys']} does not fit {len(marks)} marks",
                "name one key, or one for each mark",
            )
        where = (
            f"usdt:{Path(path).resolve()}:{found['provider']}"
            if found["usdt"]
            else f"uprobe:{Path(path).resolve()}"
        )
        name = _named(found["name"] or _between(found["begin"], found["end"]), text)
        return Interval(name, f"{where}:{'..'.join(marks)}" + (f",{found['keys']}" if found["keys"] else ""))


def _named(name: str, text: str) -> str:
    if not _NAME.fullmatch(name):
        raise Usage(f"--interval {text}: {name!r} is not a valid name", "use up to 64 of A-Z a-z 0-9 _ . -")
    return name


def _between(begin: str, end: str) -> str:
    """NAME if the marks are called NAME_begin and NAME_end; else both names.

    >>> _between("order_begin", "order_end"), _between("malloc", "free")
    ('order', 'malloc..free')
    """
    name = begin.removesuffix("_begin")
    return name if name != begin and end == f"{name}_end" else f"{begin}..{end}"


def parse(texts: Sequence[str]) -> list[Interval]:
    """Parses all ``--interval`` options. Raises Usage."""
    found = [Interval.parse(text) for text in texts]
    names = [interval.name for interval in found]
    if len(set(names)) < len(names):
        raise Usage("--interval: two intervals of one name", "put another name before one of them: NAME=...")
    if len(found) > MOST:
        raise Usage(f"--interval: more than {MOST}", "record them one after the other")
    return found


def argv(intervals: Sequence[Interval]) -> list[str]:
    """Options of nsight-collect."""
    return [word for interval in intervals for word in ("--interval", interval.spec)]


def told(intervals: Sequence[Interval], log: Path | None = None) -> list[dict[str, Any]]:
    """For the manifest: each interval by its number; with the ``log`` of nsight-collect also its counts."""
    rows: list[dict[str, Any]] = [{"name": interval.name, "spec": interval.spec} for interval in intervals]
    try:
        counted = _COUNTS.findall(log.read_text(errors="replace")) if log else []
    except OSError:
        counted = []
    for number, *counts in counted:
        if int(number) < len(rows):
            rows[int(number)] |= dict(zip(_COUNTED, map(int, counts), strict=True))
    return rows
