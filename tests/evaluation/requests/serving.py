# SPDX-License-Identifier: GPL-2.0-only
"""Small servers with one known fault each, and their client; the code that delays a request logs it.

    serving.py serve CASE PORT LOG      a line "port start end" (peer's port, CLOCK_MONOTONIC ns) for each delayed request
    serving.py load PORT SECONDS KIND   four connections, one request per millisecond each; KIND is plain, http, or slow: the client
                                        waits before it reads a large reply, which does not fit into its buffer

It imports nothing from the product.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import mmap
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SIZE, REPLY = 32, 64
LARGE = 200_000
HELD_S, EVERY = 0.010, 40
#: Shorter waits are not a fault.
LEAST_NS = 500_000

Note = Callable[[int, int, int], None]


class Log:
    """Lines of delayed requests."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("a", buffering=1)  # noqa: SIM115
        self._lock = threading.Lock()

    def __call__(self, port: int, start: int, end: int) -> None:
        if end - start >= LEAST_NS:
            with self._lock:
                self._file.write(f"{port} {start} {end}\n")


def received(connection: socket.socket, size: int = SIZE) -> bool:
    """Whether a complete request came."""
    got = 0
    while got < size:
        data = connection.recv(size - got)
        if not data:
            return False
        got += len(data)
    return True


class Mutex:
    """Every request takes a lock; sometimes a separate thread holds it and sleeps."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        threading.Thread(target=self.hold, daemon=True, name="holder").start()

    def hold(self) -> None:
        while True:
            time.sleep(0.1)
            with self.lock:
                time.sleep(HELD_S)

    def __call__(self, n: int) -> int:
        with self.lock:
            return REPLY


class Cold:
    """Sometimes a request reads a page of a file that is not cached."""

    def __init__(self) -> None:
        self.fd = os.open(os.environ["DATA"], os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        for _ in range(64):
            os.write(self.fd, os.urandom(1 << 20))
        os.fsync(self.fd)
        self.map = mmap.mmap(self.fd, 64 << 20, prot=mmap.PROT_READ)

    def __call__(self, n: int) -> int:
        if n % EVERY == 0:
            self.map.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            for place in range(0, 64 << 20, 1 << 22):
                self.map[place]
        return REPLY


class Synced:
    """Sometimes a request must be on disk before it is answered."""

    def __init__(self) -> None:
        self.fd = os.open(os.environ["DATA"], os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)

    def __call__(self, n: int) -> int:
        if n % EVERY == 0:
            os.pwrite(self.fd, bytes(4096), 0)
            os.fsync(self.fd)
        return REPLY


class Thrash(Cold):
    """Sometimes a request reads much of a file; only the memory limit keeps the file out of the page cache."""

    def __call__(self, n: int) -> int:
        if n == 1:  # pages written before are not charged to the limited group
            self.map.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            self.map.madvise(mmap.MADV_RANDOM)
        if n % EVERY == 0:
            for place in range(0, 64 << 20, 1 << 18):
                self.map[place + (n // EVERY << 12) % (1 << 18)]
        return REPLY


class Sleepy:
    """Sometimes the server sleeps during a request."""

    def __call__(self, n: int) -> int:
        if n % EVERY == 0:
            time.sleep(HELD_S)
        return REPLY


class Pieces:
    """Without TCP_NODELAY; sometimes a reply is written in two pieces: the second waits until the first is acknowledged."""

    #: The least time by which the peer delays the acknowledgement; the exact time is unknown here.
    PUT_OFF_NS = 30_000_000

    def __call__(self, n: int) -> int:
        return REPLY

    def reply(self, connection: socket.socket, n: int, log: Note) -> None:
        """The reply's writes."""
        whole = REPLY.to_bytes(4, "big") + bytes(REPLY - 4)
        if n % EVERY:
            connection.sendall(whole)
            return
        connection.sendall(whole[:40])
        start = time.monotonic_ns()
        connection.sendall(whole[40:])
        log(connection.getpeername()[1], start, start + self.PUT_OFF_NS)


class Lookup:
    """Sometimes a name must be looked up first, and the name server is slow."""

    def __init__(self) -> None:
        self.names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.names.bind(("127.0.0.1", 0))
        self.address, parent = self.names.getsockname(), os.getpid()
        if not os.fork():
            self.answer(parent)
        self.names.close()

    def answer(self, parent: int) -> None:
        """A separate process, which ends with ``parent``."""
        Path("/proc/self/comm").write_text("names")
        self.names.settimeout(0.5)
        while os.getppid() == parent:
            with contextlib.suppress(TimeoutError):
                asked, peer = self.names.recvfrom(512)
                time.sleep(HELD_S)
                self.names.sendto(asked, peer)
        os._exit(0)

    def __call__(self, n: int) -> int:
        if n % EVERY == 0:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as resolver:
                resolver.connect(self.address)
                resolver.send(b"name")
                resolver.recv(512)
        return REPLY


