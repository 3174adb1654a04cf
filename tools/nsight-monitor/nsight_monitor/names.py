# SPDX-License-Identifier: GPL-2.0-only
"""What the numbers of groups are called: cgroups by their containers, services or paths, network namespaces and interfaces by their names."""

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
#: Characters of a name: readers of the lines refuse longer texts, and who may make cgroups may make any path.
MOST_NAME = 200


def plain(name: str) -> str:
    """A process gives itself any name: control characters do not reach a terminal."""
    return "".join(c if c.isprintable() else "?" for c in name)


def _labels() -> dict[int, str]:
    """Names of network namespaces by number; that of this process needs none."""
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
    """Where control groups of version 2 are mounted; on a machine that has both versions that is not /sys/fs/cgroup."""
    fields = (line.split() for line in MOUNTS.read_text().splitlines())
    return next((Path(f[1]) for f in fields if len(f) > 2 and f[2] == "cgroup2"), Path("/sys/fs/cgroup"))


def cgroups(root: Path) -> dict[int, str]:
    """Paths by number, which is that of the directory's inode."""
    found = {}
    for directory, below, _ in os.walk(root):
        try:
            found[Path(directory).stat().st_ino] = "/" + str(Path(directory).relative_to(root)).lstrip(".")
        except OSError:
            below.clear()  # it has just gone
    return found


_OWN = {OTHER: "(others)", NONE: "(none)"}


class Names:
    """Of one ``group_by``. A name once found stays as long as the group, also when what has it is gone."""

    def __init__(self, group_by: str, cgroups_at: Path | None = None, root: Path = Path("/")) -> None:
        self.group_by = group_by
        self._cgroups_at, self._root = cgroups_at, root
        self._known: dict[int, str] = {}
        self._find: Callable[[int], str] = {"netns": _namespace, "iface": _interface}.get(group_by, str)

    def give(self, names: dict[int, str]) -> None:
        """All that somebody with more privileges has found."""
        self._known = {n: name for n, name in self._known.items() if n in names}
        for n, name in names.items():
            if n not in _OWN and n not in self._known:
                self._add(n, name)

    def of(self, snapshot: Snapshot) -> dict[int, str]:
        """Of each group's number, its name; two groups never have the same."""
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
        used = {*_OWN.values(), *self._known.values()}
        while name in used:
            name += f" #{n}"
        self._known[n] = name
