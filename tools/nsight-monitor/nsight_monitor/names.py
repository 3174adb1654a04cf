# SPDX-License-Identifier: GPL-2.0-only
"""Names for the numbers of groups: containers, services or paths for cgroups, and names for network
namespaces and interfaces."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from nsight_record import netns
from nsight_record.errors import RecordError

from . import containers
from .snapshots import NONE, OTHER, Snapshot

MOUNTS = Path("/proc/self/mounts")
#: Maximum characters of a name: readers of the lines refuse longer texts, and a user who may create cgroups
#: can choose any path.
MOST_NAME = 200


def plain(name: str) -> str:
    """A process can give itself any name: control characters must not reach a terminal."""
    return "".join(c if c.isprintable() else "?" for c in name)


def _labels() -> dict[int, str]:
    """Names of network namespaces by number; the namespace of this process needs none."""
    return {n.inum: n.label for n in netns.named()} | {netns.current().inum: ""}


def _interface(key: int) -> str:
    index, space = key & 0xFFFFFFFF, key >> 32
    label = _labels().get(space, str(space))
    try:
        name = str(netns.call_in(netns.find(str(space)), socket.if_indextoname, index))
    except (OSError, RecordError):
        name = str(index)
    return f"{label}/{name}" if label else name


def _namespace(key: int) -> str:
    return _labels().get(key, str(key)) or "(this)"


def cgroup_root() -> Path:
    """Where version 2 control groups are mounted; on a machine with both versions that is not /sys/fs/cgroup."""
    fields = (line.split() for line in MOUNTS.read_text().splitlines())
    return next((Path(f[1]) for f in fields if len(f) > 2 and f[2] == "cgroup2"), Path("/sys/fs/cgroup"))


def cgroups(root: Path) -> dict[int, str]:
    """Paths by number, which is the directory's inode number."""
    found = {}
    for directory, below, _ in os.walk(root):
        try:
            found[Path(directory).stat().st_ino] = "/" + str(Path(directory).relative_to(root)).lstrip(".")
        except OSError:
            below.clear()  # it was just removed
    return found


_OWN = {OTHER: "(others)", NONE: "(none)"}
#: All groups that ended.
ENDED = "(ended)"


class Names:
    """The names for one ``group_by``. A name is kept as long as the group, even if its owner no longer
    exists."""

    def __init__(self, group_by: str, cgroups_at: Path | None = None, root: Path = Path("/")) -> None:
        self.group_by = group_by
        self._cgroups_at, self._root = cgroups_at, root
        self._known: dict[int, str] = {}
        self._find: Callable[[int], str] = {"netns": _namespace, "iface": _interface}.get(group_by, str)

    def give(self, names: dict[int, str]) -> None:
        """Add names that a process with more privileges has found."""
        self._known = {n: name for n, name in self._known.items() if n in names}
        for n, name in names.items():
            if n not in _OWN and n not in self._known:
                self._add(n, name)

    def of(self, snapshot: Snapshot) -> dict[int, str]:
        """The name for each group's number; two groups never have the same name."""
        if not self.group_by:
            return {OTHER: ""}
        self._known = {n: name for n, name in self._known.items() if n in snapshot.groups}
        new = {n: key for n, key in snapshot.groups.items() if n not in self._known}
        paths = self._cgroups() if new and self.group_by == "cgroup" else {}
        for n, key in new.items():
            if type(key) is str:
                self._add(n, key)
            elif self.group_by == "cgroup":
                self._add(n, paths.get(int(key), str(key)))
            else:
                self._add(n, self._find(int(key)))
        return {**_OWN, **self._known}

    def _cgroups(self) -> dict[int, str]:
        found = containers.Containers(self._root)
        return {
            number: found.name(path) for number, path in cgroups(self._cgroups_at or cgroup_root()).items()
        }

    def _add(self, n: int, name: str) -> None:
        name = plain(name)[:MOST_NAME]
        used = {*_OWN.values(), ENDED, *self._known.values()}
        while name in used:
            name += f" #{n}"
        self._known[n] = name
