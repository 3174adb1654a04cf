# SPDX-License-Identifier: GPL-2.0-only
"""Running the real recorder from a test, and traffic of a known size beside it."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from nsight_record import clock

from conftest import ROOT, skip_or_fail

RECORDER = ROOT / "tools/nsight-record/nsight-record"
START_TIMEOUT_S = 120


def require_live():
    """Skip, with the reason, where nothing can be recorded."""
    if os.geteuid() != 0:
        skip_or_fail("root", "recording needs root")
    if not shutil.which("bpftrace"):
        skip_or_fail("bpf", "bpftrace is not installed")
    if not shutil.which("perf"):
        skip_or_fail("perf", "perf is not installed")
    if not clock.find():
        skip_or_fail("clock", "nsight-clock is not built")
    done = subprocess.run([RECORDER, "--preflight"], capture_output=True, text=True, timeout=60)
    if done.returncode:
        skip_or_fail("bpf", done.stdout)


def manifest(directory: Path) -> dict:
    return json.loads((directory / "manifest.json").read_text())


class Running:
    """A recorder in the background; ``wait_recording`` returns once everything records."""

    def __init__(self, directory: Path, *options: str, prefix: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.process = subprocess.Popen(
            [*prefix, str(RECORDER), "-o", str(directory), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_recording(self) -> dict:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, json.JSONDecodeError):
                m = manifest(self.directory)
                if "start" in m:
                    return m
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        out, err = self.end()
        raise AssertionError(f"the recording did not begin: {out}{err}")

    def end(self, timeout: float = 120) -> tuple[str, str]:
        """Wait for its end; kill it if it does not come."""
        try:
            return self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"the recorder did not end: {out}{err}") from None


def record(directory: Path, *options: str, prefix: tuple[str, ...] = ()) -> tuple[int, str]:
    """Run a recording to its end; (exit code, what it said)."""
    running = Running(directory, *options, prefix=prefix)
    out, err = running.end()
    return running.process.returncode, out + err


def tool_pids(m: dict) -> list[int]:
    return [t["pid"] for t in m["tools"].values()]


def wait_gone(pids: list[int], timeout: float = 30) -> list[int]:
    """The processes of ``pids`` that are still there after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        pids = [p for p in pids if Path(f"/proc/{p}").exists()]
        if not pids:
            break
        time.sleep(0.05)
    return pids


class EchoServer:
    """A TCP echo on loopback. One request is 64 bytes; each is read and answered by one call."""

    SIZE = 64

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    while data := connection.recv(self.SIZE):
                        connection.sendall(data)

    def requests(self, n: int) -> None:
        """Send ``n`` requests, one after the other, each after the answer to the one before."""
        with socket.create_connection(("127.0.0.1", self.port)) as s:
            for _ in range(n):
                s.sendall(b"x" * self.SIZE)
                assert len(s.recv(self.SIZE, socket.MSG_WAITALL)) == self.SIZE

    def close(self) -> None:
        self._listener.close()


def perf_script(directory: Path, *options: str) -> str:
    """perf's own reading of the recording."""
    done = subprocess.run(
        ["perf", "script", "-i", str(directory / "perf.data"), *options],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def own_python() -> str:
    return sys.executable
