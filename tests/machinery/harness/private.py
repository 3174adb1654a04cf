# SPDX-License-Identifier: GPL-2.0-only
"""A mount namespace of the test process's own: what tests mount nobody else sees, and it ends with them.

tracefs is mounted in it where nothing mounts that at boot (no systemd); network namespaces that ``ip netns add``
names are mounts in it too. Two runs on one machine share neither, and a killed run leaves no mount behind.
"""

from __future__ import annotations

import ctypes
import os
import subprocess

CLONE_NEWNS = 0x00020000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
TRACEFS = "/sys/kernel/tracing"
#: Children of a process that has its own namespace do not make another.
INSIDE = "NSIGHT_TEST_MOUNTS"


def mounts() -> None:
    """Give this process, and those that it starts, a mount namespace with tracefs. Needs root; does nothing without."""
    if os.geteuid() != 0 or INSIDE in os.environ:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "a mount namespace for the tests")
    if libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "private mounts for the tests")
    os.environ[INSIDE] = str(os.getpid())
    if not os.access(f"{TRACEFS}/events", os.F_OK):
        # Where it cannot be mounted (no such file system), tests that need it say so.
        subprocess.run(["mount", "-t", "tracefs", "nodev", TRACEFS], capture_output=True, check=False)
