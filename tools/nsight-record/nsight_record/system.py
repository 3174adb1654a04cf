# SPDX-License-Identifier: GPL-2.0-only
"""System settings changed with ``--fix``: noted before, shared with other recorders, put back afterwards.

They are noted in /run/nsight (``state``), for other recorders and ``--restore``, and in ``manifest.changed``,
for readers of the capture. Both are written before the change is made, so that a recorder killed in between
leaves behind what to put back.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import nic
from .capture import Capture
from .errors import RecordError
from .settings import Settings, own_mount_namespace
from .state import Change, Holder, State, start_time


class Changes:
    """The changes that one recording needs; ``restore`` undoes them, the last one first."""

    def __init__(self, capture: Capture, root: Path = Path("/")) -> None:
        self._capture = capture
        self._journal: list[dict[str, Any]] = capture.manifest.setdefault("changed", [])
        self._held: list[tuple[dict[str, Any], Change]] = []
        self._settings = Settings(root)
        self._state = State(root)
        pid = os.getpid()
        self._me = Holder(pid, start_time(pid) or 0, str(capture.path.absolute()))

    def join(self, interfaces: Collection[tuple[int, str]]) -> list[str]:
        """Share the changes that other recorders have made here; what dead ones left behind is returned in
        words.

        ``interfaces``: (network namespace, name) of the recorded ones. Raises RecordError.
        """
        told: list[str] = []
        with self._state as state:
            for change in list(state.changes):
                living, dead = change.living(), [h for h in change.holders if not h.lives()]
                if not self._applies(change, interfaces):
                    if not living and self._settings.is_gone(change):
                        state.changes.remove(change)
                    elif not living:
                        told.append(f"{_left(change, dead)}; nsight-record --restore puts it back")
                    continue
                if not self._is_in_force(change):
                    if not living:
                        state.changes.remove(change)
                    continue
                if not living:
                    told.append(f"{_left(change, dead)}; it is put back after this recording")
                change.holders = [*living, self._me]
                self._held.append((self._enter(change), change))
            _save(state)
        return told

    def _applies(self, change: Change, interfaces: Collection[tuple[int, str]]) -> bool:
        if change.kind == "mount":
            return change.namespace == own_mount_namespace()
        return change.kind != "hwtstamp" or (change.namespace, change.target) in interfaces

    def _is_in_force(self, change: Change) -> bool:
        try:
            now = self._settings.read(change)
        except (OSError, RecordError):
            return False
        if change.after is None and now != change.before:
            change.after = now  # the recorder that changed it was killed before it could note that
        return change.after is not None and bool(now == change.after)

    def apply(self, fix: tuple[str, ...]) -> None:
        """Make the change that a preflight finding names. Raises RecordError."""
        if fix[0] == "mount":
            wanted = Change("mount", fix[2], own_mount_namespace(), None, fix[1])
        elif fix[0] == "sysctl":
            wanted = Change("sysctl", fix[1], 0, None, fix[2])
        else:
            wanted = Change("hwtstamp", fix[1], int(fix[2]), None, nic.HWTSTAMP_FILTER_ALL)
        with self._state as state:
            try:
                self._make(state, wanted)
            except OSError as e:
                raise RecordError(
                    f"--fix: {wanted.what}: {e.strerror or e}", "make the change by hand"
                ) from e

    def _make(self, state: State, wanted: Change) -> None:
        change = state.find(wanted.key)
        if change is not None and not change.living() and not self._is_in_force(change):
            state.changes.remove(change)
            change = None
        if new := change is None:
            wanted.before = self._settings.read(wanted)
            state.changes.append(wanted)
        change = change or wanted
        before_us = change.value, change.holders
        change.value = wanted.value
        change.holders = [*(h for h in change.holders if h.lives() and h != self._me), self._me]
        known = next((entry for entry, held in self._held if held.key == change.key), None)
        entry = known or self._enter(change)
        entry["after"] = change.value
        state.save()
        self._capture.save()
        try:
            self._settings.make(change)
        except BaseException:
            if not known:
                self._journal.remove(entry)
                change.value, change.holders = before_us
                if new:
                    state.changes.remove(change)
                state.save()
            raise
        if not known:
            self._held.append((entry, change))
        change.after = self._settings.read(change)
        state.save()

    def _enter(self, change: Change) -> dict[str, Any]:
        entry = {"what": change.what, "before": change.before, "after": change.value, "restored": False}
        entry["left_to"] = []
        self._journal.append(entry)
        return entry

    def restore(self) -> list[str]:
        """Undo what no other recorder needs; returns what could not be undone. Never raises for failed undos."""
        if not self._held:
            return []
        failed: list[str] = []
        try:
            with self._state as state:
                while self._held:
                    entry, own = self._held.pop()
                    change = state.find(own.key) or own  # somebody may have removed the file
                    others = [h for h in change.living() if h != self._me]
                    if others:
                        change.holders = others
                        entry["left_to"] = [h.pid for h in others]
                        continue
                    problem, done = _put_back(self._settings, change)
                    if problem:
                        failed.append(f"{change.what}: {problem}")
                    entry["restored"] = not problem
                    if done and change in state.changes:
                        state.changes.remove(change)
                _save(state)
        except RecordError as e:
            failed += [f"{own.what}: {e}" for _, own in self._held] or [str(e)]
        return failed


def _put_back(settings: Settings, change: Change) -> tuple[str, bool]:
    """(why it was not put back, whether that is final)."""
    try:
        return settings.put_back(change), True
    except (OSError, RecordError) as e:
        return f"{getattr(e, 'strerror', None) or e}", False


def _save(state: State) -> None:
    try:
        state.save()
    except OSError as e:
        raise RecordError(
            f"{state.directory}: {e.strerror}", "nsight-record --restore, when it can be written"
        ) from e


def _left(change: Change, dead: list[Holder]) -> str:
    by = ", ".join(map(str, dead)) or "a recorder"
    return f"{change.what} was left changed by {by}, which was killed"


@dataclass
class Restored:
    """What ``--restore`` did, in words: one line each."""

    restored: list[str] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def restore_left(root: Path = Path("/")) -> Restored:
    """Undo what killed recorders left, except what a living one needs. Raises RecordError."""
    said = Restored()
    state, settings = State(root), Settings(root)
    if not state.exists():
        return said
    with state:
        for change in reversed(list(state.changes)):
            if living := change.living():
                change.holders = living
                said.left_alone.append(f"{change.what}: needed by {', '.join(map(str, living))}")
                continue
            problem, done = _put_back(settings, change)
            if not done:
                said.failed.append(f"{change.what}: {problem}")
                continue
            state.changes.remove(change)
            if problem:
                said.left_alone.append(f"{change.what}: {problem}")
            else:
                to = "unmounted" if change.kind == "mount" else f"is {change.before} again"
                said.restored.append(f"{change.what}: {to} (left by {', '.join(map(str, change.holders))})")
        _save(state)
    return said
