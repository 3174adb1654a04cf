# SPDX-License-Identifier: GPL-2.0-only
"""The lines that nsight-histograms prints: first the stages, then the sums since it began, again and again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from nsight_record.errors import RecordError

from .histogram import N_BUCKETS, Histogram

FORMAT = 1
#: Maximum bytes of a line; a line with 4,096 groups has some MiB.
MOST_LINE = 64 << 20
#: Maximum characters of a window's name; OpenMetrics exemplars allow at most 128 characters.
MOST_NAME = 64
_U64 = 1 << 64
#: Slow latencies that no window of the flight recorder contains.
WITHOUT_WINDOW = "slow_without_window"
#: Groups with a special meaning, as in stages.h; without grouping everything is in the first one.
OTHER, NONE = 0, 1


class BadLine(RecordError):
    """The line is not in nsight-histograms' format."""


@dataclass(frozen=True)
class Stage:
    """``missing``: what the kernel lacks for it, "" if nothing. ``measured``: it was also selected."""

    name: str
    begin: str
    end: str
    missing: str
    measured: bool


@dataclass(frozen=True)
class Header:
    """``group_by``: port, comm, cgroup, netns, iface; "": nothing is grouped. ``began_ns``: when every count
    was 0, on the real-time clock; 0: not known."""

    group_by: str
    stages: tuple[Stage, ...]
    began_ns: int = 0


@dataclass(frozen=True)
class Snapshot:
    """Sums since the beginning.

    ``histograms`` by stage and group; ``ended`` by stage: of all groups that ended and are no longer in
    ``histograms``. ``groups``: the meaning of a group's number (a port, a name, the number
    of a cgroup, a namespace, or interface | namespace << 32). ``group_began_ns``: like ``Header.began_ns``, for
    groups that began later. ``counts``: of packets and reads without a
    time, by reason. ``missed``: runs that the kernel skipped; ``missed_by`` program, if it is known. ``last``: the final one.
    """

    monotonic_ns: int
    realtime_ns: int
    last: bool
    histograms: dict[tuple[str, int], Histogram]
    groups: dict[int, str | int]
    counts: dict[str, int]
    missed: int
    missed_by: dict[str, int] = field(default_factory=dict)
    cost: dict[str, dict[str, int]] = field(default_factory=dict)
    ended: dict[str, Histogram] = field(default_factory=dict)
    group_began_ns: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Slow:
    """A latency that reached its stage's trigger. ``monotonic_ns``, ``realtime_ns``: its end on both clocks."""

    stage: str
    group: int
    ns: int
    monotonic_ns: int
    realtime_ns: int


@dataclass(frozen=True)
class Window:
    """``name``: name of a flight recorder's window, a directory. ``slow``: latencies that end within it.
    ``n``: its number since the monitor began, from 1; a reader that connects late gets only the last windows.
    0: not known."""

    name: str
    slow: tuple[Slow, ...]
    n: int = 0


@dataclass(frozen=True)
class GivenNames:
    """Names of groups by number, found by a process with more privileges."""

    names: dict[int, str]


@dataclass(frozen=True)
class Restarts:
    """How often the exporter was killed and started again."""

    n: int


Line = Snapshot | Window | Slow | GivenNames | Restarts


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _U64:
        raise ValueError(f"{value!r} is no count")
    return value


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > 256:
        raise ValueError(f"{value!r:.80} is no name")
    return value


def _histogram(row: dict[str, Any]) -> tuple[tuple[str, int], Histogram]:
    n = [0] * N_BUCKETS
    for bucket, count in row["n"].items():
        at = int(bucket)
        if not 0 <= at < N_BUCKETS:
            raise ValueError(f"there is no bucket {at}")
        n[at] = _number(count)
    return (_text(row["stage"]), _number(row["group"])), Histogram(tuple(n), _number(row["sum_ns"]))


def _without_window(row: dict[str, Any]) -> list[tuple[str, Any]]:
    """The count of the process that hands slow latencies to the flight recorder, if there is one."""
    return [(WITHOUT_WINDOW, row[WITHOUT_WINDOW])] if WITHOUT_WINDOW in row else []


def _slow(row: dict[str, Any]) -> Slow:
    numbers = (_number(row[name]) for name in ("group", "ns", "monotonic_ns", "realtime_ns"))
    return Slow(_text(row["stage"]), *numbers)


def header(line: str) -> Header:
    """Parses the first line. Raises BadLine."""
    row = _parsed(line)
    try:
        if row["format"] != FORMAT or row["n_buckets"] != N_BUCKETS:
            raise ValueError("another version wrote it")
        stages = tuple(
            Stage(
                _text(s["name"]), _text(s["from"]), _text(s["to"]), _text(s["missing"]), bool(s["measured"])
            )
            for s in row["stages"]
        )
        return Header(_text(row["group_by"]), stages, _number(row.get("began_ns", 0)))
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise BadLine(f"the first line is not of nsight-histograms: {_why(e)}", _HINT) from None


def snapshot(line: str) -> Snapshot:
    """The sums of a line. Raises BadLine."""
    found = other(line)
    if not isinstance(found, Snapshot):
        raise BadLine("a line has no sums", _HINT)
    return found


def other(line: str) -> Line:
    """Parses any line but the first. Raises BadLine."""
    row = _parsed(line)
    try:
        if "slow" in row:
            return _slow(row["slow"])
        if "window" in row:
            window = row["window"]
            if len(_text(window["name"])) > MOST_NAME:
                raise ValueError("no name of a window is so long")
            return Window(window["name"], tuple(map(_slow, window["slow"])), _number(window.get("n", 0)))
        if "names" in row:
            return GivenNames({int(n): _text(name) for n, name in row["names"].items()})
        if "exporter_restarts" in row:
            return Restarts(_number(row["exporter_restarts"]))
        return Snapshot(
            monotonic_ns=_number(row["monotonic_ns"]),
            realtime_ns=_number(row["realtime_ns"]),
            last=bool(row["last"]),
            histograms=dict(map(_histogram, row["histograms"])),
            groups={int(n): key if type(key) is int else _text(key) for n, key in row["groups"].items()},
            counts={_text(name): _number(n) for name, n in [*row["counts"].items(), *_without_window(row)]},
            missed=_number(row["missed"]),
            missed_by={_text(p): _number(n) for p, n in row.get("missed_by", {}).items()},
            cost={
                _text(p): {_text(k): _number(n) for k, n in v.items()} for p, v in row.get("cost", {}).items()
            },
            ended={
                stage: h for (stage, _), h in (_histogram(r | {"group": OTHER}) for r in row.get("ended", ()))
            },
            group_began_ns={int(n): _number(ns) for n, ns in row.get("group_began_ns", {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise BadLine(f"a line is not of nsight-histograms: {_why(e)}", _HINT) from None


_HINT = "the input is what nsight-histograms or nsight-monitor --json prints, from the first line on"


def _why(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)


def _parsed(line: str) -> dict[str, Any]:
    if len(line) > MOST_LINE:
        raise BadLine("a line is too long", _HINT)
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise BadLine("a line is no JSON", _HINT) from None
    if type(row) is not dict:
        raise BadLine("a line is no JSON object", _HINT)
    return row


def read(lines: Iterable[str]) -> tuple[Header, Iterator[Line]]:
    """The header, and the other lines as they come. A truncated last line, as after a crash, ends them.
    Raises BadLine."""
    every = iter(lines)
    first = next(every, "")
    if not first:
        raise BadLine("the input is empty", _HINT)
    return header(first), (other(line) for line in every if line.endswith("\n"))
