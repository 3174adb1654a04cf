# SPDX-License-Identifier: GPL-2.0-only
"""Known disturbances. Each logs when it acted: the truth for the diagnosis.

An injection is a context manager that disturbs while it is entered. After its exit
``intervals`` says when it acted (CLOCK_MONOTONIC ns, start and end, int64), ``cores`` on which core in each of
them (None: on whichever a message was), and ``witness`` what the kernel itself counted of it. If that shows that it did not
act, ``acted`` is False.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
from nsight_demo.logs import read_intervals, read_load
from nsight_demo.namespaces import SERVER4
from nsight_demo.processes import run, wait_until

from . import quota, walks
from .bed import FLOOD, HOG, Server, Testbed

NO_INTERVALS = np.zeros((0, 2), np.int64)


class Injection:
    """No disturbance; base of the others."""

    name = "none"

    def __init__(self) -> None:
        self.intervals: np.ndarray = NO_INTERVALS
        self.cores: np.ndarray | None = None
        self.witness: dict[str, int] = {}
        self.acted = True

    @contextlib.contextmanager
    def active(self, bed: Testbed, server: Server) -> Iterator[Injection]:
        """Disturb while inside."""
        yield self


class Hog(Injection):
    """A program called hog, or ``program``, keeps ``cpu`` busy at intervals."""

    name = "hog"

    def __init__(self, cpu: int, options: list[str] | None = None, program: str = "hog") -> None:
        super().__init__()
        self.cpu = cpu
        self.options = options or []
        self.program = program

    @contextlib.contextmanager
    def active(self, bed: Testbed, server: Server) -> Iterator[Injection]:
        log = bed.directory / f"hog-{time.monotonic_ns()}.tsv"
        binary = HOG
        if self.program != HOG.name:
            binary = bed.directory / self.program
            shutil.copy(HOG, binary)
        argv = [str(binary), "-C", str(self.cpu), "-l", str(log), *self.options]
        process = bed.start("hog", argv, creates=log)
        yield self
        process.check_alive()
        process.signal(signal.SIGTERM)
        process.wait()
        self.intervals = read_intervals(log)


class Stop(Injection):
    """The serving process is stopped (SIGSTOP) for ``stop_ms``, about every ``every_ms``."""

    name = "stop"

    def __init__(self, stop_ms: float = 5, every_ms: float = 100) -> None:
        super().__init__()
        self.stop_s = stop_ms / 1000
        self.every_s = every_ms / 1000

    @contextlib.contextmanager
    def active(self, bed: Testbed, server: Server) -> Iterator[Injection]:
        leave = threading.Event()
        rows: list[tuple[int, int]] = []
        rng = random.Random(1)
        # A pidfd: if the server dies, another process may get its pid.
        pidfd = os.pidfd_open(server.serving_pid)

        def turns() -> None:
            while not leave.wait(self.every_s * rng.uniform(0.7, 1.3)):
                start = time.monotonic_ns()
                signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
                time.sleep(self.stop_s)
                end = time.monotonic_ns()
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
                rows.append((start, end))

        thread = threading.Thread(target=turns)
        thread.start()
        try:
            yield self
        finally:
            leave.set()
            thread.join()
            os.close(pidfd)
        self.intervals = np.array(rows, np.int64).reshape(-1, 2)


class LateAccept(Injection):
    """The acceptor's accepting thread is away for ``ms`` after every ``after``-th connection; everything else goes on."""

    name = "late accept"

    def __init__(self, after: int, ms: float) -> None:
        super().__init__()
        self.after = after
        self.ms = ms

    @contextlib.contextmanager
    def active(self, bed: Testbed, server: Server) -> Iterator[Injection]:
        directory = bed.directory / f"acceptor-{server.port}"
        (directory / "plan").write_text(f"{self.after} {self.ms}")
        (directory / "plan").chmod(0o644)
        server.process.signal(signal.SIGUSR1)
        log = directory / "away.tsv"
        wait_until(log.exists, "acceptor away")
        yield self
        self.intervals = np.loadtxt(log, np.int64, skiprows=2, ndmin=2).reshape(-1, 2)


