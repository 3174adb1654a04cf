#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Servers that send back what they receive, each built in another way than memcached, Redis and nginx.

    echo_servers.py asyncio|datagrams|front ADDRESS PORT DIRECTORY

``asyncio``: one event loop. ``datagrams``: four threads, each with a UDP socket on the same port (SO_REUSEPORT). ``front``: a
thread for each connection, which asks a second process through a Unix socket.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

SIZE = 65_536
N_THREADS = 4


async def _loop(address: str, port: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while asked := await reader.read(SIZE):
            writer.write(asked)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, address, port)
    await server.serve_forever()


def event_loop(address: str, port: int) -> None:
    """Serve in one thread."""
    asyncio.run(_loop(address, port))


def datagrams(address: str, port: int) -> None:
    """Serve in threads that share a UDP port."""

    def serve() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            own.bind((address, port))
            while True:
                own.sendto(*own.recvfrom(SIZE))

    for _ in range(N_THREADS):
        threading.Thread(target=serve, daemon=True).start()
    # The testbed waits for a TCP port.
    accept_each(socket.create_server((address, port)), lambda _connection: None)


def accept_each(listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    """A thread for each connection, for ever."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=[connection], daemon=True).start()


def echo(connection: socket.socket) -> None:
    """Until the peer closes."""
    while asked := connection.recv(SIZE):
        connection.sendall(asked)


#: In the directory of the server: a socket's name has at most 107 bytes.
BACK = "back"


def back() -> None:
    """The second process."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(BACK)
        listener.listen(128)
        print("listening", flush=True)
        accept_each(listener, echo)


def front(address: str, port: int) -> None:
    """Serve by asking the second process, which ends with this one."""
    argv = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        sys.executable,
        __file__,
        "back",
        address,
        str(port),
        str(Path.cwd()),
    ]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()

        def serve(connection: socket.socket) -> None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with socket.socket(socket.AF_UNIX) as other:
                other.connect(BACK)
                while asked := connection.recv(SIZE):
                    other.sendall(asked)
                    connection.sendall(other.recv(len(asked), socket.MSG_WAITALL))

        accept_each(socket.create_server((address, port), backlog=128), serve)


def prepare(_port: int, directory: Path) -> None:
    """The server runs as a user who may not read this file where it is."""
    shutil.copy(__file__, directory / "echo_servers.py")


def main() -> None:
    """Command line."""
    what, address, port, directory = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    os.chdir(directory)
    if what == "back":
        back()
    {"asyncio": event_loop, "datagrams": datagrams, "front": front}[what](address, port)


if __name__ == "__main__":
    main()
