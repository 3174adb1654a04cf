# SPDX-License-Identifier: GPL-2.0-only
"""Commands in a guest, for tests: a guest that died is started again, and every retry is recorded.

Emulated kernels sometimes crash while they patch their own code, for example for tracepoints. If the guest dies each
time, the test's command may be the cause, so the test fails.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from machinery.harness import retries

RUN = Path(__file__).resolve().parent / "run"

#: Exit codes of RUN: its docstring lists all of them.
DIED, UNPREPARED = 125, 126

#: How much of a dead guest's console output is kept: the end of an oops with its call trace.
LINES = 40


class GuestUnavailable(Exception):
    """No guest can run on this machine; the message says what is missing."""


def run_guest(argv: list[str], tries: int = 3, timeout: float = 1000.0) -> subprocess.CompletedProcess[str]:
    """Run ``tests/machinery/guest/run`` with ``argv``; again if the guest died, each time for at most ``timeout`` seconds.

    The result has the command's exit code, or 124 if the time given with ``--timeout`` passed. Raises
    AssertionError with the end of the console when the guest died ``tries`` times, GuestUnavailable at once when
    it cannot be prepared, and subprocess.TimeoutExpired.
    """
    for left in reversed(range(tries)):
        done = _run([sys.executable, str(RUN), *argv], timeout)
        if done.returncode == UNPREPARED:
            raise GuestUnavailable(done.stderr.strip())
        if done.returncode != DIED:
            return done
        said = "\n".join(done.stderr.strip().splitlines()[-LINES:])
        if left:
            retries.note("guest", said)
    raise AssertionError(f"the guest died {tries} times; the last time:\n{said}")


def _run(argv: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Like subprocess.run, but after a timeout programs first get a signal to end: if RUN was killed, QEMU would stay behind."""
    # A console may print anything.
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8", "errors": "replace"}
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, **pipes) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.terminate()
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    return subprocess.CompletedProcess(argv, process.returncode, out, err)
