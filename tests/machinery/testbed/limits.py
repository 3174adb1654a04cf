# SPDX-License-Identifier: GPL-2.0-only
"""Temporary control groups (version 1 or 2) that limit disk writes per second or memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from .quota import hierarchy


@contextlib.contextmanager
def _limited(root: Path, name: str, limits: dict[str, str]) -> Iterator[Path]:
    """The ``cgroup.procs`` of a new group with ``limits`` (by file); at the end its processes are moved to the root."""
    group = root / f"nsight-test-{os.getpid()}-{name}"
    group.mkdir()
    try:
        for file, limit in limits.items():
            (group / file).write_text(f"{limit}\n")
        yield group / "cgroup.procs"
    finally:
        for member in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (root / "cgroup.procs").write_text(member)
        group.rmdir()


@contextlib.contextmanager
def slow_disk(pid: int, path: Path, writes_per_s: int) -> Iterator[None]:
    """Limit the writes of ``pid`` on the disk that contains ``path``."""
    root, is_v2 = hierarchy("io", "blkio")
    # For a partition, the limit is set on its disk.
    number = os.stat(path).st_dev
    place = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    disk = ((place.parent if (place / "partition").exists() else place) / "dev").read_text().strip()
    name, limit = ("io.max", "wiops=") if is_v2 else ("blkio.throttle.write_iops_device", "")
    with _limited(root, "disk", {name: f"{disk} {limit}{writes_per_s}"}) as members:
        members.write_text(f"{pid}\n")
        yield


@contextlib.contextmanager
def memory_group(nbytes: int) -> Iterator[Path]:
    """A file: a process whose number is written there has this much memory, page cache included, for what it touches from then on."""
    root, is_v2 = hierarchy("memory")
    with _limited(
        root, "memory", {"memory.max" if is_v2 else "memory.limit_in_bytes": str(nbytes)}
    ) as members:
        yield members


@contextlib.contextmanager
def little_memory(pid: int, nbytes: int) -> Iterator[None]:
    """Put ``pid`` into such a group."""
    with memory_group(nbytes) as members:
        members.write_text(f"{pid}\n")
        yield
