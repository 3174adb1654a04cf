# SPDX-License-Identifier: GPL-2.0-only
"""A temporary control group (version 1 or 2) with a CPU quota."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from nsight_demo.processes import BedError


def hierarchy(controller: str, of_v1: str = "") -> tuple[Path, bool]:
    """Where groups with ``controller`` (or its name in version 1, if different) can be made, and whether it is version 2."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup" and (of_v1 or controller) in options.split(","):
            return Path(place), False
        if kind == "cgroup2" and controller in (Path(place) / "cgroup.controllers").read_text().split():
            (Path(place) / "cgroup.subtree_control").write_text(f"+{controller}")
            return Path(place), True
    raise BedError(f"no control groups with controller {controller} are mounted")


class Group:
    """A control group whose processes have a limited share of a core in each period."""

    def __init__(self, directory: Path, root: Path) -> None:
        self._directory = directory
        self._root = root

    @property
    def statistics(self) -> Path:
        """Its cpu.stat."""
        return self._directory / "cpu.stat"

    @property
    def own_statistics(self) -> Path:
        """Its cpu.stat.local, from Linux 6.6 on: it excludes times in which the group was throttled but none of its threads was ready."""
        return self._directory / "cpu.stat.local"

    def add(self, pid: int) -> None:
        """Add every thread of a process, with normal priority from now on: a quota does not count other priorities."""
        for task in os.listdir(f"/proc/{pid}/task"):
            if os.sched_getscheduler(int(task)) in (os.SCHED_FIFO, os.SCHED_RR):
                os.sched_setscheduler(int(task), os.SCHED_OTHER, os.sched_param(0))
        (self._directory / "cgroup.procs").write_text(f"{pid}\n")

    def counts(self) -> dict[str, int]:
        """Periods in which it was throttled (``nr_throttled``), and for how long (``throttled_usec``), in either version's cpu.stat."""
        told = dict(line.split() for line in self.statistics.read_text().splitlines())
        return {"nr_throttled": int(told["nr_throttled"]), "throttled_usec": self.throttled_ns() // 1000}

    def throttled_ns(self) -> int:
        """How long its threads were throttled; the value grows when a throttled time ends."""
        return _throttled_ns(self.statistics)

    def kept_ns(self) -> int:
        """How long the quota throttled its own runnable threads (`own_statistics`)."""
        return _throttled_ns(self.own_statistics)

    def empty(self) -> None:
        """Remove the quota from its processes."""
        for pid in (self._directory / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (self._root / "cgroup.procs").write_text(pid)


def _throttled_ns(statistics: Path) -> int:
    told = dict(line.split() for line in statistics.read_text().splitlines())
    return int(told["throttled_time"]) if "throttled_time" in told else int(told["throttled_usec"]) * 1000


@contextlib.contextmanager
def quota(quota_us: int, period_us: int) -> Iterator[Group]:
    """A new group; at the end its processes are moved to the root."""
    root, is_v2 = hierarchy("cpu")
    directory = root / f"nsight-test-{os.getpid()}"
    directory.mkdir()
    group = Group(directory, root)
    try:
        if is_v2:
            (directory / "cpu.max").write_text(f"{quota_us} {period_us}")
        else:
            (directory / "cpu.cfs_period_us").write_text(str(period_us))
            (directory / "cpu.cfs_quota_us").write_text(str(quota_us))
        yield group
    finally:
        group.empty()
        directory.rmdir()
