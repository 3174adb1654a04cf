# SPDX-License-Identifier: GPL-2.0-only
"""An echo server on loopback that answers in pieces, so that clients meet partial reads."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

Answer = Callable[[bytes], list[bytes]]


def _serve(conn: socket.socket, answer: Answer, unread_s: float) -> None:
    with conn:
        time.sleep(unread_s)
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            try:
                data = conn.recv(65536)
                if not data:
                    return
                for piece in answer(data):
                    conn.sendall(piece)
            except OSError:
                return


@contextlib.contextmanager
def tcp_server(answer: Answer, unread_s: float = 0) -> Iterator[int]:
    """A TCP server on 127.0.0.1 that sends ``answer(data)``, piece by piece; yields its port.

    For the first ``unread_s`` seconds of a connection it reads nothing and its receive buffer stays small:
    a client can send only as much as fits into its send buffer.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if unread_s:  # an explicit size does not grow; connections inherit it
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)

        def accept() -> None:
            while True:
                try:
                    conn, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=_serve, args=(conn, answer, unread_s), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def udp_server(drop: Callable[[int], bool], late: bool = False) -> Iterator[int]:
    """A UDP echo server that does not answer datagram n (0..) when ``drop(n)``; yields its port.

    With ``late`` it does answer, but only when the next datagram has come.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(0.1)
        leave = threading.Event()

        def serve() -> None:
            n, kept = 0, b""
            while not leave.is_set():
                try:
                    data, peer = sock.recvfrom(65536)
                except TimeoutError:
                    continue
                if kept:
                    sock.sendto(kept, peer)
                    kept = b""
                if not drop(n):
                    sock.sendto(data, peer)
                elif late:
                    kept = data
                n += 1

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield sock.getsockname()[1]
        leave.set()
        thread.join()
