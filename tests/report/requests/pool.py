# SPDX-License-Identifier: GPL-2.0-only
"""A server with one thread that reads and workers that reply, and four clients: ``pool.py PORT N``.

Prints its PID, begins when it reads a line, and ends when each client has N answers."""

import os
import queue
import selectors
import socket
import sys
import threading
import time

CLIENTS, WORKERS = 4, 2
port, n = int(sys.argv[1]), int(sys.argv[2])
work: queue.SimpleQueue = queue.SimpleQueue()


def worker() -> None:
    while (connection := work.get()) is not None:
        time.sleep(0.002)
        connection.send(b"reply")


def ask() -> None:
    with socket.create_connection(("127.0.0.1", port)) as s:
        for _ in range(n):
            s.send(b"request")
            assert s.recv(99) == b"reply"
            time.sleep(0.001)


with socket.create_server(("127.0.0.1", port)) as listener:
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    clients = []
    for _ in range(CLIENTS):
        if not (pid := os.fork()):
            ask()
            os._exit(0)
        clients.append(pid)
    chosen = selectors.DefaultSelector()
    for _ in range(CLIENTS):
        chosen.register(listener.accept()[0], selectors.EVENT_READ)
threads = [threading.Thread(target=worker) for _ in range(WORKERS)]
for thread in threads:
    thread.start()
while chosen.get_map():
    for key, _ in chosen.select():
        if key.fileobj.recv(99):
            work.put(key.fileobj)
        else:
            chosen.unregister(key.fileobj)
for _ in threads:
    work.put(None)
for thread in threads:
    thread.join()
sys.exit(any(os.waitpid(pid, 0)[1] for pid in clients))
