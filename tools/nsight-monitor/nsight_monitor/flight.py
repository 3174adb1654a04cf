# SPDX-License-Identifier: GPL-2.0-only
"""Hands slow latencies to the flight recorder as triggers, and finds the windows that contain them.

The programs in the kernel report a latency that reaches its stage's trigger as soon as it ends. Then the
recorder still has the time before it in its rings, and writes a window on request. Every window of its
directory counts, whatever triggered it.
"""

from __future__ import annotations

import json
import os
import queue
import re
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from nsight_record import flight_directory
from nsight_record.errors import RecordError, Usage

from . import snapshots
from .snapshots import Slow

#: The limits of the shipped alerts; they are the defaults.
DEFAULT_TRIGGERS = ("handoff-to-read=10ms", "tcp-socket-enqueued=1ms", "udp-socket-enqueued=1ms")
_TRIGGER = re.compile(r"([a-z-]+)=(\d+(?:\.\d+)?)(us|ms|s)")
_NS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_WINDOW = re.compile(r"\d{8}T\d{6}Z-\d+-\d+\.nsight")
_MOST_MANIFEST = 16 << 20
#: Maximum number of latencies without a window, and how long they wait for one.
_MOST_WAITING, _WAIT_NS = 256, 120 * 10**9
_LOOK_S = 0.5
#: How lines with sums begin.
_SUMS, _LAST = '{"monotonic_ns"', re.compile(r'"last": ?true')


def trigger(text: str) -> tuple[str, int]:
    """Stage and ns. Raises Usage.

    >>> trigger("handoff-to-read=10ms")
    ('handoff-to-read', 10000000)
    """
    m = _TRIGGER.fullmatch(text)
    ns = round(float(m[2]) * _NS[m[3]]) if m else 0
    if not m or not 0 < ns < 1 << 63:
        raise Usage(
            f"--trigger {text}: not a trigger", "such as handoff-to-read=10ms; --list-stages has the names"
        )
    return m[1], ns


class Recorder:
    """The flight recorder that writes to ``directory``.

    ``per_hour``: maximum number of requested windows, evenly spread; the first one is requested at once.
    Raises Usage if no recorder is running.
    """

    def __init__(self, directory: Path, per_hour: int, root: Path = Path("/")) -> None:
        self._directory, self._root = directory, root
        self._gap_ns = 3600 * 10**9 // per_hour
        self._asked_ns = -self._gap_ns
        self._silent, self._n, self._n_without = False, 0, 0
        self._waiting: deque[Slow] = deque(maxlen=_MOST_WAITING)
        self._seen = set(self._names())
        if not self._pids():
            raise Usage(
                f"--flight {directory}: no flight recorder writes there",
                f"start it first: nsight-record --flight -o {directory}",
            )

    @property
    def waits(self) -> bool:
        """Whether slow latencies wait for a window."""
        return bool(self._waiting)

    def add(self, slow: Slow) -> None:
        """A slow latency: request a window, unless one was requested recently."""
        if len(self._waiting) == _MOST_WAITING:
            self._n_without += 1
        self._waiting.append(slow)
        now = time.monotonic_ns()
        if now - self._asked_ns < self._gap_ns:
            return
        try:
            flight_directory.ask_all(self._root, self._pids())
            self._asked_ns, self._silent = now, False
        except (RecordError, OSError) as e:
            # The recorder has ended. The next one gets a request at the next slow latency.
            if not self._silent:
                print(f"warning: no window of slow latencies: {e}", file=sys.stderr, flush=True)
            self._silent = True

    def windows(self) -> Iterator[str]:
        """Lines for windows that are complete now and contain latencies that waited for one."""
        names = set(self._names())
        self._seen &= names  # the recorder removes old ones
        for name in sorted(names - self._seen):
            bounds = self._bounds(name)
            if bounds is None:
                continue  # it is being written
            self._seen.add(name)
            held = [s for s in self._waiting if bounds[0] <= s.monotonic_ns <= bounds[1]]
            if held:
                self._n += 1
                row = {"name": name, "slow": [vars(s) for s in held], "n": self._n}
                yield json.dumps({"window": row}) + "\n"
                for s in held:
                    self._waiting.remove(s)
        oldest = time.monotonic_ns() - _WAIT_NS
        while self._waiting and self._waiting[0].monotonic_ns < oldest:
            self._waiting.popleft()
            self._n_without += 1

    def counted(self, sums: str) -> str:
        """The line of sums, with the number of slow latencies that no window contains; the last line also
        counts those that still wait."""
        n = self._n_without + (len(self._waiting) if _LAST.search(sums, 0, 200) else 0)
        return (
            f'{sums.rstrip()[:-1]},"{snapshots.WITHOUT_WINDOW}":{n}}}\n' if sums.startswith(_SUMS) else sums
        )

    def _pids(self) -> set[int]:
        found = (p.name.removeprefix(".run-") for p in self._directory.glob(".run-*"))
        return {int(pid) for pid in found if pid.isdecimal() and Path("/proc", pid).exists()}

    def _names(self) -> list[str]:
        try:
            return [p.name for p in self._directory.iterdir() if _WINDOW.fullmatch(p.name)]
        except OSError:
            return []

    def _bounds(self, name: str) -> tuple[int, int] | None:
        """The window's bounds on the monotonic clock; None: incomplete, or not a recorder's window."""
        try:
            manifest = _manifest(self._directory / name)
            if manifest["state"] == "recording":
                return None
            return int(manifest["start"]["monotonic_ns"]), int(manifest["stop"]["monotonic_ns"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None


def _manifest(window: Path) -> dict[str, Any]:
    """No links are followed, and only a file of moderate size is read: the directory may belong to a user."""
    directory = os.open(window, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open("manifest.json", flags, dir_fd=directory)
    finally:
        os.close(directory)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("no file")
        found = json.loads(file.read(_MOST_MANIFEST))
    if not isinstance(found, dict):
        raise ValueError("no manifest")
    return found


def merged(lines: Iterable[str], recorder: Recorder) -> Iterator[str]:
    """The lines without slow latencies, which go to the recorder, plus lines for the windows that contain
    them."""
    waiting: queue.Queue[str | None] = queue.Queue(maxsize=64)
    threading.Thread(target=_feed, args=(lines, waiting.put), daemon=True).start()
    while True:
        try:
            line = waiting.get(timeout=_LOOK_S if recorder.waits else None)
        except queue.Empty:
            line = ""
        if line is None:
            yield from recorder.windows()
            return
        if line.startswith('{"slow"'):
            found = snapshots.other(line)
            if isinstance(found, Slow):
                recorder.add(found)
        elif line:
            yield recorder.counted(line)
        if recorder.waits:
            yield from recorder.windows()


def _feed(lines: Iterable[str], put: Callable[[str | None], None]) -> None:
    try:
        for line in lines:
            put(line)
    except ValueError:
        pass  # the reader has closed it
    finally:
        put(None)
