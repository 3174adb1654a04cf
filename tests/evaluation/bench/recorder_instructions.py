#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""What nsight-collect adds to a request of a TCP server, in instructions, with few and with many connections.

    tests/machinery/guest/run --kernel 6.12 --icount -- \\
        .venv/bin/python tests/evaluation/bench/recorder_instructions.py [PROGRAM ...]

A guest with --icount has one core, whose clock counts instructions: the figures do not depend on what else the machine
does. They show neither cache misses nor what atomic operations take. Without --icount, figures are ns.

A client sends a request on each of N connections and then reads the answers; a server (epoll) reads each and answers it, as Redis does. Both
are in the guest. "programs": the least of all rounds, and their mean, minus those without a recorder, while nsight-collect itself is stopped;
the least varies by some 250 from run to run. "the reader": how much larger the mean is when nsight-collect runs; emulated copies count an
instruction for each byte, so it is less on hardware. --each-program adds the runs a request and the instructions a run of each BPF program
(kernel.bpf_stats_enabled), which do not vary. PROGRAM: one or several nsight-collect, measured in turn (default: this tree's). Exit codes: 0, 1 a program
failed, 4 not root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "tools/nsight-record/collect/nsight-collect"
HEADER = ROOT / "tools/bpf/record.h"
#: What nsight-record gives it by default for a server's port.
OPTIONS = ("--ring-kb", "8192", "--waits", "--server", "--rx", "--tx", "--port")
REQUEST = b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000000\r\n"
ANSWER = b"$3\r\nxxx\r\n"
STAMPS = "AHRSXTO"
STATS = Path("/proc/sys/kernel/bpf_stats_enabled")


def serve(server: socket.socket) -> None:
    """Answer every request, until the process is killed."""
    with select.epoll() as poll:
        poll.register(server, select.EPOLLIN)
        clients: dict[int, socket.socket] = {}
        while True:
            ready = [clients.get(fd) for fd, _ in poll.poll()]
            for client in ready:
                if client is None:
                    new = server.accept()[0]
                    new.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    clients[new.fileno()] = new
                    poll.register(new, select.EPOLLIN)
                else:
                    client.recv(4096)
            for client in ready:
                if client:
                    client.send(ANSWER)


@contextlib.contextmanager
def served(n: int) -> Iterator[tuple[int, list[socket.socket]]]:
    """A server's port, and n connections to it."""
    with socket.create_server(("127.0.0.1", 0), backlog=n) as server:
        port = server.getsockname()[1]
        if not (pid := os.fork()):
            serve(server)
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(n)]
    for client in clients:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        yield port, clients
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for client in clients:
            client.close()


def rounds(clients: list[socket.socket], requests: int) -> list[float]:
    """Figures of one request, by round."""
    found = []
    for _ in range(requests // len(clients)):
        begin = time.perf_counter_ns()
        for client in clients:
            client.send(REQUEST)
        for client in clients:
            client.recv(4096)
        found.append((time.perf_counter_ns() - begin) / len(clients))
    return found


class Collector:
    """A running nsight-collect. ``records``: produced, by type, once it has ended."""

    def __init__(self, program: Path, port: int, directory: Path) -> None:
        argv = [str(program), *OPTIONS, str(port), str(directory)]
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        self.records: dict[int, int] = {}
        assert self._process.stdout
        while (line := self._process.stdout.readline()) != "recording\n":
            if not line:
                sys.exit(1)

    def signal(self, number: int) -> None:
        """SIGSTOP, SIGCONT."""
        self._process.send_signal(number)

    def end(self) -> None:
        """End it, and read its counts."""
        self._process.send_signal(signal.SIGINT)
        out, _ = self._process.communicate()
        for core in json.loads(out[out.index("{") :]).values():
            for kind, (produced, *_) in core["types"].items():
                self.records[int(kind)] = self.records.get(int(kind), 0) + produced


def names(kind: int) -> str:
    """Of a type of records."""
    if kind >= 0x80:
        return STAMPS[kind - 0x80 >> 2]
    lines = HEADER.read_text().split("#define NSR_TYPES(X)")[1].splitlines()
    return lines[kind].split('"')[1]


def each_program(clients: list[socket.socket], requests: int) -> Iterator[str]:
    """A line for each BPF program of the guest; all of them are the collector's."""
    STATS.write_text("1")
    first = counts()
    n = len(rounds(clients, requests)) * len(clients)
    last = counts()
    STATS.write_text("0")
    for name, (runs, took) in sorted(last.items(), key=lambda item: -item[1][1]):
        runs, took = runs - first[name][0], took - first[name][1]
        if runs * 100 >= n:
            yield f"      {name:24} {runs / n:5.2f} runs {took / runs:5.0f} each {took / n:6.0f} a request"


def counts() -> dict[str, tuple[int, int]]:
    """Runs and what they took, by program."""
    done = subprocess.run(["bpftool", "prog", "show", "-j"], capture_output=True, text=True, check=True)
    return {
        row["name"]: (row.get("run_cnt", 0), row.get("run_time_ns", 0))
        for row in json.loads(done.stdout)
        if row.get("name", "").startswith("on_")
    }


def measured(program: Path, n: int, requests: int, bare: list[float], each: bool) -> str:
    """A line of the table, and those of the programs."""
    with tempfile.TemporaryDirectory() as name, served(n) as (port, clients):
        collector = Collector(program, port, Path(name) / "records")
        rounds(clients, n)
        collector.signal(signal.SIGSTOP)
        programs = rounds(clients, min(requests, 5_000))
        lines = list(each_program(clients, 1000)) if each else []
        collector.signal(signal.SIGCONT)
        reader = rounds(clients, requests)
        collector.end()
    n_requests = n * (1 + len(programs) + len(reader)) + 1000 // n * n * each
    kinds = sorted(collector.records.items(), key=lambda item: -item[1])
    records = ", ".join(
        f"{names(kind)} {count / n_requests:.2f}" for kind, count in kinds if count * 100 >= n_requests
    )
    return (
        f"programs +{min(programs) - min(bare):,.0f}, on average "
        f"+{statistics.mean(programs) - statistics.mean(bare):,.0f}; the reader "
        f"+{statistics.mean(reader) - statistics.mean(programs):,.0f}; records: {records}"
        + "".join(f"\n{line}" for line in lines)
    )


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*", type=Path, metavar="PROGRAM", default=[PROGRAM])
    parser.add_argument("--connections", default="1,8,50", help="separated by commas (default: 1,8,50)")
    parser.add_argument("--requests", type=int, default=10_000, help="of each figure (default: 10000)")
    parser.add_argument("--each-program", action="store_true", help="also a line for each BPF program")
    args = parser.parse_args()
    if os.geteuid():
        print("error: BPF programs need root\nhint: run it in a guest, as --help says", file=sys.stderr)
        return 4
    for n in map(int, args.connections.split(",")):
        with served(n) as (_, clients):
            rounds(clients, n)
            bare = rounds(clients, args.requests)
        print(f"{n} connections: {min(bare):,.0f} a request without a recorder", flush=True)
        for program in args.programs:
            print(f"  {program}: {measured(program, n, args.requests, bare, args.each_program)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
