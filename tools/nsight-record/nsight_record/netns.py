# SPDX-License-Identifier: GPL-2.0-only
"""Network namespaces: finding one by name, process or inode number, and working inside it."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import RecordError, Usage

_CLONE_NEWNET = 0x40000000
_SO_NETNS_COOKIE = 71  # include/uapi/asm-generic/socket.h, Linux 5.14
_FIRST_NSFS_INODE = 0xEFFFFFF8  # include/linux/proc_ns.h: far above any process id
_RUN_DIRS = ("/run/netns", "/var/run/netns")
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Netns:
    """A network namespace. ``path`` is None if only its inode number is known."""

    label: str
    inum: int
    path: Path | None


def current() -> Netns:
    """The namespace of the recorder."""
    path = Path(f"/proc/{os.getpid()}/ns/net")
    return Netns("", path.stat().st_ino, path)


def cookie() -> int:
    """The current namespace's cookie. It is unique since boot; another namespace can get its inode number
    later. Raises OSError before Linux 5.14."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        return int.from_bytes(s.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), sys.byteorder)


def named() -> list[Netns]:
    """The namespaces of ``ip netns``, sorted by name."""
    found: dict[int, Netns] = {}
    for directory in _RUN_DIRS:
        try:
            paths = sorted(Path(directory).iterdir())
        except OSError:
            continue
        for path in paths:
            try:
                inum = path.stat().st_ino
            except OSError:
                continue
            found.setdefault(inum, Netns(path.name, inum, path))
    return list(found.values())


def everywhere() -> list[Netns]:
    """Every namespace that has a name or a process, each once: ours, those of ``ip netns``, and others by
    their oldest process."""
    found: dict[int, Netns] = {}
    for ns in (current(), *named()):
        found.setdefault(ns.inum, ns)
    for pid in sorted(int(entry.name) for entry in Path("/proc").glob("[0-9]*")):
        path = Path(f"/proc/{pid}/ns/net")
        try:
            inum = path.stat().st_ino
        except OSError:
            continue
        found.setdefault(inum, Netns(str(pid), inum, path))
    return list(found.values())


def find(spec: str) -> Netns:
    """Find a namespace by NAME of ``ip netns``, PID of a process in it, or INUM, its inode number.

    Raises Usage when there is no such namespace.
    """
    for ns in named():
        if ns.label == spec:
            return ns
    if not spec.isdecimal():
        raise Usage(
            f"--netns {spec}: no such network namespace",
            "ip netns list shows the names; for a container give the PID of a process in it",
        )
    number = int(spec)
    if number < _FIRST_NSFS_INODE:
        path = Path(f"/proc/{number}/ns/net")
        try:
            return Netns(spec, path.stat().st_ino, path)
        except OSError as e:
            raise Usage(f"--netns {spec}: process {spec}: {e.strerror}", "give a running process") from e
    for ns in everywhere():
        if ns.inum == number:
            return Netns(spec, number, ns.path)
    return Netns(spec, number, None)


def enter(path: Path, kind: int = _CLONE_NEWNET) -> None:
    """Move the calling thread into the namespace at ``path``; raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(fd, kind):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
    finally:
        os.close(fd)


def call_in(ns: Netns, function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)`` evaluated inside ``ns``; its result must be representable in JSON.

    Raises RecordError when it fails there.
    """
    if ns.path is None:
        raise RecordError(f"network namespace {ns.inum}: no process or name refers to it")
    if ns.inum == current().inum:
        return function(*args)
    name = f"network namespace {ns.label or ns.inum}"
    return call_inside(ns.path, _CLONE_NEWNET, name, function, *args)


def call_inside(path: Path, kind: int, name: str, function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)`` evaluated in the namespace at ``path`` of that kind (``CLONE_NEW...``).

    A forked child does it, because a process cannot always find its way back to the
    namespace it came from. Raises RecordError with the child's error.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            enter(path, kind)
            answer: dict[str, Any] = {"result": function(*args)}
        except Exception as e:  # whatever went wrong, this process must not return to the caller
            answer = {"error": str(e)}
        try:
            with os.fdopen(write, "w") as f:
                json.dump(answer, f)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as f:
        text = f.read()
    os.waitpid(pid, 0)
    answer = json.loads(text) if text else {"error": "no answer"}
    if "error" in answer:
        raise RecordError(f"{name}: {answer['error']}")
    return answer["result"]
