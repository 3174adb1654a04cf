# SPDX-License-Identifier: GPL-2.0-only
"""Ctrl-C for bpftrace, which ignores a Ctrl-C that comes while it does not wait for events (0.17: its loop ends only on EINTR)."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import AnyStr

#: Time within which it ends after a Ctrl-C that it noticed; a second one during that time would cut off its output.
AGAIN_S = 10


def interrupt(process: subprocess.Popen[AnyStr], end_s: float) -> tuple[AnyStr, AnyStr]:
    """Interrupt it until it ends; returns its output, ``(stdout, stderr)``. Raises TimeoutExpired if it still runs after ``end_s``."""
    end = time.monotonic() + end_s
    while True:
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=AGAIN_S)
        except subprocess.TimeoutExpired:
            if time.monotonic() >= end:
                raise
