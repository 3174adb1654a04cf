# SPDX-License-Identifier: GPL-2.0-only
"""Intel PT for the flight recorder: perf keeps the newest trace of every core in its AUX buffers, and writes
it at SIGUSR2.

perf's ``--snapshot`` stops the trace and copies the buffers; ``--switch-output=signal`` then ends its file
and begins another one. perf 6.1 does both at the same signal, in this order. ``--kcore`` writes a directory,
and perf copies the kernel's text into the first directory only; so this module copies the text when the
window is written.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from pathlib import Path

from . import perf
from .capture import Capture
from .child import Child
from .errors import Missing
from .supervisor import Control, Supervisor

#: perf writes context switches and memory maps all the time. At this size it gets a new file.
MOST_SIDE_BAND = 256 * perf.MIB
_OUTPUT = "perf.data"
#: File times have the resolution of the kernel's tick.
_FILE_TIME_NS = 20_000_000
_PATIENCE_S = 60.0
_POLL_S = 0.01
_KERNEL_TEXT = ("kcore", "kallsyms", "modules")


class Snapshots:
    """perf, recording into ``directory``, and the files that it has ended."""

    def __init__(
        self, directory: Path, event: str, buffers: perf.Buffers, n_cpus: int, path: str | None
    ) -> None:
        self._directory = directory
        self._path = path
        #: for one file: all AUX buffers and the side band
        self.most_mb = (buffers.aux * n_cpus + MOST_SIDE_BAND) // perf.MIB
        self._control = Control()
        self._asked_at_size = 0
        self.child = Child(
            "perf",
            perf.argv_pt_snapshots(directory / _OUTPUT, event, buffers, self._control.perf_option()),
            directory / "perf.log",
            path=path,
            pass_fds=self._control.fds(),
        )

    def start(self, supervisor: Supervisor) -> None:
        """Start perf and wait for its buffers; from then on it reacts to signals."""
        supervisor.add(self.child).release()
        self._control.send("ping")
        supervisor.wait_for(self._control.acknowledged, "starting perf")

    def enable(self, supervisor: Supervisor) -> None:
        """Start tracing."""
        self._control.send("enable")
        supervisor.wait_for(self._control.acknowledged, "enabling perf")

    def ended(self) -> list[Path]:
        """Files that perf no longer writes to, oldest first."""
        return sorted(self._directory.glob(f"{_OUTPUT}.*"), key=lambda p: p.stat().st_mtime_ns)

    def tick(self) -> None:
        """Keep the side band small, and remove files that no window needs."""
        with contextlib.suppress(OSError):
            for old in self.ended():
                if time.time() - old.stat().st_mtime > _PATIENCE_S:
                    old.unlink()
            size = (self._directory / _OUTPUT).stat().st_size
            if size < MOST_SIDE_BAND:
                self._asked_at_size = 0
            elif not self._asked_at_size:
                self._asked_at_size = size
                self.child.signal(perf.SNAPSHOT_SIGNAL)

    def take(self, capture: Capture, since_realtime_ns: int) -> list[str]:
        """Move perf's files for a window into its capture; returns what is missing, in words.

        ``since_realtime_ns``: nsight-collect requested them after this time (CLOCK_REALTIME).
        """
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            running = self.child.poll() is None
            files = [p for p in self.ended() if p.stat().st_mtime_ns > since_realtime_ns - _FILE_TIME_NS]
            if files:
                break
            if not running or time.monotonic() > deadline:
                return ["perf wrote no snapshot of Intel PT for the window"]
            time.sleep(_POLL_S)
        data = capture.directory / _OUTPUT
        data.mkdir(mode=0o700)
        files[0].rename(data / "data")
        with contextlib.suppress(OSError):
            shutil.copyfile(
                self._directory / "perf.log", capture.directory / "perf.log", follow_symlinks=False
            )
        if not copy_kernel_text(data / "kcore_dir", self._path):
            return ["the kernel's text could not be copied (/proc/kcore): its functions cannot be decoded"]
        return []

    def close(self) -> None:
        """After perf has ended: remove everything."""
        self._control.close()
        for path in self._directory.glob(f"{_OUTPUT}*"):
            path.unlink(missing_ok=True)


def copy_kernel_text(to: Path, path: str | None) -> bool:
    """Copy the running kernel's text and symbols into the new directory ``to``, as ``perf record --kcore`` does."""
    program = perf.find(path)
    if program is None:
        raise Missing("perf was removed", "install it again")
    to.mkdir(mode=0o700)
    argv = [program, "--buildid-dir", str(to), "buildid-cache", "--kcore", "/proc/kcore"]
    try:
        subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    for name in _KERNEL_TEXT:
        # DIR/[kernel.kcore]/BUILD-ID/TIME/NAME
        for found in to.glob(f"*/*/*/{name}"):
            found.rename(to / name)
    for left in [p for p in to.iterdir() if p.is_dir()]:
        shutil.rmtree(left, ignore_errors=True)
    return all((to / name).is_file() for name in _KERNEL_TEXT)