class Flood(Injection):
    """Bursts of datagrams from ``cpu`` that the server's firewall drops after ``n_rules`` rules.

    Their softirq runs on the core that the link's options select. The rules make a datagram more
    expensive for its receiver than for its sender, so that the receive core falls behind. The
    sender has the lowest priority: it must not keep the client from sending messages.

    ``intervals``: each from the first datagram of a burst until its last one leaves the queue of the receive core. Most of them
    are dropped long after the last one was sent.
    """

    name = "flood"

    def __init__(self, cpu: int, options: list[str] | None = None, n_rules: int = 200) -> None:
        super().__init__()
        self.cpu = cpu
        self.options = options or []
        self.n_rules = n_rules

    @contextlib.contextmanager
    def active(self, bed: Testbed, server: Server) -> Iterator[Injection]:
        with _firewall(bed, self.n_rules, "udp dport 9"):
            yield from self._send(bed)

    def _send(self, bed: Testbed) -> Iterator[Injection]:
        log = bed.directory / f"flood-{time.monotonic_ns()}.tsv"
        options = bed.link_options
        receiver = options.rps_cpu if options.rps_cpu is not None else options.bridge_rps_cpu
        argv = [
            "nice",
            "-n",
            "19",
            str(FLOOD),
            "-s",
            SERVER4,
            "-C",
            str(self.cpu),
            "-l",
            str(log),
            *([] if receiver is None else ["-r", str(receiver)]),
            *self.options,
        ]
        process = bed.start("flood", argv, bed.link.client, creates=log)
        yield self
        process.check_alive()
        process.signal(signal.SIGTERM)
        process.wait()
        self.intervals = read_intervals(log)


def firewall_rules(n_rules: int, match: str) -> str:
    """Input of ``nft -f``: packets that ``match`` pass n_rules rules, one after the other.

    The rules compare with single addresses and match nothing; nft does not combine them into a
    set. After the rules UDP is dropped, and everything else is accepted.
    """
    rules = "\n".join(f"ip saddr 203.0.113.{i % 256} th dport {1024 + i // 256} drop" for i in range(n_rules))
    return (
        f"table ip testbed {{\nchain long {{\n{rules}\nmeta l4proto udp drop\n}}\n"
        f"chain input {{ type filter hook input priority 0; {match} jump long; }}\n}}\n"
    )


@contextlib.contextmanager
def _firewall(bed: Testbed, n_rules: int, match: str) -> Iterator[None]:
    path = bed.directory / "rules.nft"
    path.write_text(firewall_rules(n_rules, match))
    nft = ["nsenter", f"--net=/run/netns/{bed.link.server}", "--", "nft"]
    run([*nft, "-f", str(path)])
    try:
        yield
    finally:
        run([*nft, "delete", "table", "ip", "testbed"])


class Firewall(Injection):
    """A chain of ``n_rules`` nftables rules that match nothing, in the server's namespace.

    With ``lports`` only packets from those client ports pass it, so that other messages
    serve as a reference, and ``intervals`` are the times in which a core received one of these packets: whatever the core had to
    do besides waited, too. Without, every TCP packet passes it, and the slower distribution has to be compared with another
    capture.
    """

    name = "firewall"

    def __init__(self, n_rules: int = 3000, lports: list[int] | None = None) -> None:
        super().__init__()
        self.n_rules = n_rules
        self.lports = lports or []

    @contextlib.contextmanager
    def active(self, bed: Testbed, server: Server) -> Iterator[Injection]:
        match = f"tcp sport {{ {', '.join(map(str, self.lports))} }}" if self.lports else "meta l4proto tcp"
        with _firewall(bed, self.n_rules, match):
            if self.lports:
                with walks.recorded(bed, server.port, self.lports) as received:
                    yield self
                self.intervals, self.cores = received.rows[:, :2], received.rows[:, 2]
                self.witness = {"packets_through_the_rules": len(received.rows)}
            else:
                start = time.monotonic_ns()
                yield self
                self.intervals = np.array([[start, time.monotonic_ns()]], np.int64)


