# SPDX-License-Identifier: GPL-2.0-only
"""Processes that a test run started and did not end, also if pytest was killed.

They are found by the run's directory in their environment, which every child inherits from its parent.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from . import notes

#: Grace period for processes that are just ending.
GRACE_S = 5.0


def end(directory: Path) -> list[str]:
    """End the processes of the run with this directory; returns the commands of those that did not end by themselves."""
    deadline = time.monotonic() + GRACE_S
    while (left := dict(_running(directory))) and time.monotonic() < deadline:
        time.sleep(0.05)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in dict(_running(directory)):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + GRACE_S
        while dict(_running(directory)) and time.monotonic() < deadline:
            time.sleep(0.05)
    return list(left.values())


def _running(directory: Path) -> Iterator[tuple[int, str]]:
    """PID and command of each such process except this one."""
    mark = f"{notes.DIRECTORY}={directory}".encode()
    for path in Path("/proc").iterdir():
        if not path.name.isdigit() or int(path.name) == os.getpid():
            continue
        try:
            if mark in (path / "environ").read_bytes().split(b"\0"):
                command = (path / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
                yield int(path.name), command.decode(errors="replace")
        except OSError:
            continue
