#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Traffic on loopback. Each case is one difficulty with timestamps that are kept until their message ends.

Arguments: the port, which no other run may use, and the cases. Prints one JSON line: for each case, the client's port
and what was read and sent.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import select
import socket
import sys
import termios
import threading
import time
from collections.abc import Iterator

N_REQUESTS = 400
SLOW_S = 1.0
#: More packets than one read takes out of the maps, fewer than the maps hold.
N_TOGETHER = 40
N_BULK = 4 << 20
HANGS_S = 120


def pair(port: int) -> tuple[socket.socket, socket.socket]:
    """The server's end and the client's end of a connection."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        client = socket.create_connection(("127.0.0.1", port))
        server, _ = listener.accept()
    for end in (server, client):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return server, client


def send_packet(client: socket.socket, server: socket.socket, n: int) -> None:
    """Send ``n`` bytes as a separate packet: while a packet is on its way, the kernel may add bytes to it."""
    before = unread_bytes(server)
    client.sendall(bytes(n))
    while unread_bytes(server) < before + n:
        time.sleep(0.0001)


def unread_bytes(server: socket.socket) -> int:
    """The number of bytes that wait to be read."""
    waiting = array.array("i", [0])
    fcntl.ioctl(server, termios.FIONREAD, waiting)
    return waiting[0]


def of(client: socket.socket, **counts: int) -> dict[str, int]:
    """The output of a case."""
    port = client.getsockname()[1]
    client.close()
    return {"client_port": port, **counts}


def requests(port: int) -> dict[str, int]:
    """Requests of ten bytes over one connection, each answered before the next."""
    server, client = pair(port)
    for _ in range(N_REQUESTS):
        client.sendall(bytes(10))
        server.sendall(server.recv(100))
        client.recv(100)
    server.close()
    return of(client, reads=2 * N_REQUESTS)


def datagrams(port: int) -> dict[str, int]:
    """The same over UDP."""
    with socket.socket(type=socket.SOCK_DGRAM) as server, socket.socket(type=socket.SOCK_DGRAM) as client:
        server.bind(("127.0.0.1", port))
        client.connect(("127.0.0.1", port))
        for _ in range(N_REQUESTS):
            client.send(bytes(10))
            data, peer = server.recvfrom(100)
            server.sendto(data, peer)
            client.recv(100)
        return of(client, reads=2 * N_REQUESTS)


def in_parts(port: int) -> dict[str, int]:
    """A packet of ten bytes that two reads take: three bytes and seven bytes."""
    server, client = pair(port)
    client.sendall(bytes(10))
    assert len(server.recv(3)) == 3
    assert len(server.recv(100)) == 7
    server.close()
    return of(client)


def together(port: int) -> dict[str, int]:
    """Packets of ten bytes that one read takes, then one of seven bytes that another read takes."""
    server, client = pair(port)
    for _ in range(N_TOGETHER):
        send_packet(client, server, 10)
    assert len(server.recv(10 * N_TOGETHER, socket.MSG_WAITALL)) == 10 * N_TOGETHER
    client.sendall(bytes(7))
    assert len(server.recv(100)) == 7
    server.close()
    return of(client)


def unread(port: int) -> dict[str, int]:
    """Two packets that nobody reads before the connection is closed."""
    server, client = pair(port)
    send_packet(client, server, 10)
    send_packet(client, server, 20)
    server.close()
    return of(client)


def ending(port: int) -> dict[str, int]:
    """One read takes ten bytes and the end of that way. The other way, seven bytes are read before the end of that way, and
    eight bytes together with it."""
    server, client = pair(port)
    client.sendall(bytes(10))
    client.shutdown(socket.SHUT_WR)
    wait_for_end(server)
    assert len(server.recv(100)) == 10
    server.sendall(bytes(7))
    while unread_bytes(client) < 7:
        time.sleep(0.0001)
    assert len(client.recv(100)) == 7
    server.sendall(bytes(8))
    server.close()
    wait_for_end(client)
    assert len(client.recv(100)) == 8
    return of(client)


def urgent(port: int) -> dict[str, int]:
    """Eleven bytes, the last one urgent, then seven more. One urgent byte is read after the ten in front of it, the next one
    before them."""
    server, client = pair(port)
    poller = select.poll()
    poller.register(server, select.POLLPRI)
    for ahead in (False, True):
        client.send(bytes(11), socket.MSG_OOB)
        assert poller.poll(HANGS_S * 1000)
        if ahead:
            assert len(server.recv(1, socket.MSG_OOB)) == 1
        assert len(server.recv(10)) == 10
        if not ahead:
            assert len(server.recv(1, socket.MSG_OOB)) == 1
        client.sendall(bytes(7))
        assert len(server.recv(7)) == 7
    server.close()
    return of(client)


def copies(port: int) -> dict[str, int]:
    """A raw socket gets a copy of each datagram and reads it; its local port is the protocol's number."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as raw,
        socket.socket(type=socket.SOCK_DGRAM) as server,
        socket.socket(type=socket.SOCK_DGRAM) as client,
    ):
        server.bind(("127.0.0.1", port))
        client.connect(("127.0.0.1", port))
        raw.connect(("127.0.0.1", port))  # the peer's port, for the filter
        for _ in range(10):
            client.send(bytes(10))
            server.recv(100)
            while len(raw.recv(100)) != 20 + 8 + 10:
                pass  # a datagram of somebody else
    return {"client_port": socket.IPPROTO_UDP}


