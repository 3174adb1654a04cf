# SPDX-License-Identifier: GPL-2.0-only
"""Starts the recording programs in order, watches them, stops them in the reverse order.

Clock readings span everything; perf starts before the probes and stops after them, so that
no stamped message lacks the activity of its cores.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType

from .child import Child
from .errors import ToolDied, unwritable_hint
from .progress import Progress

# A small emulated machine compiles the probes for minutes.
START_TIMEOUT_S = 600.0
TICK_S = 0.2
_KILL_TIMEOUT_S = 5.0
_READY_POLL_S = 0.002
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """The user asked to stop before the recording had begun."""


class Signals:
    """Counts SIGINT, SIGTERM and SIGHUP instead of ending by them; wakes up a poll."""

    def __init__(self) -> None:
        self.count = 0
        self._old: dict[int, object] = {}
        self.read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)

    def __enter__(self) -> Signals:
        for sig in _SIGNALS:
            self._old[sig] = signal.signal(sig, self._handle)
        return self

    def _handle(self, _sig: int, _frame: FrameType | None) -> None:
        self.count += 1
        try:
            os.write(self._write_fd, b"s")
        except BlockingIOError:
            pass

    def __exit__(self, *_: object) -> None:
        for sig, handler in self._old.items():
            signal.signal(sig, handler)  # type: ignore[arg-type]
        os.close(self.read_fd)
        os.close(self._write_fd)


class Control:
    """perf's control pipe: commands down, acknowledgements up.

    perf inherits all four ends: perf 6.1 fails ("Thread and evlist pollfd index mismatch") when the other end
    of its pipe is closed, as it would be when the recorder dies.
    """

    def __init__(self) -> None:
        self._perf_reads, self._commands = os.pipe()
        self._acks, self._perf_writes = os.pipe()

    def perf_option(self) -> str:
        """The value for perf's --control."""
        return f"fd:{self._perf_reads},{self._perf_writes}"

    def fds(self) -> tuple[int, ...]:
        """The descriptors that perf inherits."""
        return self._perf_reads, self._perf_writes, self._commands, self._acks

    def send(self, command: str) -> None:
        """Send a command; ``acknowledged`` shows when it is done."""
        os.write(self._commands, command.encode() + b"\n")

    def acknowledged(self) -> bool:
        """Whether perf answered."""
        if not select.select([self._acks], [], [], 0)[0]:
            return False
        return b"ack" in os.read(self._acks, 64)

    def close(self) -> None:
        """Close our ends."""
        for fd in self.fds():
            os.close(fd)


class Supervisor:
    """The programs of one recording."""

    def __init__(self, progress: Progress, signals: Signals) -> None:
        self._progress = progress
        self._signals = signals
        self.children: list[Child] = []
        self.died: list[str] = []

    def add(self, child: Child) -> Child:
        """Watch ``child`` from now on."""
        self.children.append(child)
        return child

    def wait_for(self, condition: Callable[[], bool], step: str) -> None:
        """Wait until ``condition()``; raises ToolDied or Interrupted."""
        begin = time.monotonic()
        while not condition():
            self.check_alive()
            if self._signals.count:
                raise Interrupted
            if time.monotonic() - begin > START_TIMEOUT_S:
                raise ToolDied(
                    f"{step}: nothing happened for {START_TIMEOUT_S:.0f} s", "see the logs in the capture"
                )
            if time.monotonic() - begin > 1:
                self._progress.wait(f"{step} ... {time.monotonic() - begin:.0f} s")
            time.sleep(_READY_POLL_S)

    def check_alive(self) -> None:
        """Raises ToolDied when a released program has ended."""
        for child in self.children:
            if child.poll() is not None:
                raise died(child)

    def watch(self, deadline: float | None, others: Iterable[int], tick: Callable[[], str | None]) -> str:
        """Wait for the end of the recording; returns ``manifest.stopped_by``.

        ``deadline`` is in time.monotonic(); ``others`` are descriptors; when one becomes readable, the
        recording ends as ``command``. ``tick`` is called several times a second and may return a reason.
        """
        poller = select.poll()
        others = list(others)
        for fd in (self._signals.read_fd, *others, *(c.pidfd for c in self.children)):
            poller.register(fd, select.POLLIN)
        while True:
            if self._signals.count:
                return "signal"
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                return "duration"
            if reason := tick():
                return reason
            timeout = TICK_S if deadline is None else min(TICK_S, deadline - now)
            ready = {fd for fd, _ in poller.poll(max(0.0, timeout) * 1000)}
            for child in self.children:
                if child.poll() is not None:
                    error = died(child)
                    return f"error: {error}; {error.hint}"
            if ready & set(others):
                return "command"

    def stop(self, child: Child, timeout: float) -> None:
        """End one program; it is killed if it does not end in time, or at a second Ctrl-C.

        A program that had already ended by itself is entered in ``died``.
        """
        if not child.released:
            child.abandon()
            return
        if child.poll() is not None:
            self.died.append(f"{child.name}: {child.how_it_ended()}")
            return
        asked = self._signals.count
        steps = [(child.stop_signal, timeout), (signal.SIGKILL, _KILL_TIMEOUT_S)]
        if child.drain_signal:
            steps.insert(0, (child.drain_signal, timeout))
        for sig, patience in steps:
            child.signal(sig)
            if self._wait_for_end(child, patience, asked):
                break
        self._progress.clear()
        if child.exit not in (0, -int(child.stop_signal)):
            self.died.append(f"{child.name}: {child.how_it_ended()}")

    def _wait_for_end(self, child: Child, patience: float, asked: int) -> bool:
        begin = time.monotonic()
        while child.wait(TICK_S) is None:
            waited = time.monotonic() - begin
            if waited > patience or self._signals.count > asked:
                return False
            if waited > 1:
                self._progress.wait(f"{child.name} is writing out ... {waited:.0f} s")
        return True


def died(child: Child) -> ToolDied:
    """The error for a program that ended too early, with its output and a fix."""
    refused = _refused(child.log)
    said = f"{child.log.parent.resolve()}: {refused}" if refused else child.log_tail()
    lower = said.lower()
    log = child.log.resolve()  # not through the descriptor with which it was opened
    hint = f"see {log}"
    if refused or "no space left" in lower:
        hint = unwritable_hint(lower)
    elif "not permitted" in lower or "permission" in lower or "lockdown" in lower:
        hint = f"the kernel refused it: lockdown, a security module or a container; see {log}"
    elif "memory" in lower and ("mmap" in lower or "alloc" in lower):
        hint = "not enough memory for the ring buffers; free some"
    return ToolDied(f"{child.name} ended early ({child.how_it_ended()}){': ' + said if said else ''}", hint)


def _refused(log: Path) -> str:
    """Why the disk takes no changes any more, which the program could not write to its log; '': it does."""
    try:
        os.utime(log)
    except OSError as e:
        return e.strerror or ""
    return ""
