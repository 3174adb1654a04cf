# SPDX-License-Identifier: GPL-2.0-only
"""Two namespaces joined by a veth pair, sockets in either of them, and nsight-histograms watching."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from nsight_demo.namespaces import CLIENT4, CLIENT6, SERVER4, SERVER6, Link, LinkOptions, run_name
from nsight_monitor import loader, snapshots
from nsight_monitor.histogram import N_BUCKETS, Histogram
from nsight_monitor.snapshots import Header, Snapshot
from nsight_record.errors import Missing

from conftest import skip_or_fail

CLONE_NEWNET = 0x40000000
HANGS_S = 120
_libc = ctypes.CDLL(None, use_errno=True)
now = time.monotonic_ns


@contextlib.contextmanager
def inside(netns: str) -> Iterator[None]:
    """What this thread opens meanwhile belongs to that namespace."""
    home, there = (os.open(p, os.O_RDONLY) for p in ("/proc/thread-self/ns/net", f"/run/netns/{netns}"))
    try:
        assert _libc.setns(there, CLONE_NEWNET) == 0
        yield
    finally:
        assert _libc.setns(home, CLONE_NEWNET) == 0
        os.close(home)
        os.close(there)


@contextlib.contextmanager
def on_core(number: int) -> Iterator[None]:
    """This thread, and what it starts meanwhile, runs on one core: the one with index ``number``, or the last."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[min(number, len(cores) - 1)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def link(name: str, options: LinkOptions | None = None) -> Iterator[Link]:
    if os.geteuid():
        skip_or_fail("root", "namespaces need root")
    made = Link(f"{run_name()}-{name}")
    try:
        made.create(options or LinkOptions())
        yield made
    finally:
        made.delete()


def addresses(v6: bool) -> tuple[str, str]:
    """The server's address, the client's address."""
    return (SERVER6, CLIENT6) if v6 else (SERVER4, CLIENT4)


@contextlib.contextmanager
def connected(of: Link, tcp: bool, v6: bool, port: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Client and server, connected over the link. They are closed at the end of the block, the client first."""
    family = socket.AF_INET6 if v6 else socket.AF_INET
    kind = socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM
    server_address, client_address = addresses(v6)
    with contextlib.ExitStack() as stack:
        with inside(of.server):
            server = stack.enter_context(socket.socket(family, kind))
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((server_address, port))
        with inside(of.client):
            client = stack.enter_context(socket.socket(family, kind))
            client.bind((client_address, 0))
        if tcp:
            server.listen()
            client.connect((server_address, port))
            server = stack.enter_context(server.accept()[0])
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            client.connect((server_address, port))
            server.connect(client.getsockname()[:2])
        for sock in (client, server):
            sock.settimeout(HANGS_S)
        yield client, server


class Watch:
    """A running nsight-histograms, started by ``through``. After the end of the block, ``rest``: the lines that it has not read; ``result``: the last one."""

    def __init__(self, *options: object, through: tuple[str, ...] = ()) -> None:
        if os.geteuid():
            skip_or_fail("root", "BPF programs need root")
        try:
            program = loader.find()
        except Missing as e:
            skip_or_fail("bpf", str(e))
        self._argv = [*through, program, *map(str, options)]
        self.header: Header
        self.result: Snapshot
        self.rest: list[str]

    def __enter__(self) -> Watch:
        self.process = subprocess.Popen(self._argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout
        first = self.process.stdout.readline()
        if not first:
            skip_or_fail("bpf", self.process.communicate()[1])
        self.header = snapshots.header(first)
        return self

    def __exit__(self, *error: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=HANGS_S)
        if error == (None, None, None):
            assert (self.process.returncode, err) == (0, "")
            self.rest = out.splitlines()
            self.result = snapshots.snapshot(self.rest[-1])
            assert self.result.last

    def of(self, stage: str, group: int = 0) -> Histogram:
        return self.result.histograms.get((stage, group), Histogram((0,) * N_BUCKETS, 0))

    def n(self, stage: str) -> int:
        """Number of latencies of a stage in all groups."""
        return sum(h.count for (name, _), h in self.result.histograms.items() if name == stage)


def bucket(ns: int) -> int:
    """The bucket, computed slowly by the definition: above 2**(b - 1) and up to 2**b."""
    return next(b for b in range(N_BUCKETS) if b == N_BUCKETS - 1 or ns <= 1 << b)


def assert_between(h: Histogram, known: list[tuple[int, int]]) -> None:
    """There are as many latencies as ``known`` (least, most) ones, and the counts fit these: at each bound, no more and no fewer
    latencies are below it than ``known`` allows."""
    assert h.count == len(known)
    low, high = ([bucket(pair[i]) for pair in known] for i in (0, 1))
    for b in range(N_BUCKETS):
        below = sum(h.n[: b + 1])
        assert sum(v <= b for v in high) <= below <= sum(v <= b for v in low), (b, h.n)
    assert sum(pair[0] for pair in known) <= h.sum_ns <= sum(pair[1] for pair in known)


def inode(netns: str) -> int:
    return Path("/run/netns", netns).stat().st_ino


def programs(pid: int) -> set[str]:
    """Ids of the BPF programs that a process holds."""
    texts = [p.read_text() for p in Path(f"/proc/{pid}/fdinfo").iterdir()]
    return {line.split()[1] for text in texts for line in text.splitlines() if line.startswith("prog_id:")}


def in_kernel(ids: set[str]) -> set[str]:
    """The given programs that the kernel still has."""
    path = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(["bpftool", "prog", "list"], capture_output=True, text=True, env=path, check=True)
    return ids & set(re.findall(r"^(\d+):", done.stdout, re.M))
