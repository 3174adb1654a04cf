# SPDX-License-Identifier: GPL-2.0-only
"""Control groups whose CPU quota ran out during a recording. No tracepoint shows when, but their counters
show that it happened.

A thread in such a group is ready and does not run, even if its core is idle. Both versions of control groups
are read, as far as the recorder's own mount namespace shows them.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Maximum for one machine; walking this many takes about a second.
_MOST_GROUPS = 20_000
_MOST_PROCESSES = 4096


@dataclass(frozen=True)
class Group:
    """A control group with a quota, and its counters since it was created."""

    quota_us: int
    period_us: int
    times: int
    ns: int


def _hierarchies(root: Path) -> list[Path]:
    """Where control groups with the CPU controller are mounted: version 1 or version 2."""
    try:
        mounts = (root / "proc/self/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in mounts:
        _, place, kind, options, *_ = [*line.split(" "), "", "", "", ""]
        if kind == "cgroup2" or (kind == "cgroup" and "cpu" in options.split(",")):
            found.append(root / place.lstrip("/"))
    return found


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _quota(directory: Path) -> tuple[int, int] | None:
    """Quota and period in us; None without one."""
    try:
        quota, period = (directory / "cpu.max").read_text().split()
        return None if quota == "max" else (int(quota), int(period))
    except OSError:
        pass
    except ValueError:
        return None
    quota_us, period_us = _number(directory / "cpu.cfs_quota_us"), _number(directory / "cpu.cfs_period_us")
    return (quota_us, period_us) if quota_us is not None and quota_us > 0 and period_us else None


def _counters(directory: Path) -> tuple[int, int]:
    """How often it was throttled, and for how many ns on all cores together."""
    try:
        lines = (directory / "cpu.stat").read_text().splitlines()
        told = {name: int(value) for name, value in (line.split() for line in lines)}
    except (OSError, ValueError):
        return 0, 0
    return told.get("nr_throttled", 0), told.get("throttled_time", told.get("throttled_usec", 0) * 1000)


def groups(root: Path) -> dict[Path, Group]:
    """Every control group that has a quota."""
    found: dict[Path, Group] = {}
    seen = 0
    for hierarchy in _hierarchies(root):
        for directory, _, _ in os.walk(hierarchy):
            seen += 1
            if seen > _MOST_GROUPS:
                return found
            quota = _quota(Path(directory))
            if quota:
                found[Path(directory)] = Group(*quota, *_counters(Path(directory)))
    return found


def _processes(directory: Path) -> Iterator[int]:
    """Process numbers of a control group and of the groups below it."""
    for below, _, _ in os.walk(directory):
        try:
            yield from (int(pid) for pid in (Path(below) / "cgroup.procs").read_text().split())
        except (OSError, ValueError):  # removed in the meantime, or a group of threads only
            continue


class Watch:
    """Readings of one machine's control groups: the newest one and the one before."""

    def __init__(self, root: Path, every_s: float = math.inf) -> None:
        self._root = root
        self._every_s = every_s
        self._readings = deque([(time.monotonic(), groups(root))], maxlen=2)

    def tick(self) -> None:
        """Read again when it is time."""
        if time.monotonic() - self._readings[-1][0] >= self._every_s:
            self._readings.append((time.monotonic(), groups(self._root)))

    def told(self) -> list[dict[str, Any]]:
        """``manifest.throttled`` for at least the last ``every_s`` seconds, or since the beginning."""
        return between(self._readings[0][1], groups(self._root))


def between(before: dict[Path, Group], after: dict[Path, Group]) -> list[dict[str, Any]]:
    """``manifest.throttled``: groups that were throttled between two readings, longest throttled first.

    ``pids``: its processes at the second reading. A group that is only in the second reading was created in
    the meantime.
    """
    rows = []
    for directory, now in after.items():
        then = before.get(directory)
        times, ns = now.times - (then.times if then else 0), now.ns - (then.ns if then else 0)
        if times > 0 or ns > 0:
            pids = sorted(
                {pid for pid, _ in zip(_processes(directory), range(_MOST_PROCESSES), strict=False)}
            )
            rows.append(
                {
                    "cgroup": str(directory),
                    "quota_us": now.quota_us,
                    "period_us": now.period_us,
                    "times": max(times, 0),
                    "ns": max(ns, 0),
                    "pids": pids,
                }
            )
    return sorted(rows, key=lambda row: row["ns"], reverse=True)