def wait_for_end(reader: socket.socket) -> None:
    """Wait until the peer's end of the connection has arrived, which the last bytes did before."""
    poller = select.poll()
    poller.register(reader, select.POLLRDHUP)
    assert poller.poll(HANGS_S * 1000)


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """This thread stays on one of its cores."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def dropped(port: int) -> dict[str, int]:
    """More datagrams than the receiver's buffer holds, then reads until it is empty, then one more datagram; on one core.

    The script takes a datagram for dropped when the next one arrives on the same core. If a sender moves to another
    core, its last datagram before that has no line (the script's MISSES).
    """
    with (
        one_core(),
        socket.socket(type=socket.SOCK_DGRAM) as server,
        socket.socket(type=socket.SOCK_DGRAM) as client,
    ):
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        server.bind(("127.0.0.1", port))
        client.connect(("127.0.0.1", port))
        for _ in range(40):
            client.send(bytes(100))
        server.setblocking(False)
        n = 0
        try:
            while server.recv(200):
                n += 1
        except BlockingIOError:
            pass
        client.send(bytes(7))
        server.setblocking(True)
        assert len(server.recv(200)) == 7
        return of(client, reads=n + 1)


def bulk(port: int) -> dict[str, int]:
    """A send of more bytes than the buffers hold, to a slow reader."""
    server, client = pair(port)

    def read() -> None:
        left = N_BULK
        while left:
            time.sleep(0.001)
            left -= len(server.recv(1 << 16))

    reader = threading.Thread(target=read)
    reader.start()
    client.sendall(bytes(N_BULK))
    reader.join()
    server.close()
    return of(client, bytes=N_BULK)


def slow(port: int) -> dict[str, int]:
    """One request of eleven bytes that waits for its reader, among many requests that do not wait."""
    server, client = pair(port)
    for number in range(N_REQUESTS):
        client.sendall(bytes(11 if number == N_REQUESTS // 2 else 10))
        if number == N_REQUESTS // 2:
            time.sleep(SLOW_S)
        server.sendall(server.recv(100))
        client.recv(100)
    server.close()
    return of(client, reads=2 * N_REQUESTS)


CASES = {
    case.__name__: case
    for case in (requests, datagrams, in_parts, together, unread, ending, urgent, copies, dropped, bulk, slow)
}

if __name__ == "__main__":
    print(json.dumps({name: CASES[name](int(sys.argv[1])) for name in sys.argv[2:]}))
