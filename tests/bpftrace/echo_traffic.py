#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Known traffic on loopback: TCP and UDP, IPv4 and IPv6, echoed requests of 10, 20 and 30 bytes.

Prints one JSON line: pid and, per connection, family, protocol, ports and file descriptors.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

SIZES = (10, 20, 30)
TIME_WAIT = "06"  # in /proc/net/tcp; the kernel's timestamps call it CLOSE
HANGS_S = 120


def tcp(family: int, address: str, port: int) -> dict[str, int]:
    """A connection whose data is echoed until it closes."""
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
        seen: dict[str, int] = {}

        def serve() -> None:
            connection, _ = listener.accept()
            seen["server_fd"], seen["server_tid"] = connection.fileno(), threading.get_native_id()
            while data := connection.recv(100):
                connection.sendall(data)
            connection.close()

        server = threading.Thread(target=serve)
        server.start()
        with socket.create_connection((address, port)) as client:
            seen["client_port"], seen["client_fd"] = client.getsockname()[1], client.fileno()
            for n in SIZES:
                client.sendall(bytes(n))
                got = 0
                while got < n:
                    got += len(client.recv(100))
        server.join()
    wait_closed(port, seen["client_port"])
    return {"family": family, "proto": 6, "port": port, **seen}


def wait_closed(port: int, client_port: int) -> None:
    """Wait until both ends are closed: the last packets may be processed after the last call."""
    deadline = time.monotonic() + HANGS_S
    while open_ends(port, client_port):
        if time.monotonic() > deadline:
            sys.exit(f"error: the connection from port {client_port} to {port} does not close")
        time.sleep(0.01)


def open_ends(port: int, client_port: int) -> list[str]:
    """Lines of /proc/net/tcp for the ends of a connection that are not closed yet."""
    found = []
    for name in ("tcp", "tcp6"):
        path = Path("/proc/net", name)
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            fields = line.split()
            ports = {int(end.rpartition(":")[2], 16) for end in fields[1:3]}
            if ports == {port, client_port} and fields[3] != TIME_WAIT:
                found.append(line)
    return found


def udp(family: int, address: str, port: int) -> dict[str, int]:
    """Datagrams from a connected socket, echoed by an unconnected one."""
    with (
        socket.socket(family, socket.SOCK_DGRAM) as server,
        socket.socket(family, socket.SOCK_DGRAM) as client,
    ):
        server.bind((address, port))
        client.connect((address, port))
        for n in SIZES:
            client.send(bytes(n))
            data, peer = server.recvfrom(100)
            server.sendto(data, peer)
            client.recv(100)
        return {
            "family": family, "proto": 17, "port": port, "client_port": client.getsockname()[1],
            "server_fd": server.fileno(), "client_fd": client.fileno(), "server_tid": threading.get_native_id(),
        }  # fmt: skip


def main() -> None:
    """Entry point: the argument is the port, which no other run may use; UDP uses the same port."""
    port = int(sys.argv[1])
    done = [
        kind(family, address, port)
        for kind in (tcp, udp)
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
    ]
    print(json.dumps({"pid": os.getpid(), "connections": done}))


if __name__ == "__main__":
    main()
