# SPDX-License-Identifier: GPL-2.0-only
"""System settings changed with ``--fix``: journalled before, put back afterwards.

The journal is ``manifest.changed``. It is written before the change is made, so that a
recorder killed in between leaves behind what to put back.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import nic
from .capture import Capture
from .errors import RecordError
from .netns import Netns, call_in

_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


class Changes:
    """The changes of one recording; ``restore`` undoes them, the last one first."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._journal: list[dict[str, Any]] = capture.manifest.setdefault("changed", [])
        self._undo: list[tuple[dict[str, Any], Callable[[], None]]] = []

    def apply(self, fix: tuple[str, ...], ns: Netns) -> None:
        """Make the change that a preflight finding names. Raises RecordError."""
        kind, target = fix[0], fix[1]
        try:
            if kind == "mount":
                self._mount(target, fix[2])
            elif kind == "sysctl":
                self._sysctl(target, fix[2])
            elif kind == "hwtstamp":
                self._hwtstamp(target, ns)
        except OSError as e:
            raise RecordError(f"--fix: {kind} {target}: {e.strerror}", "make the change by hand") from e

    def _do(
        self, what: str, before: Any, after: Any, do: Callable[[], Any], undo: Callable[[], None]
    ) -> None:
        entry = {"what": what, "before": before, "after": after, "restored": False}
        self._journal.append(entry)
        self._capture.save()
        try:
            do()
        except BaseException:
            self._journal.remove(entry)
            raise
        self._undo.append((entry, undo))

    def _mount(self, fstype: str, target: str) -> None:
        def mount() -> None:
            if _libc.mount(b"nodev", target.encode(), fstype.encode(), 0, None):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

        def unmount() -> None:
            if _libc.umount2(target.encode(), _MNT_DETACH):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

        self._do(f"mount {target}", None, fstype, mount, unmount)

    def _sysctl(self, name: str, value: str) -> None:
        path = Path("/proc/sys") / name
        before = path.read_text().strip()
        self._do(
            f"sysctl {name}", before, value, lambda: path.write_text(value), lambda: _write(path, before)
        )

    def _hwtstamp(self, iface: str, ns: Netns) -> None:
        before = call_in(ns, nic.hwtstamp_filter, iface) or nic.HWTSTAMP_FILTER_NONE
        self._do(
            f"hwtstamp rx_filter {iface}",
            before,
            nic.HWTSTAMP_FILTER_ALL,
            lambda: call_in(ns, nic.set_hwtstamp_filter, iface, nic.HWTSTAMP_FILTER_ALL),
            lambda: call_in(ns, nic.set_hwtstamp_filter, iface, before),
        )

    def restore(self) -> list[str]:
        """Undo everything; returns what could not be undone. Never raises for that."""
        failed = []
        while self._undo:
            entry, undo = self._undo.pop()
            try:
                undo()
                entry["restored"] = True
            except (OSError, RecordError) as e:
                failed.append(f"{entry['what']}: {e}")
        return failed


def _write(path: Path, text: str) -> None:
    path.write_text(text)