class Pool:
    """Two workers for all connections; sometimes they sleep during three requests in a row, and later requests wait for a worker."""

    def __init__(self) -> None:
        self.workers = ThreadPoolExecutor(2, "worker")

    def __call__(self, n: int) -> int:
        return self.workers.submit(lambda: (n % (3 * EVERY) < 3 and time.sleep(HELD_S)) or REPLY).result()


class Garbage:
    """Sometimes garbage is collected, in the thread that works on a request."""

    def __init__(self) -> None:
        self.heap = [[[] for _ in range(10)] for _ in range(20_000)]
        gc.disable()

    def __call__(self, n: int) -> int:
        if n % EVERY == 0:
            gc.collect()
        return REPLY


class Plain:
    """No fault."""

    def __call__(self, n: int) -> int:
        return REPLY


class Large:
    """Sometimes the reply is large."""

    def __call__(self, n: int) -> int:
        return LARGE if n % EVERY == 0 else REPLY


CASES = {
    "mutex": Mutex,
    "cold": Cold,
    "sleep": Sleepy,
    "plain": Plain,
    "large": Large,
    "pieces": Pieces,
    "lookup": Lookup,
    "synced": Synced,
    "thrash": Thrash,
    "pool": Pool,
    "garbage": Garbage,
}


def serve(case: str, port: int, log: Log) -> None:
    """A thread for each connection."""
    work = CASES[case]()
    server = socket.create_server(("127.0.0.1", port), backlog=64)
    print("ready", flush=True)
    turn = iter(range(1, 1 << 40))
    while True:
        connection, _ = server.accept()
        threading.Thread(target=attend, args=(connection, work, turn, log), daemon=True).start()


def attend(connection: socket.socket, work: Callable[[int], int], turn: object, log: Log) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, not isinstance(work, Pieces))
    port = connection.getpeername()[1]
    while received(connection):
        start = time.monotonic_ns()
        n = next(turn)  # type: ignore[call-overload]
        size = work(n)
        if isinstance(work, Pieces):
            work.reply(connection, n, log)
            continue
        # Where the fault lies elsewhere, a server that had no core for a while is no delay of its own.
        if not isinstance(work, (Plain, Large)) and (isinstance(work, (Mutex, Pool)) or n % EVERY == 0):
            log(port, start, time.monotonic_ns())
        connection.sendall(size.to_bytes(4, "big") + bytes(size - 4))


async def loop(port: int, log: Log, blocks: bool) -> None:
    """One thread for all connections; optionally, sometimes a request blocks it."""
    turn = 0

    async def attend_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal turn
        peer = writer.get_extra_info("peername")[1]
        while await reader.read(SIZE):
            turn += 1
            if blocks and turn % EVERY == 0:
                start = time.monotonic_ns()
                time.sleep(HELD_S)
                log(peer, start, time.monotonic_ns())
            writer.write(REPLY.to_bytes(4, "big") + bytes(REPLY - 4))

    await asyncio.start_server(attend_one, "127.0.0.1", port)
    print("ready", flush=True)
    await asyncio.sleep(1e6)


def http(port: int, log: Log) -> None:
    """A backend of a proxy; the backend sometimes sleeps."""
    server = socket.create_server(("127.0.0.1", port), backlog=64)
    print("ready", flush=True)
    turn = iter(range(1, 1 << 40))

    def attend_one(connection: socket.socket) -> None:
        while b"\r\n\r\n" in (asked := connection.recv(65536)):
            if next(turn) % EVERY == 0:
                start = time.monotonic_ns()
                time.sleep(HELD_S)
                log(int(asked.partition(b"X-Port: ")[2].split(b"\r")[0]), start, time.monotonic_ns())
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    while True:
        connection, _ = server.accept()
        threading.Thread(target=attend_one, args=(connection,), daemon=True).start()


def load(port: int, seconds: float, kind: str) -> None:
    """Closed loop on four connections."""
    end = time.monotonic() + seconds

    def ask() -> None:
        connection = socket.socket()
        if kind == "slow":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        connection.connect(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while time.monotonic() < end:
            if kind == "http":
                connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                got = b""
                while not got.endswith(b"ok"):
                    got += connection.recv(65536)
            else:
                connection.sendall(bytes(SIZE))
                size = got_n = 0
                while not size or got_n < size:
                    data = connection.recv(1 << 20)
                    if not size and (size := int.from_bytes(data[:4], "big")) > REPLY and kind == "slow":
                        time.sleep(HELD_S)
                    got_n += len(data)
            time.sleep(0.001)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "load":
        load(int(words[0]), float(words[1]), words[2])
    elif words[0] in ("loop", "quiet"):
        asyncio.run(loop(int(words[1]), Log(words[2]), words[0] == "loop"))
    elif words[0] == "http":
        http(int(words[1]), Log(words[2]))
    else:
        serve(words[0], int(words[1]), Log(words[2]))
