# SPDX-License-Identifier: GPL-2.0-only
"""A server that sends two requests to another one for each request, and the client of both: proxy.py PORT BACKEND_PORT REQUESTS.

Prints the server's PID and waits for a line before the first request.
"""

from __future__ import annotations

import multiprocessing
import socket
import sys
from collections.abc import Callable

SIZE = 32


def exactly(peer: socket.socket, n: int) -> bytes:
    """``n`` bytes, or fewer at the end of the stream."""
    data = b""
    while len(data) < n and (more := peer.recv(n - len(data))):
        data += more
    return data


def answers(port: int, reply: Callable[[bytes], bytes], ready: multiprocessing.synchronize.Event) -> None:
    """Answer every request of one connection."""
    with socket.create_server(("127.0.0.1", port)) as server:
        ready.set()
        peer, _ = server.accept()
        with peer:
            while request := exactly(peer, SIZE):
                peer.sendall(reply(request))


def proxy(port: int, backend: int, ready: multiprocessing.synchronize.Event) -> None:
    """Answer with the backend's replies to two requests."""
    with socket.create_connection(("127.0.0.1", backend)) as other:

        def ask(request: bytes) -> bytes:
            for _ in range(2):
                other.sendall(request)
                request = exactly(other, SIZE)
            return request

        answers(port, ask, ready)


def main(port: int, backend: int, n: int) -> None:
    """Both servers in separate processes, and ``n`` requests."""
    started = [multiprocessing.Event(), multiprocessing.Event()]
    last = multiprocessing.Process(target=answers, args=(backend, bytes, started[0]), daemon=True)
    last.start()
    started[0].wait()
    first = multiprocessing.Process(target=proxy, args=(port, backend, started[1]), daemon=True)
    first.start()
    started[1].wait()
    print(first.pid, flush=True)
    sys.stdin.readline()
    with socket.create_connection(("127.0.0.1", port)) as peer:
        for _ in range(n):
            peer.sendall(b"x" * SIZE)
            exactly(peer, SIZE)
    first.join()
    last.join()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
