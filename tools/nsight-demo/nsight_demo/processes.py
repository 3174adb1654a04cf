# SPDX-License-Identifier: GPL-2.0-only
"""Child processes in a namespace, on a core, as a user; each is ended by its own pid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

#: Anything that takes longer hangs. Nothing that works comes near this, however busy the machine.
HANGS_S = 120.0


class BedError(Exception):
    """A bed could not do what was requested; the message says what to do about it."""


def run(argv: list[str], stdin: str | None = None) -> str:
    """Run a short command to its end and return its stdout; BedError with its stderr."""
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=HANGS_S)
    except FileNotFoundError:
        raise BedError(f"{argv[0]} is not installed (hint: make deps-demo)") from None
    if done.returncode:
        raise BedError(f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def prefix(
    netns: str | None = None,
    cpu: int | None = None,
    user: str | None = None,
    death: str = "KILL",
    fifo: int | None = None,
) -> list[str]:
    """Commands that put the command after them into a namespace, on a core and under a user.

    All of them exec, so that the child's pid stays the program's. ``death``: the signal that it gets when the
    testbed dies. ``fifo``: real-time priority.
    """
    argv: list[str] = []
    if netns:
        argv += ["nsenter", f"--net=/run/netns/{netns}", "--"]
    if cpu is not None:
        argv += ["taskset", "-c", str(cpu)]
    if fifo:
        argv += ["chrt", "-f", str(fifo)]
    argv += ["setpriv", "--pdeathsig", death]
    if user:
        argv += ["--reuid", user, "--regid", "nogroup", "--clear-groups"]
    return [*argv, "--"]


class Process:
    """One child process in its own session, its output in a file or, without one, on the terminal.

    ``grace_s``: how long it may take to end after SIGTERM.
    """

    def __init__(self, name: str, argv: list[str], log: Path | None, grace_s: float = 3.0) -> None:
        self.name = name
        self.argv = argv
        self.log = log
        self.grace_s = grace_s
        with open(log, "wb") if log else contextlib.nullcontext() as out:
            self._code: int | None = None
            self._popen = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT if log else None,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id of the program itself."""
        return self._popen.pid

    def output(self) -> str:
        """Its output so far (the last 4000 characters)."""
        return self.log.read_text(errors="replace")[-4000:].strip() if self.log else "see above"

    def check_alive(self) -> None:
        """Raise BedError with its output if it has ended."""
        if self.poll() is not None:
            raise BedError(f"{self.name} ended with {self.poll()}: {self.output()}")

    def children(self) -> list[int]:
        """Pids of its children, for example nginx's workers."""
        text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(word) for word in text.split()]

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs. An ended process stays a zombie until
        ``stop``.

        Popen's ``poll`` is not used: if an interrupt is raised after Popen has taken its lock, but before the
        ``try`` that releases it, the lock stays taken, and the teardown's ``wait`` would never return.
        """
        if self._code is None:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended:
                exited = ended.si_code == os.CLD_EXITED
                self._code = ended.si_status if exited else -ended.si_status
        return self._code

    def wait(self, timeout_s: float = HANGS_S) -> int:
        """Wait for its end; returns the exit code, BedError after timeout_s."""
        code = self._wait(timeout_s)
        if code is None:
            raise BedError(f"{self.name} still runs after {timeout_s:g} s: {self.output()}")
        return code

    def _wait(self, timeout_s: float) -> int | None:
        deadline = time.monotonic() + timeout_s
        while (code := self.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return code

    def signal(self, signum: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signum)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to the process group of its session; returns when the process has ended."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a stopped process does not handle SIGTERM
        if self._wait(self.grace_s) is None:
            # The process is not reaped yet, so the group id cannot have been reused.
            os.killpg(self.pid, signal.SIGKILL)
            self._wait(float("inf"))
        self._popen.poll()


def wait_until(condition: object, what: str, timeout_s: float = HANGS_S) -> None:
    """Poll ``condition()`` every 20 ms; BedError naming ``what`` after timeout_s."""
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise BedError(f"{what} did not happen within {timeout_s:g} s")
        time.sleep(0.02)
