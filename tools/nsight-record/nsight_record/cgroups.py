# SPDX-License-Identifier: GPL-2.0-only
"""Control groups: where they are mounted, and which one a user's name means."""

from __future__ import annotations

from pathlib import Path

from .errors import Usage


def root(mounts: Path = Path("/proc/self/mounts")) -> Path | None:
    """Where version 2 is mounted."""
    for line in mounts.read_text(errors="replace").splitlines():
        fields = line.split()
        if len(fields) > 2 and fields[2] == "cgroup2":
            return Path(fields[1])
    return None


def directory(path: str) -> Path:
    """The version 2 group at this path, absolute or below /sys/fs/cgroup. Raises Usage."""
    found = Path(path)
    if not found.is_absolute() or not found.exists():
        found = Path("/sys/fs/cgroup") / path.lstrip("/")
    if not (found / "cgroup.procs").exists():
        raise Usage(f"--cgroup {path}: no such cgroup", "give a directory below /sys/fs/cgroup")
    if not (found / "cgroup.controllers").exists():
        raise Usage(
            f"--cgroup {path}: a cgroup of version 1, which has no socket filter",
            "filter with --pid or --port",
        )
    return found
