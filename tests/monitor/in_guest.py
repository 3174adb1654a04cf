#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Runs inside a guest: nsight-monitor beside messages over loopback; writes the monitor's JSON lines into the given file. Before that, the
kernel takes the programs with options that change them. After that, nsight-histograms writes its lines for udp-start without function probes
into a second file, whose name ends in ".no-probes"."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

MONITOR = Path(__file__).resolve().parents[2] / "tools/nsight-monitor/nsight-monitor"
HISTOGRAMS = MONITOR.parent / "histograms/nsight-histograms"
OPTIONS = (
    "--port 80 --comm x --queue 2",
    "--peer 198.18.0.0/15 --ifindex 1",
    "--group-by port",
    "--group-by iface --port 80",
    "--stages driver-to-completion,accept-queue,tcp-driver --port 80",
    "--stages udp-start --port 80 --ifindex 1 --group-by port",
    "--stages udp-start --netns 1 --group-by netns",
)
HANGS_S = 300


def echo(server: socket.socket) -> None:
    """Send back the data of one connection, or of any sender."""
    if server.type == socket.SOCK_DGRAM:
        while True:
            server.sendto(*server.recvfrom(2048))
    connection, _ = server.accept()
    while data := connection.recv(2048):
        connection.send(data)


def ask(clients: list[socket.socket]) -> None:
    """Exchange messages and replies for as long as this program runs."""
    while True:
        for client in clients:
            client.send(b"x" * 50)
            client.recv(2048)
        time.sleep(0.002)


def main() -> int:
    servers = [socket.socket(socket.AF_INET, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)]
    clients = []
    for server in servers:
        server.bind(("127.0.0.1", 0))
        if server.type == socket.SOCK_STREAM:
            server.listen()
        threading.Thread(target=echo, args=(server,), daemon=True).start()
        clients.append(socket.socket(socket.AF_INET, server.type))
        clients[-1].connect(server.getsockname())
    threading.Thread(target=ask, args=(clients,), daemon=True).start()
    for options in OPTIONS:
        command = [str(HISTOGRAMS), "--duration-ms", "1", *options.split()]
        subprocess.run(command, stdout=subprocess.DEVNULL, timeout=HANGS_S, check=True)
    with open(sys.argv[1], "wb") as out:
        command = [str(MONITOR), "--once", "--interval", "5", "--json"]
        code = subprocess.run(command, stdout=out, timeout=HANGS_S, check=False).returncode
    with open(sys.argv[1] + ".no-probes", "wb") as out:
        for options in ("--group-by port --queue 1 --comm x --port 80", "--duration-ms 3000"):
            command = [
                str(HISTOGRAMS),
                "--no-probes",
                "--stages",
                "udp-start",
                "--duration-ms",
                "1",
                *options.split(),
            ]
            out.truncate(0)
            out.seek(0)
            subprocess.run(command, stdout=out, timeout=HANGS_S, check=False)
    return code


if __name__ == "__main__":
    sys.exit(main())
