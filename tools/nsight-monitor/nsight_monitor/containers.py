# SPDX-License-Identifier: GPL-2.0-only
"""What a control group is, judged by its path: a container and its pod, a service, a session.

Docker, containerd and CRI-O (through Kubernetes), Podman, LXC and systemd each have rules for the names of
control groups. The names of containers and pods are in files of this machine; where these cannot be read, the
numbers are shown.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ID = r"[0-9a-f]{64}"
#: The last part of a container's path: with the systemd driver the program and the number, otherwise only the
#: number.
_CONTAINER = re.compile(
    rf"(?:(?P<by>docker|cri-containerd|crio|libpod|podman|nerdctl)-)?(?P<id>{_ID})(?:\.scope)?"
)
_POD = re.compile(
    r"(?:^|-)pod(?P<uid>[0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$"
)
#: The kubelet expects systemd's driver, and the container runtime has the other one.
_TRIPLE = re.compile(rf"\.slice:(?P<by>cri-containerd|crio|docker):(?P<id>{_ID})$")
_UNIT = re.compile(r"(?P<name>.+)\.(?:service|scope|socket|mount)")
_LXC = re.compile(r"lxc\.payload\.(?P<name>.+)")
_MACHINE = re.compile(r"machine-(?P<name>.+)\.scope")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
_MOST_BYTES, _MOST_ENTRIES = 16 << 20, 100_000
_SHORT = 12  # characters of a container's number, as docker ps shows it


def _read(path: Path) -> Any:
    """JSON of a regular file of moderate size; None: there is none."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            return json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def _entries(directory: Path) -> Iterator[str]:
    try:
        with os.scandir(directory) as found:
            for n, entry in enumerate(found):
                if n >= _MOST_ENTRIES:
                    return
                yield entry.name
    except OSError:
        return


class Containers:
    """Names of containers and pods on the machine whose files are below ``root``."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._pods: dict[str, str] = {}  # by the number without its hyphens
        self._names: dict[str, str] = {}
        self._look()

    def _look(self) -> None:
        # The kubelet's: /var/log/pods/NAMESPACE_POD_UID/, /var/log/containers/POD_NAMESPACE_CONTAINER-ID.log
        for entry in _entries(self._root / "var/log/pods"):
            space, _, rest = entry.partition("_")
            pod, _, uid = rest.rpartition("_")
            if pod:
                self._pods[_bare(uid)] = f"{space}/{pod}"
        for entry in _entries(self._root / "var/log/containers"):
            if m := re.fullmatch(rf"[^_]+_[^_]+_(?P<name>.+)-(?P<id>{_ID})\.log", entry):
                self._names[m["id"]] = m["name"]
        for storage in ("overlay", "vfs", "btrfs", "zfs"):  # Podman's and CRI-O's
            found = _read(self._root / f"var/lib/containers/storage/{storage}-containers/containers.json")
            for row in found if isinstance(found, list) else ():
                names = row.get("names") if isinstance(row, dict) else None
                if isinstance(names, list) and names and isinstance(row.get("id"), str):
                    self._names.setdefault(row["id"], str(names[0]))

    def _docker(self, number: str) -> str | None:
        """From Docker's own file, which only root may read."""
        found = _read(self._root / "var/lib/docker/containers" / number / "config.v2.json")
        name = found.get("Name") if isinstance(found, dict) else None
        return name.lstrip("/") if isinstance(name, str) and name.lstrip("/") else None

    def _container(self, number: str) -> str:
        return self._names.get(number) or self._docker(number) or number[:_SHORT]

    def name(self, path: str) -> str:
        """The name of a control group: ``NAMESPACE/POD/CONTAINER`` in a pod, a container's name, a service's
        name; else its path.

        >>> Containers(Path("/nonexistent")).name("/system.slice/nginx.service")
        'nginx.service'
        """
        parts = [p for p in _TRIPLE.sub(r".slice/\g<by>-\g<id>", path).split("/") if p]
        pod = next((self._pod(m["uid"]) for p in reversed(parts) if (m := _POD.search(p))), "")
        for i, part in reversed(list(enumerate(parts))):
            # A container may have its own control groups below the one with its number.
            below = "/".join(["", *parts[i + 1 :]])
            if m := _CONTAINER.fullmatch(part):
                return (f"{pod}/" if pod else "") + self._container(m["id"]) + below
        if pod:
            return pod
        for i, part in enumerate(parts):
            below = "/".join(["", *parts[i + 1 :]])
            if m := _LXC.fullmatch(part) or _MACHINE.fullmatch(part):
                return _plain(m["name"]) + below
            if _UNIT.fullmatch(part) and not part.startswith("user@"):
                return _plain(part) + below
        return path

    def _pod(self, uid: str) -> str:
        return self._pods.get(_bare(uid)) or f"pod {uid.replace('_', '-')}"


def _bare(uid: str) -> str:
    return uid.replace("-", "").replace("_", "")


def _plain(part: str) -> str:
    """Without systemd's escapes, if they stand for printable characters."""
    return _ESCAPED.sub(lambda m: chr(int(m[1], 16)), part)
