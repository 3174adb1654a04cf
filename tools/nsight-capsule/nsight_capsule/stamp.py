# SPDX-License-Identifier: GPL-2.0-only
"""nsight-stamp as a child process: started, sent requests, ended."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nsight_record.errors import Missing, RecordError, ToolDied, Usage

LOG = "nsight-stamp.log"
_BIN = Path(__file__).parent / "bin/nsight-stamp"
_ANSWER_S, _LOOK_S = 5.0, 0.05
_END_S = 30.0


def program() -> Path:
    """nsight-stamp. Raises Missing."""
    if os.geteuid():
        raise Missing("not root: packets cannot be stamped", "run it with sudo")
    if not _BIN.exists():
        raise Missing("nsight-stamp is not built", "make build, with clang, bpftool and libbpf-dev")
    return _BIN.resolve()


def _failed(text: str, code: int) -> RecordError:
    """The error that nsight-stamp printed."""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    kind = {1: Missing, 2: Usage}.get(code, ToolDied)
    said = errors[-1] if errors else lines[-1] if lines else f"it ended early ({code})"
    return kind(f"nsight-stamp: {said}", hints[-1] if hints else "see nsight-stamp.log")


class Stamp:
    """``directory``: where nsight-stamp writes; its messages go to nsight-stamp.log there."""

    def __init__(self, options: Sequence[str], directory: Path, log: int, fds: Sequence[int]) -> None:
        self._directory, self._log = directory, directory / LOG
        # In its own session, so that Ctrl-C reaches it only through this process.
        with os.fdopen(log, "wb") as errors:
            self.process = subprocess.Popen(
                [str(program()), *options, str(directory)],
                stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, pass_fds=fds, text=True, start_new_session=True,
            )  # fmt: skip

    def ready(self) -> None:
        """Wait until everything is attached. Raises RecordError."""
        assert self.process.stdout
        if self.process.stdout.readline() != "stamping\n":
            raise self._error()

    def _error(self) -> RecordError:
        code = self.process.wait(_END_S)
        return _failed(self._log.read_text(errors="replace"), code)

    def ask(self, text: str) -> dict[str, Any]:
        """Like the function; an nsight-stamp that ends is noticed at once."""
        return ask(self._directory, text, lambda: self.process.poll() is None)

    def stop(self) -> str:
        """Make it end, so that it removes its marks from connections; kill it if it does not end. Returns its
        remaining output."""
        if self.process.stdout and self.process.stdout.closed:
            return ""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.communicate(timeout=_END_S)[0]
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.communicate()[0]

    def end(self) -> dict[str, Any]:
        """Make it end; returns its counts. Raises ToolDied if it had already ended."""
        out = self.stop()
        lines = out.splitlines()
        if not lines or not lines[-1].startswith("{"):
            raise self._error()
        counted: dict[str, Any] = json.loads(lines[-1])
        return counted


def clear(options: Sequence[str]) -> int:
    """Remove the marks from connections; returns how many had one. Raises RecordError."""
    done = subprocess.run([str(program()), "--clear", *options], capture_output=True, text=True, check=False)
    if done.returncode:
        raise _failed(done.stderr, done.returncode)
    return int(json.loads(done.stdout)["cleared"])


def _connect(s: socket.socket, directory: Path) -> None:
    """A socket's name has at most 107 bytes, a directory's more. In file systems without sockets it is elsewhere."""
    of = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        try:
            s.connect(f"/proc/self/fd/{of}/control")
        except FileNotFoundError:
            is_ = os.fstat(of)
            s.connect(f"/run/nsight-capsule.{is_.st_dev:x}-{is_.st_ino:x}")
    finally:
        os.close(of)


def ask(directory: Path, text: str, alive: Callable[[], bool] = lambda: True) -> dict[str, Any]:
    """Send ``text`` to the nsight-stamp that writes to ``directory``; returns its answer. Raises RecordError, at once
    when it is no longer ``alive``: the kernel does not say that of a socket for datagrams."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.settimeout(_ANSWER_S)
        s.bind("")  # an abstract name, so that nsight-stamp can answer
        try:
            _connect(s, directory)
            s.send(text.encode())
            until = time.monotonic() + _ANSWER_S
            while not select.select([s], [], [], _LOOK_S)[0]:
                if not alive() or time.monotonic() > until:
                    raise TimeoutError("no answer")
            answer = s.recv(1 << 16).decode()
        except OSError as e:
            raise Usage(
                f"{directory}: no nsight-capsule of yours writes it ({e.strerror or e})",
                "--change takes the directory of one that runs",
            ) from e
    if answer.startswith("error: "):
        raise Usage(answer.removeprefix("error: "))
    answered: dict[str, Any] = json.loads(answer)
    return answered
