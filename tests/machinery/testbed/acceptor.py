#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""A server and a client with one connection for each request, for which the accepting thread can come late.

    acceptor.py serve ADDRESS PORT DIRECTORY
    acceptor.py ask ADDRESS PORT -l LOG [-c N -n COUNT | -r RATE -d SECONDS] [--start-delay MS]

``serve``: one thread accepts, four others answer. On SIGUSR1 it reads DIRECTORY/plan (connections, ms): from then on the accepting
thread is away for so many ms after so many connections, and logs when it was in DIRECTORY/away.tsv. ``ask``: the options and
the log of nsight-load.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import queue
import random
import shutil
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

SIZE = 100
#: Local port of the first request; each has another one, so that port and bytes identify a request.
PORTS = 20_000
N_WORKERS = 4
HEAD = "#nsight-load 1 clock=monotonic proto=echo\nnumber\tconn\tlport\tintended_ns\tsend_ns\trecv_ns\tbyte_start\tnbytes\tresponse_bytes\tkind\tcounted\n"


class Acceptor:
    """The accepting thread; ``plan``: it is away for so many seconds after so many connections."""

    def __init__(self, address: str, port: int, directory: Path) -> None:
        self.directory = directory
        self.plan: tuple[int, float] | None = None
        self.listener = socket.create_server((address, port), backlog=512)
        self.accepted: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()

    def read_plan(self) -> None:
        """Begin to be away; the log's header shows it."""
        after, ms = (self.directory / "plan").read_text().split()
        (self.directory / "away.tsv").write_text("#nsight-accept 1\nstart_ns\tend_ns\n")
        self.plan = int(after), float(ms) / 1000

    def accept(self) -> None:
        """Accept for ever."""
        n = 0
        while True:
            self.accepted.put(self.listener.accept()[0])
            n += 1
            if self.plan and n >= self.plan[0]:
                n = 0
                start = time.monotonic_ns()
                time.sleep(self.plan[1])
                with open(self.directory / "away.tsv", "a") as log:
                    log.write(f"{start}\t{time.monotonic_ns()}\n")

    def answer(self) -> None:
        """Answer one request of each accepted connection."""
        while True:
            with self.accepted.get() as connection:
                asked = connection.recv(SIZE, socket.MSG_WAITALL)
                connection.sendall(asked)


def serve(address: str, port: int, directory: Path) -> None:
    """Run until a signal ends it."""
    acceptor = Acceptor(address, port, directory)
    signal.signal(signal.SIGUSR1, lambda *_: acceptor.read_plan())
    for work in (acceptor.accept, *[acceptor.answer] * N_WORKERS):
        threading.Thread(target=work, daemon=True).start()
    while True:
        signal.pause()


async def _one(args: argparse.Namespace, intended: int, rows: list[tuple[int, ...]], number: int) -> None:
    port = PORTS + number
    reader, writer = await asyncio.open_connection(args.address, args.port, local_addr=("0.0.0.0", port))
    begin = time.monotonic_ns()
    writer.write(bytes(SIZE))
    answer = await reader.readexactly(SIZE)
    rows.append((port, intended, begin, time.monotonic_ns(), len(answer)))
    writer.close()


async def _arrivals(args: argparse.Namespace) -> AsyncIterator[int]:
    """When each request is due: Poisson arrivals."""
    rng = random.Random(1)
    due, end = time.monotonic(), time.monotonic() + args.duration
    while (due := due + rng.expovariate(args.rate)) < end:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        yield round(due * 1e9)


async def ask(args: argparse.Namespace) -> None:
    """Send all requests, then write the log."""
    rows: list[tuple[int, ...]] = []
    number = itertools.count()

    async def closed(n: int) -> None:
        for _ in range(n):
            await _one(args, time.monotonic_ns(), rows, next(number))

    await asyncio.sleep(args.start_delay / 1000)
    if args.count:
        await asyncio.gather(*(closed(args.count // args.connections) for _ in range(args.connections)))
    else:
        asked = [asyncio.create_task(_one(args, due, rows, next(number))) async for due in _arrivals(args)]
        await asyncio.gather(*asked)
    lines = [
        f"{i}\t{i}\t{port}\t{due}\t{begin}\t{end}\t0\t{SIZE}\t{n}\tget\t1\n"
        for i, (port, due, begin, end, n) in enumerate(rows)
    ]
    args.log.write_text(HEAD + "".join(lines) + "#end\n")


def prepare(_port: int, directory: Path) -> None:
    """The server runs as a user who may not read this file where it is."""
    shutil.copy(__file__, directory / "acceptor.py")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["serve", "ask"])
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("directory", type=Path, nargs="?")
    parser.add_argument("-l", "--log", type=Path)
    parser.add_argument("-c", "--connections", type=int, default=1)
    parser.add_argument("-n", "--count", type=int, default=0)
    parser.add_argument("-r", "--rate", type=float, default=100)
    parser.add_argument("-d", "--duration", type=float, default=3)
    parser.add_argument("--start-delay", type=float, default=0)
    parser.add_argument("-C", "--cpu", type=int)
    args = parser.parse_args()
    if args.what == "serve":
        serve(args.address, args.port, args.directory)
    if args.cpu is not None:
        os.sched_setaffinity(0, {args.cpu})
    asyncio.run(ask(args))


if __name__ == "__main__":
    main()
