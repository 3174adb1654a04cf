# SPDX-License-Identifier: GPL-2.0-only
"""The settings that ``--fix`` can change: read, changed and put back in the namespace they belong to."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import netns, nic
from .errors import RecordError
from .state import Change

_MNT_DETACH = 2
_CLONE_NEWNS = 0x00020000
_libc = ctypes.CDLL(None, use_errno=True)


class Gone(RecordError):
    """The setting no longer exists: its namespace has ended."""


class Settings:
    """The settings of the machine whose files are below ``root``."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._sysctls = root / "proc/sys"

    def read(self, change: Change) -> Any:
        """The current value. Raises OSError, RecordError, Gone."""
        if change.kind == "mount":
            return _in_mount_namespace(change.namespace, _mount_id, change.target, change.value)
        if change.kind == "sysctl":
            return (self._sysctls / change.target).read_text().strip()
        return _in_netns(change.namespace, nic.hwtstamp_filter, change.target) or nic.HWTSTAMP_FILTER_NONE

    def is_gone(self, change: Change) -> bool:
        """Whether the setting ended with its namespace."""
        try:
            self.read(change)
        except Gone:
            return True
        except (OSError, RecordError):
            pass
        return False

    def make(self, change: Change) -> None:
        """Set it to ``value``. Raises OSError, RecordError, Gone."""
        if change.kind == "mount":
            _in_mount_namespace(change.namespace, _mount, change.target, change.value)
        else:
            self._set(change, change.value)

    def put_back(self, change: Change) -> str:
        """Set it to its previous value; returns why it was left alone, or "". Raises OSError, RecordError.

        A value that somebody else has set since is kept.
        """
        try:
            now = self.read(change)
            if now == change.before:
                return ""
            # A recorder that was killed during the change could not note the result.
            if change.after is not None and now != change.after:
                return "somebody else has changed it since" + (
                    "" if change.kind == "mount" else f" (to {now})"
                )
            if change.kind == "mount":
                _in_mount_namespace(change.namespace, _unmount, change.target)
            else:
                self._set(change, change.before)
        except Gone as e:
            return str(e)
        return ""

    def _set(self, change: Change, value: Any) -> None:
        if change.kind == "sysctl":
            (self._sysctls / change.target).write_text(value)
        else:
            _in_netns(change.namespace, nic.set_hwtstamp_filter, change.target, value)


def own_mount_namespace() -> int:
    """Inode number of the recorder's mount namespace."""
    return Path("/proc/self/ns/mnt").stat().st_ino


def _in_netns(inum: int, function: Callable[..., Any], *args: Any) -> Any:
    space = netns.find(str(inum))
    if space.path is None:
        raise Gone("its network namespace has ended")
    return netns.call_in(space, function, *args)


def _in_mount_namespace(inum: int, function: Callable[..., Any], *args: Any) -> Any:
    if inum == own_mount_namespace():
        return function(*args)
    for path in Path("/proc").glob("[0-9]*/ns/mnt"):
        try:
            if path.stat().st_ino == inum:
                return netns.call_inside(path, _CLONE_NEWNS, f"mount namespace {inum}", function, *args)
        except OSError:
            continue
    raise Gone("its mount namespace has ended")


def _mount_id(target: str, fstype: str) -> int | None:
    """The kernel's number of the topmost mount at ``target``; None if it is not of that type."""
    found = None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, more = line.partition(" - ")
        words = fields.split()
        if words[4] == target:
            found = int(words[0]) if more.split()[0] == fstype else None
    return found


def _mount(target: str, fstype: str) -> None:
    if _libc.mount(b"nodev", target.encode(), fstype.encode(), 0, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _unmount(target: str) -> None:
    if _libc.umount2(target.encode(), _MNT_DETACH):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
