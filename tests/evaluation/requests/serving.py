# SPDX-License-Identifier: GPL-2.0-only
"""Small servers with one known fault each, and their client; the code that delays a request logs it.

    serving.py serve CASE PORT LOG      a line "port start end" (peer's port, CLOCK_MONOTONIC ns) for each delayed request: only
                                        what was injected, not what else happened meanwhile (delays.py)
    serving.py load PORT SECONDS KIND   four connections, one request per millisecond each; KIND is plain, http, or slow: the client
                                        waits before it reads a large reply, which does not fit into its buffer

It imports nothing from the product.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import gc
import mmap
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if __package__:
    from .delays import Acts, Departures, Log, Note, Span, Work, holds_back
else:
    from delays import Acts, Departures, Log, Note, Span, Work, holds_back

SIZE, REPLY = 32, 64
LARGE = 200_000
HELD_S, EVERY = 0.010, 40
HELD_NS = int(HELD_S * 1e9)


def received(connection: socket.socket, size: int = SIZE) -> bool:
    """Whether a complete request came."""
    got = 0
    while got < size:
        data = connection.recv(size - got)
        if not data:
            return False
        got += len(data)
    return True


class Server:
    """Sometimes what the thread of a request does itself is the fault."""

    #: The fault's size, if it is known: it may take longer for other reasons.
    MOST_NS: int | None = None

    def __call__(self, n: int) -> int:
        """Work on the n-th request; returns the reply's size."""
        return REPLY

    def delays(self, n: int) -> tuple[int, list[Span]]:
        """The same, and what was injected."""
        own = Work(self.MOST_NS)
        size = self(n)
        return size, own.until_now() if n % EVERY == 0 else []


class Mutex(Server):
    """Every request takes a lock; sometimes a separate thread holds it and sleeps."""

    def __init__(self) -> None:
        self.lock, self.holds = threading.Lock(), Acts()
        threading.Thread(target=self.hold, daemon=True, name="holder").start()

    def hold(self) -> None:
        while True:
            time.sleep(0.1)
            with self.lock:
                self.holds.act(HELD_S)

    def delays(self, n: int) -> tuple[int, list[Span]]:
        """The reply's size; the request is delayed while the lock is held, not while it waits for a core."""
        start = time.monotonic_ns()
        with self.lock:
            return REPLY, self.holds.within(start, time.monotonic_ns())


class Cold(Server):
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


class Synced(Server):
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


class Sleepy(Server):
    """Sometimes the server sleeps during a request."""

    MOST_NS = HELD_NS

    def __call__(self, n: int) -> int:
        if n % EVERY == 0:
            time.sleep(HELD_S)
        return REPLY


class Pieces(Server):
    """Without TCP_NODELAY; sometimes a reply is written in two pieces: the second waits until the first is acknowledged."""

    #: The least time by which the peer delays the acknowledgement; the exact time is unknown here.
    PUT_OFF_NS = 30_000_000

    def reply(self, connection: socket.socket, n: int, log: Note) -> None:
        """The reply's writes."""
        whole = REPLY.to_bytes(4, "big") + bytes(REPLY - 4)
        if n % EVERY:
            connection.sendall(whole)
            return
        connection.sendall(whole[:40])
        start = time.monotonic_ns()
        connection.sendall(whole[40:])
        if holds_back(connection):
            log(connection.getpeername()[1], [(start, start + self.PUT_OFF_NS)])


class Lookup(Server):
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
        sleeps = Acts()
        while os.getppid() == parent:
            with contextlib.suppress(TimeoutError):
                asked, peer = self.names.recvfrom(512)
                sleeps.act(HELD_S)
                slept = sleeps.within(int(asked), time.monotonic_ns())
                self.names.sendto(repr(slept).encode(), peer)
        os._exit(0)

    def delays(self, n: int) -> tuple[int, list[Span]]:
        """The reply's size; the request is delayed while the name server sleeps, for it or for an earlier one."""
        if n % EVERY:
            return REPLY, []
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as resolver:
            resolver.connect(self.address)
            resolver.send(b"%d" % time.monotonic_ns())
            return REPLY, ast.literal_eval(resolver.recv(512).decode())


class Pool(Server):
    """Two workers for all connections; sometimes they sleep during three requests in a row, and later requests wait for a worker."""

    WORKERS = 2

    def __init__(self) -> None:
        self.workers, self.sleeps = ThreadPoolExecutor(self.WORKERS, "worker"), Acts()

    def delays(self, n: int) -> tuple[int, list[Span]]:
        """The reply's size; the request is delayed by its own sleep, and before that while every worker sleeps."""
        asked = time.monotonic_ns()

        def work() -> list[Span]:
            begun = time.monotonic_ns()
            waited = self.sleeps.within(asked, begun, self.WORKERS)
            if n % (3 * EVERY) >= 3:
                return waited
            self.sleeps.act(HELD_S)
            return [*waited, (begun, min(time.monotonic_ns(), begun + HELD_NS))]

        return REPLY, self.workers.submit(work).result()


class Garbage(Server):
    """Sometimes garbage is collected, in the thread that works on a request."""

    def __init__(self) -> None:
        self.heap = [[[] for _ in range(10)] for _ in range(20_000)]
        gc.disable()

    def __call__(self, n: int) -> int:
        if n % EVERY == 0:
            gc.collect()
        return REPLY


class Plain(Server):
    """No fault."""

    def delays(self, n: int) -> tuple[int, list[Span]]:
        """The fault, if any, lies elsewhere: a server that had no core for a while is no delay."""
        return self(n), []


class Large(Plain):
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


def attend(connection: socket.socket, work: Server, turn: Iterator[int], log: Note) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, not isinstance(work, Pieces))
    port = connection.getpeername()[1]
    # Of a large reply, everything behind the send is the fault: what leaves late waits for its link, or for its reader.
    departures = Departures(connection) if isinstance(work, Large) else None
    send = connection.sendall if departures is None else departures.send
    while True:
        more = received(connection)
        if departures is not None:
            log(port, departures.delay())
        if not more:
            return
        n = next(turn)
        if isinstance(work, Pieces):
            work.reply(connection, n, log)
            continue
        size, delays = work.delays(n)
        log(port, delays)
        send(size.to_bytes(4, "big") + bytes(size - 4))


async def loop(port: int, log: Log, blocks: bool) -> None:
    """One thread for all connections; optionally, sometimes a request blocks it."""
    turn = 0

    async def attend_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal turn
        peer = writer.get_extra_info("peername")[1]
        while await reader.read(SIZE):
            turn += 1
            if blocks and turn % EVERY == 0:
                own = Work(HELD_NS)
                time.sleep(HELD_S)
                log(peer, own.until_now())
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
                own = Work(HELD_NS)
                time.sleep(HELD_S)
                log(int(asked.partition(b"X-Port: ")[2].split(b"\r")[0]), own.until_now())
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
