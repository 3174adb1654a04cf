#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Runs inside a guest of guests.py: nsight-capsule on its device, and one end of a connection. Writes DIR/ROLE.capsules.

ROLE client sends a request every 20 ms without waiting for replies; server answers each request.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PORT = 7100
ADDRESSES = {"client": "10.97.0.1", "server": "10.97.0.2"}
REQUEST, REPLY = 200, 400
EVERY_S = 0.02


def network(address: str) -> None:
    """Bring the guest's only device up."""
    for words in (
        ("modprobe", "virtio_net"),
        ("ip", "addr", "add", f"{address}/24", "dev", "eth0"),
        ("ip", "link", "set", "eth0", "up"),
    ):
        subprocess.run(words, check=True)


def received(connection: socket.socket, size: int) -> bool:
    """Whether that many bytes came before the connection ended."""
    while size:
        part = connection.recv(size)
        if not part:
            return False
        size -= len(part)
    return True


def serve(directory: Path) -> None:
    """Answer until the client closes."""
    with socket.create_server((ADDRESSES["server"], PORT)) as listener:
        (directory / "listening").touch()
        connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection, contextlib.suppress(ConnectionError):
        while received(connection, REQUEST):
            connection.sendall(b"r" * REPLY)


def ask(directory: Path, seconds: float) -> None:
    """Send requests at their times, for the given duration."""
    while not (directory / "listening").exists():
        time.sleep(0.2)
    connection = socket.create_connection((ADDRESSES["server"], PORT), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    (directory / "asking").touch()
    n = int(seconds / EVERY_S)

    def read() -> None:
        for _ in range(n):
            received(connection, REPLY)

    reader = threading.Thread(target=read)
    reader.start()
    first = time.monotonic()
    for i in range(n):
        time.sleep(max(first + i * EVERY_S - time.monotonic(), 0))
        connection.sendall(b"q" * REQUEST)
    reader.join()
    connection.close()


def main() -> int:
    """Entry point."""
    p = argparse.ArgumentParser(description="One of the two guests of guests.py.")
    p.add_argument("role", choices=sorted(ADDRESSES))
    p.add_argument("directory", type=Path)
    p.add_argument("--session", required=True)
    p.add_argument("--seconds", type=float, required=True)
    a = p.parse_args()
    network(ADDRESSES[a.role])
    made = Path("/tmp") / f"{a.role}.capsules"
    options = [
        "--point",
        "eth0",
        "--port",
        str(PORT),
        "--rate",
        "1",
        "--session",
        a.session,
        "--leave",
        "-o",
        str(made),
    ]
    tool = [sys.executable, str(ROOT / "tools/nsight-capsule/nsight-capsule")]
    with subprocess.Popen([*tool, *options], stderr=subprocess.PIPE, text=True) as capsule:
        assert capsule.stderr
        for line in capsule.stderr:
            sys.stderr.write(line)
            if line.startswith("stamping at "):
                break
        else:
            return 1
        if a.role == "client":
            ask(a.directory, a.seconds)
        else:
            serve(a.directory)
        capsule.send_signal(signal.SIGTERM)
        sys.stderr.write(capsule.stderr.read())
    (made / "control").unlink(missing_ok=True)
    shutil.copytree(made, a.directory / made.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
