# SPDX-License-Identifier: GPL-2.0-only
"""What a program says to systemd if a unit started it."""

from __future__ import annotations

import contextlib
import os
import socket


def ready() -> None:
    """Units that are ordered after this one may start, and ``systemctl start`` ends (sd_notify(3)). Does nothing without systemd."""
    if (path := os.environ.get("NOTIFY_SOCKET", "")).startswith(("/", "@")):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(b"READY=1", path.replace("@", "\0", 1) if path[0] == "@" else path)
