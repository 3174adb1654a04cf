# SPDX-License-Identifier: GPL-2.0-only
"""Kernel code as it is while the probes are attached.

``perf record --kcore`` copies the kernel's code when it starts. The probes come after that: BPF
programs and their trampolines are made then, and no later record has their code. A decoder meets
them in every message. So the code is copied once more, and perf's copy gives way to it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_TIMEOUT_S = 120


def copy(perf: str, folder: Path) -> str | None:
    """Copy the kernel's code with perf into ``folder``; the error, if it failed.

    perf has no command that only copies: the recording beside it is of ``true``.
    """
    argv = [perf, "record", "--kcore", "--no-buildid", "--no-buildid-cache", "-o", str(folder)]
    argv += ["-e", "dummy:u", "--", "true"]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode or not (folder / "kcore_dir").is_dir():
        return (done.stderr.strip().splitlines() or ["perf failed"])[-1]
    return None


def install(folder: Path, perf_data: Path) -> bool:
    """Put the copy in the place of perf's own, when perf has ended; whether there was one."""
    new, old = folder / "kcore_dir", perf_data / "kcore_dir"
    if new.is_dir() and perf_data.is_dir():
        shutil.rmtree(old, ignore_errors=True)
        new.rename(old)
        shutil.rmtree(folder, ignore_errors=True)
        return True
    shutil.rmtree(folder, ignore_errors=True)
    return False
