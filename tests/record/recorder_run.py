# SPDX-License-Identifier: GPL-2.0-only
"""Run the real recorder from a test, and traffic of a known size beside it."""

import contextlib
import json
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from machinery.testbed.ports import Port
from nsight_record import clock, collect

from conftest import ROOT, skip_or_fail

RECORDER = ROOT / "tools/nsight-record/nsight-record"
#: A step that takes longer than this hangs. A step that works never comes near it, even on a very busy machine.
START_S, END_S = 300, 300


def require_live(recorder: str = "bpf"):
    """Skip, with the reason, if nothing can be recorded."""
    if os.geteuid() != 0:
        skip_or_fail("root", "recording needs root")
    if recorder == "bpftrace":
        if not shutil.which("bpftrace"):
            skip_or_fail("bpf", "bpftrace is not installed")
        if not shutil.which("perf"):
            skip_or_fail("perf", "perf is not installed")
    elif not collect.find():
        skip_or_fail("bpf", "nsight-collect is not built")
    if not clock.find():
        skip_or_fail("clock", "nsight-clock is not built")
    done = subprocess.run(
        [RECORDER, "--recorder", recorder, "--preflight"], capture_output=True, text=True, timeout=END_S
    )
    if done.returncode:
        skip_or_fail("bpf", done.stdout)


def manifest(directory: Path) -> dict:
    return json.loads((directory / "manifest.json").read_text())


class Running:
    """A recorder in the background; ``wait_recording`` returns once everything records."""

    def __init__(
        self, directory: Path, *options: str, prefix: tuple[str, ...] = (), recorder: str = "bpf"
    ) -> None:
        self.directory = directory
        self.process = subprocess.Popen(
            [*prefix, str(RECORDER), "--recorder", recorder, "-o", str(directory), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_recording(self) -> dict:
        self.wait_for(lambda: "start" in self._manifest(), "begin to record")
        return self._manifest()

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until ``condition()``, while the recorder runs."""
        deadline = time.monotonic() + START_S
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                out, err = self.end()
                raise AssertionError(f"the recorder did not {what}: {out}{err}")
            time.sleep(0.02)

    def _manifest(self) -> dict:
        with contextlib.suppress(OSError, json.JSONDecodeError):
            return manifest(self.directory)
        return {}

    def end(self, timeout: float = END_S) -> tuple[str, str]:
        """Wait for its end; kill it if it does not end."""
        try:
            return self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"the recorder did not end: {out}{err}") from None


def record(
    directory: Path, *options: str, prefix: tuple[str, ...] = (), recorder: str = "bpf"
) -> tuple[int, str]:
    """Run a recording to its end; (exit code, output)."""
    running = Running(directory, *options, prefix=prefix, recorder=recorder)
    out, err = running.end()
    return running.process.returncode, out + err


def tool_pids(m: dict) -> list[int]:
    return [t["pid"] for t in m["tools"].values()]


def wait_gone(pids: list[int], timeout: float = END_S) -> list[int]:
    """The processes of ``pids`` that are still there after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        pids = [p for p in pids if Path(f"/proc/{p}").exists()]
        if not pids:
            break
        time.sleep(0.05)
    return pids


SUDO = ("env", "SUDO_UID=65534", "SUDO_GID=65533")


SMALL_DISK = """
set -e
mount -t tmpfs -o size=200m none "$1"
shift
exec "$@"
"""


def fill(file, rest):
    """Fill the disk up to the last ``rest`` bytes, while others write to it."""
    with open(file, "wb", buffering=0) as f:
        while True:
            space = os.statvfs(file.parent)
            free = space.f_bavail * space.f_frsize
            if free <= rest:
                return
            with contextlib.suppress(OSError):
                f.write(bytes(min(free - rest, 1 << 20)))


def owners(directory):
    """((uid, gid), mode) of the capture and of everything in it, the capture first."""
    found = [p.lstat() for p in (directory, *directory.rglob("*"))]
    return [((s.st_uid, s.st_gid), stat.S_IMODE(s.st_mode)) for s in found]


NO_TRACEFS = """
umount -l /sys/kernel/debug/tracing 2>/dev/null
umount -l /sys/kernel/tracing
umount -l /sys/kernel/debug
"$@"
code=$?
test -d /sys/kernel/tracing/events && echo still mounted
exit $code
"""


CLIENT = """
import socket, sys
port, n, size = map(int, sys.argv[1:])
with socket.create_connection(("127.0.0.1", port)) as s:
    for _ in range(n):
        s.sendall(b"x" * size)
        assert len(s.recv(size, socket.MSG_WAITALL)) == size
"""


class EchoServer:
    """A TCP echo server on loopback, on a reserved port because the recorder sees the whole machine.

    One request is 64 bytes; one call reads it and one call answers it. Only this server's thread is called COMM.
    """

    SIZE = 64
    COMM = "echo-server"

    def __init__(self) -> None:
        self._reserved = Port()
        self.port = self._reserved.number
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        Path("/proc/thread-self/comm").write_text(self.COMM)
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    while data := connection.recv(self.SIZE):
                        connection.sendall(data)

    def requests(self, n: int) -> None:
        """Send ``n`` requests, each after the answer to the previous one."""
        with socket.create_connection(("127.0.0.1", self.port)) as s:
            for _ in range(n):
                s.sendall(b"x" * self.SIZE)
                assert len(s.recv(self.SIZE, socket.MSG_WAITALL)) == self.SIZE

    def client(self, n: int) -> list[str]:
        """``requests(n)`` as a command."""
        return [sys.executable, "-c", CLIENT, str(self.port), str(n), str(self.SIZE)]

    def close(self) -> None:
        self._listener.close()
        self._reserved.release()


def perf_script(directory: Path, *options: str) -> str:
    """What perf script prints of the recording."""
    with tempfile.NamedTemporaryFile() as readable:
        readable.write(without_ksymbols((directory / "perf.data").read_bytes()))
        readable.flush()
        done = subprocess.run(
            ["perf", "script", "-i", readable.name, *options],
            capture_output=True,
            text=True,
            check=True,
            timeout=END_S,
        )
    return done.stdout


# Record types in perf.data: one describes the code of a BPF program, perf skips the other.
KSYMBOL, FINISHED_INIT = 17, 82


def without_ksymbols(data: bytes) -> bytes:
    """perf.data with the records of BPF programs' code disguised. No option of perf record leaves them out.

    If another perf records the whole machine too (for example another test run), these records end with garbage: the
    kernel counts their identification twice (perf_event_ksymbol_output() does not restore header.size), and perf script
    gives up with "failed to process type: 17". In 4 of 5 trials, one of two overlapping recordings was affected.
    """
    found = bytearray(data)
    at, size = struct.unpack_from("<QQ", data, 40)  # struct perf_file_header, data
    end = at + size
    while at < end:
        kind, length = struct.unpack_from("<IxxH", found, at)
        assert length >= 8, f"a record of {length} bytes at {at}"
        if kind == KSYMBOL:
            struct.pack_into("<I", found, at, FINISHED_INIT)
        at += length
    return bytes(found)


def own_python() -> str:
    return sys.executable
