# SPDX-License-Identifier: GPL-2.0-only
"""Ctrl-C for bpftrace, which forgets one that comes while it does not wait for events (0.17: its loop ends at EINTR only)."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import AnyStr

#: Within which it ends after one that it saw; a second one then would cut off what it prints.
AGAIN_S = 10


def interrupt(process: subprocess.Popen[AnyStr], end_s: float) -> tuple[AnyStr, AnyStr]:
    """Until it ends; returns what it wrote, ``(stdout, stderr)``. Raises TimeoutExpired if it still runs after ``end_s``."""
    end = time.monotonic() + end_s
    while True:
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=AGAIN_S)
        except subprocess.TimeoutExpired:
            if time.monotonic() >= end:
                raise