class Quota(Injection):
    """The server shares a CPU quota of half a core with a lowest-priority program on its core, which uses it up periodically.

    On a busy machine the two may get less than their quota. The group's own cpu.stat (``witness``) says so: without any throttled
    period, the injection did not act.
    """

    name = "quota"
    PERIOD_US = 20_000

    def __init__(self, cpu: int, options: list[str]) -> None:
        super().__init__()
        self.cpu = cpu
        self.options = options

    @contextlib.contextmanager
    def active(self, bed: Testbed, server: Server) -> Iterator[Injection]:
        log = bed.directory / f"hog-{time.monotonic_ns()}.tsv"
        leave = threading.Event()
        rows: list[tuple[int, int]] = []
        with quota.quota(self.PERIOD_US // 2, self.PERIOD_US) as group:
            at_begin = group.counts()

            def watch() -> None:
                before = group.throttled_ns()
                while not leave.wait(0.0005):
                    told, now = group.throttled_ns(), time.monotonic_ns()
                    if told > before:
                        rows.append((now - (told - before), now))
                    before = told

            process = bed.start(
                "hog",
                ["nice", "-n", "19", str(HOG), "-C", str(self.cpu), "-l", str(log), *self.options],
                creates=log,
            )
            for pid in (process.pid, server.serving_pid):
                group.add(pid)
            thread = threading.Thread(target=watch)
            thread.start()
            try:
                yield self
                process.check_alive()
            finally:
                leave.set()
                thread.join()
                process.signal(signal.SIGTERM)
                process.wait()
            self.witness = {name: n - at_begin[name] for name, n in group.counts().items()}
        self.acted = self.witness["nr_throttled"] > 0
        self.intervals = merge(np.array(rows, np.int64).reshape(-1, 2))


class Neighbour(Injection):
    """A second service on the server's core, under bursts of expensive requests.

    ``intervals`` are the times in which it had requests open, from its client's log.
    """

    name = "neighbour"

    def __init__(self, kind_name: str, options: list[str], cpu: int | None = None) -> None:
        super().__init__()
        self.kind_name = kind_name
        self.options = options
        self.cpu = cpu

    @contextlib.contextmanager
    def active(self, bed: Testbed, server: Server) -> Iterator[Injection]:
        other = bed.start_server(self.kind_name)
        log = bed.directory / f"neighbour-{time.monotonic_ns()}.tsv"
        process = bed.start_load(other, ["-d", "600", *self.options], log, self.cpu)
        yield self
        process.check_alive()
        process.signal(signal.SIGTERM)
        process.wait()
        load = read_load(log)
        self.intervals = merge(load.loc[load.recv_ns > 0, ["send_ns", "recv_ns"]].to_numpy())


def merge(intervals: np.ndarray) -> np.ndarray:
    """Sorted union of intervals.

    >>> merge(np.array([[5, 9], [0, 2], [8, 12]])).tolist()
    [[0, 2], [5, 12]]
    """
    if not len(intervals):
        return NO_INTERVALS
    rows = intervals[np.argsort(intervals[:, 0])]
    reach = np.maximum.accumulate(rows[:, 1])
    first = np.concatenate([[True], rows[1:, 0] > reach[:-1]])
    ends = reach[np.concatenate([np.flatnonzero(first)[1:] - 1, [len(rows) - 1]])]
    return np.column_stack([rows[first, 0], ends])


__all__ = ["Firewall", "Flood", "Hog", "Injection", "LateAccept", "Neighbour", "Quota", "Stop", "merge"]
