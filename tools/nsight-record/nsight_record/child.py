# SPDX-License-Identifier: GPL-2.0-only
"""One program that records: started behind a gate, watched, stopped by signal.

``subprocess`` does not work here: its constructor returns only after exec, but perf's event filter needs the
process ids of programs that must not run before perf does. So the child is forked first, waits on a pipe, and
execs when the recorder releases it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .ownership import PRIVATE_UMASK
from .progress import printable

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)

EXEC_FAILED = 127
LOG_TAIL_BYTES = 4096

# Messages that appear in every recording and explain no failure.
_NOISE = ("couldn't set RLIMIT_MEMLOCK", "Events disabled", "Events enabled", "comparison of integers", "~~")


class Child:
    """A forked program.

    ``exit`` is None while it runs, then its exit code, or minus the signal that ended it. When the recorder
    dies, even by SIGKILL, the kernel sends the child ``stop_signal``, so that it ends and writes out its
    data. After ``drain_signal`` the program first writes out what is in its buffers and then ends. ``path``
    is the search path for the program and for programs that it starts; None: the caller's PATH. ``stdout`` is
    where it prints; the default is ``log``, which always gets its standard error.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        log: Path,
        *,
        stop_signal: signal.Signals = signal.SIGINT,
        drain_signal: signal.Signals | None = None,
        env: dict[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        cpus: Sequence[int] | None = None,
        before_exec: Callable[[], None] | None = None,
        path: str | None = None,
        stdout: int | None = None,
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.program = shutil.which(self.argv[0], path=path) or self.argv[0]
        self.log = log
        self.stop_signal = stop_signal
        self.drain_signal = drain_signal
        self.exit: int | None = None
        self._gate = -1
        gate_read, gate_write = os.pipe()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        log_fd = os.open(log, flags, 0o600)
        env = {**os.environ, "LC_ALL": "C", **({"PATH": path} if path is not None else {}), **(env or {})}
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.close(gate_write)
            out_fd = log_fd if stdout is None else stdout
            self._run(parent, gate_read, (out_fd, log_fd), env, pass_fds, cpus, before_exec)
        os.close(gate_read)
        os.close(log_fd)
        self.pid = pid
        self._gate = gate_write
        self.pidfd = os.pidfd_open(pid)

    def _run(
        self,
        parent: int,
        gate: int,
        output: tuple[int, int],
        env: dict[str, str],
        pass_fds: Sequence[int],
        cpus: Sequence[int] | None,
        before_exec: Callable[[], None] | None,
    ) -> None:
        """The child between fork and exec; never returns."""
        try:
            # Own session: the terminal's SIGINT must not reach it before the recorder acts.
            os.setsid()
            signal.set_wakeup_fd(-1)
            for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
                signal.signal(sig, signal.SIG_DFL)
            _libc.prctl(_PR_SET_PDEATHSIG, int(self.stop_signal), 0, 0, 0)
            if os.getppid() != parent or os.read(gate, 1) != b"g":
                os._exit(0)  # the recorder gave up before the gate opened
            os.umask(PRIVATE_UMASK)
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            for number, fd in enumerate(output, 1):
                os.dup2(fd, number)
            for fd in pass_fds:
                os.set_inheritable(fd, True)
            if cpus:
                os.sched_setaffinity(0, cpus)
            # perf needs a descriptor per event and core.
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            if before_exec:
                before_exec()
            os.execve(self.program, self.argv, env)  # noqa: S606
        except BaseException as e:  # whatever went wrong, this process must not return to the caller
            os.write(2, f"cannot start {self.argv[0]}: {e}\n".encode(errors="replace"))
        finally:
            os._exit(EXEC_FAILED)

    def release(self) -> None:
        """Open the gate: the program starts."""
        os.write(self._gate, b"g")
        os.close(self._gate)
        self._gate = -1

    @property
    def released(self) -> bool:
        """Whether the gate was opened."""
        return self._gate < 0

    def poll(self) -> int | None:
        """``exit``, after a check whether it has ended."""
        if self.exit is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit = os.waitstatus_to_exitcode(status)
                os.close(self.pidfd)
        return self.exit

    def wait(self, timeout: float) -> int | None:
        """``exit`` after at most ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            poller = select.poll()
            poller.register(self.pidfd, select.POLLIN)
            poller.poll(left * 1000)
        return self.exit

    def signal(self, sig: int) -> None:
        """Send ``sig`` if it still runs."""
        if self.poll() is None:
            signal.pidfd_send_signal(self.pidfd, sig)

    def abandon(self) -> None:
        """End a child whose gate never opened; kill one that runs."""
        if self._gate >= 0:
            os.close(self._gate)
            self._gate = -1
        else:
            self.signal(signal.SIGKILL)
        self.wait(5)

    def log_tail(self, lines: int = 3) -> str:
        """Its error, or the last lines of its log, made safe for the terminal."""
        try:
            with open(self.log, "rb") as f:
                f.seek(0, os.SEEK_END)
                f.seek(max(0, f.tell() - LOG_TAIL_BYTES))
                text = f.read().decode(errors="replace")
        except OSError:
            return ""
        kept = [printable(t).strip() for t in text.splitlines() if t.strip()]
        kept = [t for t in kept if not any(n in t for n in _NOISE)]
        errors = [n for n, t in enumerate(kept) if t.startswith("error: ")]
        return "; ".join(kept[errors[-1] :][:lines] if errors else kept[-lines:])

    def how_it_ended(self) -> str:
        """Such as ``exit code 1`` or ``killed by SIGKILL``."""
        if self.exit is None:
            return "still running"
        if self.exit < 0:
            return f"killed by {signal.Signals(-self.exit).name}"
        return f"exit code {self.exit}"
