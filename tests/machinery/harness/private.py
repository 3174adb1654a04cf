# SPDX-License-Identifier: GPL-2.0-only
"""A private mount namespace for the test process: other processes do not see its mounts, and the mounts end with the tests.

tracefs is mounted in it if nothing mounts tracefs at boot (no systemd). Network namespaces named by ``ip netns add``
are mounts in it too. Two runs on one machine share neither, and a killed run leaves no mount behind.
"""

from __future__ import annotations

import ctypes
import os
import subprocess

CLONE_NEWNS = 0x00020000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
TRACEFS = "/sys/kernel/tracing"
#: Children of a process that already has its private namespace do not make another one.
INSIDE = "NSIGHT_TEST_MOUNTS"


def mounts() -> None:
    """Move this process and its children into a private mount namespace with tracefs. Needs root; does nothing without it."""
    if os.geteuid() != 0 or INSIDE in os.environ:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "a mount namespace for the tests")
    if libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "private mounts for the tests")
    os.environ[INSIDE] = str(os.getpid())
    if not os.access(f"{TRACEFS}/events", os.F_OK):
        # If it cannot be mounted (no such file system), the tests that need it report that.
        subprocess.run(["mount", "-t", "tracefs", "nodev", TRACEFS], capture_output=True, check=False)
