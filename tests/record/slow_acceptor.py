#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""A server whose accepting thread pauses for 20 ms after every 20th connection, and its client: PORT threads|pool.

Each connection carries one request. ``threads``: a new thread serves it; ``pool``: a thread that waits for work serves it.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time

CONNECTIONS, EVERY, AWAY_S = 400, 20, 0.02


def serve(connection: socket.socket) -> None:
    """Serve one request."""
    with connection:
        connection.sendall(connection.recv(64))


def ask(port: int) -> None:
    """Open one connection after the other."""
    for _ in range(CONNECTIONS):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"request")
            connection.recv(64)
        time.sleep(0.002)


def main() -> None:
    """Run until the client is done."""
    port, kind = int(sys.argv[1]), sys.argv[2]
    listener = socket.create_server(("127.0.0.1", port))
    child = os.fork()
    if not child:
        listener.close()
        ask(port)
        os._exit(0)
    waiting: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()

    def work() -> None:
        while True:
            serve(waiting.get())

    if kind == "pool":
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
    for number in range(CONNECTIONS):
        connection, _ = listener.accept()
        if kind == "pool":
            waiting.put(connection)
        else:
            threading.Thread(target=serve, args=[connection]).start()
        if number % EVERY == EVERY - 1:
            time.sleep(AWAY_S)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
