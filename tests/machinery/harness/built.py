# SPDX-License-Identifier: GPL-2.0-only
"""Programs that tests build on demand.

A linker creates its output before it is complete. A second make that starts then takes the program for up to date, and its
test cannot execute it ("Text file busy"). Tests run in several processes: one at a time builds in a directory.
"""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path


def make(directory: Path, *targets: str) -> None:
    """Run make in the directory, after other tests' make there has ended.

    Raises:
        CalledProcessError: make failed.
    """
    with (directory / "Makefile").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
        subprocess.run(["make", "-s", "-C", str(directory), *targets], check=True)
