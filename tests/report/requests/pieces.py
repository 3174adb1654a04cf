# SPDX-License-Identifier: GPL-2.0-only
"""An HTTP server that works 5 ms before each of the three send calls of a reply, and its client: ``pieces.py PORT N``.

Prints its PID, begins when it reads a line, and ends when the client has N answers."""

import os
import socket
import sys
import time

WORK_S = 0.005
PIECES = (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", b"first", b"other")
port, n = int(sys.argv[1]), int(sys.argv[2])


def ask() -> None:
    with socket.create_connection(("127.0.0.1", port)) as s:
        for _ in range(n):
            s.send(b"GET / HTTP/1.1\r\nHost: pieces\r\n\r\n")
            left = sum(map(len, PIECES))
            while left:
                left -= len(s.recv(left))


with socket.create_server(("127.0.0.1", port)) as listener:
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    if not (client := os.fork()):
        ask()
        os._exit(0)
    connection = listener.accept()[0]
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while connection.recv(4096):
    for piece in PIECES:
        time.sleep(WORK_S)
        connection.send(piece)
sys.exit(os.waitpid(client, 0)[1])
