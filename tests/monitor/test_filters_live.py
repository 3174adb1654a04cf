# SPDX-License-Identifier: GPL-2.0-only
"""Filters by the length of a socket's queue, triggers, and namespaces or groups that end while they are watched."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from machinery.testbed.ports import reserved
from monitored import Watch, connected, inode, inside, link, on_core
from nsight_demo.namespaces import Link, run_name
from nsight_demo.processes import wait_until
from nsight_monitor import arguments, loader, names, snapshots
from nsight_monitor.snapshots import Slow

from conftest import skip_or_fail

pytestmark = pytest.mark.live
STALL_S = 0.02


@pytest.fixture(scope="module")
def veth() -> Iterator[Link]:
    with link("filt") as made:
        yield made


@pytest.fixture
def port() -> Iterator[int]:
    with reserved() as (number,):
        yield number


@pytest.mark.parametrize(("least", "handed_off", "read"), [(1, 4, 3), (2, 3, 2), (4, 1, 0), (5, 0, 0)])
def test_a_queue_is_as_long_as_datagrams_wait_in_it(
    veth: Link, port: int, least: int, handed_off: int, read: int
) -> None:
    """Four datagrams, then four reads: the queue holds 1, 2, 3, 4 datagrams at the hand-offs and 3, 2, 1, 0 after the reads."""
    with (
        Watch("--netns", inode(veth.server), "--port", port, "--queue", least) as watch,
        Watch("--netns", inode(veth.server), "--port", port) as every,
    ):
        with connected(veth, False, False, port) as (client, server):
            for _ in range(4):
                client.send(b"x")
            for _ in range(4):
                server.recv(1)
    assert every.n("udp-socket-enqueued") == every.n("udp-socket-read") == 4
    assert watch.n("udp-socket-enqueued") == handed_off
    assert watch.n("udp-socket-read") == watch.n("handoff-to-read") == read
    assert watch.n("ip-start") == 0


def test_a_stream_that_is_read_in_parts_has_a_queue_until_the_last(veth: Link, port: int) -> None:
    with Watch("--netns", inode(veth.server), "--port", port, "--queue", 1) as watch:
        with connected(veth, True, False, port) as (client, server):
            client.send(b"x" * 100)
            for _ in range(4):
                server.recv(25)
    assert watch.n("tcp-socket-read") == 3


PAUSE_S = 0.1  # between the reports of one core


@pytest.fixture
def one_core() -> Iterator[None]:
    """The test runs on one core only."""
    with on_core(0):
        yield


def test_only_latencies_from_the_trigger_on_are_reported_and_one_in_a_tenth_of_a_second(
    veth: Link, port: int, one_core: None
) -> None:
    """Stalls with quick reads between them: each stall is reported or counted as not reported. Of two stalls within a tenth of
    a second, one is not reported, whichever; a stall after a pause is reported.
    """
    options = ("--netns", inode(veth.server), "--port", port, "--interval-ms", 3_600_000)
    with Watch(*options, "--trigger", f"handoff-to-read={int(STALL_S * 1e9)}") as watch:
        assert watch.process.stdout
        with connected(veth, False, False, port) as (client, server):

            def read(stall: float) -> tuple[int, int]:
                """One message that waits; the times before it is sent and after it has been read."""
                sent = time.monotonic_ns()
                client.send(b"x")
                time.sleep(stall)
                server.recv(1)
                return sent, time.monotonic_ns()

            stalls, quick = [read(STALL_S)], []
            # Something else may have the core for a tenth of a second: then the two stalls are too far apart, so try again.
            while len(stalls) < 2 or stalls[-1][1] - stalls[-2][0] >= PAUSE_S * 1e9:
                quick.append(read(0.0))
                stalls.append(read(STALL_S))
            time.sleep(2 * PAUSE_S)
            stalls.append(read(STALL_S))
        found: list[Slow] = []
        while not found or found[-1].monotonic_ns < stalls[-1][0]:
            slow = snapshots.other(watch.process.stdout.readline())
            assert isinstance(slow, Slow)
            found.append(slow)
    for slow in found:
        assert (slow.stage, slow.group) == ("handoff-to-read", 0)
        assert STALL_S * 1e9 <= slow.ns < slow.monotonic_ns - stalls[0][0]
        assert stalls[0][0] < slow.monotonic_ns < stalls[-1][1]
        assert abs(slow.realtime_ns - slow.monotonic_ns - (time.time_ns() - time.monotonic_ns())) < 1e9
    times = [slow.monotonic_ns for slow in found]
    assert all(later - earlier >= PAUSE_S * 1e9 for earlier, later in pairwise(times))
    assert watch.n("handoff-to-read") == len(stalls) + len(quick)
    unreported = watch.result.counts["slow_not_reported"]
    may_be_slow = sum(end - begin >= STALL_S * 1e9 for begin, end in quick)
    assert unreported >= 1
    assert len(stalls) <= len(found) + unreported <= len(stalls) + may_be_slow


def test_slow_latencies_of_the_last_moment_are_reported(veth: Link, port: int, one_core: None) -> None:
    """The loader is stopped, so it finds them only when it ends: each one is reported, or counted as not reported."""
    options = ("--netns", inode(veth.server), "--port", port, "--stages", "handoff-to-read")
    watch = Watch(*options, "--trigger", "handoff-to-read=1", "--interval-ms", 3_600_000)
    with connected(veth, False, False, port) as (client, server), watch:
        process = watch.process
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        for _ in range(5):
            client.send(b"x")
            server.recv(1)
            time.sleep(2 * PAUSE_S)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
    slow = [snapshots.other(line) for line in watch.rest[:-1]]
    assert all(isinstance(one, Slow) for one in slow)
    assert watch.n("handoff-to-read") == 5
    assert len(slow) + watch.result.counts["slow_not_reported"] == 5


def test_slow_latencies_that_a_full_ring_buffer_has_no_room_for_are_counted(
    veth: Link, port: int, one_core: None
) -> None:
    """Nobody reads the ring buffer of 65,536 bytes while 2,500 latencies come. Each takes 8 + 24 bytes, and a byte stays free, so
    2,047 are shown and 453 are lost; all are in the histogram."""
    options = (
        "--netns",
        inode(veth.server),
        "--port",
        port,
        "--stages",
        "handoff-to-read",
        "--trigger-pause-ms",
        0,
    )
    watch = Watch(*options, "--trigger", "handoff-to-read=1", "--interval-ms", 3_600_000)
    with connected(veth, False, False, port) as (client, server), watch:
        process = watch.process
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        for _ in range(2500):
            client.send(b"x")
            server.recv(1)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        # The lines do not fit into the pipe. A second signal, such as systemd's and nsight-monitor's, interrupts its write().
        proc = Path(f"/proc/{process.pid}")
        wait_until(lambda: (proc / "syscall").read_text().startswith("1 0x1 "), "a full pipe")
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: "ShdPnd:\t0000000000000000" in (proc / "status").read_text(), "the signal")
    slow = [snapshots.other(line) for line in watch.rest[:-1]]
    assert all(isinstance(one, Slow) for one in slow)
    assert (len(slow), watch.result.counts["slow_lost"]) == (2047, 453)
    assert watch.result.counts["slow_not_reported"] == 0
    assert watch.of("handoff-to-read").count == 2500
    assert sum(one.ns for one in slow if isinstance(one, Slow)) < watch.of("handoff-to-read").sum_ns


SENDS = """
import os, socket, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as f:
    f.write(str(os.getpid()))
server, client = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
server.bind(("127.0.0.1", int(sys.argv[2])))
client.connect(("127.0.0.1", int(sys.argv[2])))
for _ in range(10):
    client.send(b"x")
    server.recv(1)
"""


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Path]:
    """The mount point of control groups version 2."""
    if os.geteuid():
        skip_or_fail("root", "mounting needs root")
    done = subprocess.run(["mount", "-t", "cgroup2", "none", tmp_path], capture_output=True, text=True)
    if done.returncode:
        skip_or_fail("bpf", done.stderr)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_a_control_group_that_goes_while_it_is_watched_leaves_its_counts_and_name(
    groups: Path, port: int
) -> None:
    group = groups / f"nsight-{port}.service"
    group.mkdir()
    try:
        number = group.stat().st_ino
        with (
            Watch("--cgroup", number) as filtered,
            Watch("--port", port, "--group-by", "cgroup", "--interval-ms", 50) as watch,
        ):
            subprocess.run([sys.executable, "-c", SENDS, str(group), str(port)], check=True)
            assert watch.process.stdout
            line = next(row for row in iter(watch.process.stdout.readline, "") if f":{number}" in row)
            found = names.Names("cgroup", groups)
            before = found.of(snapshots.snapshot(line))
            group.rmdir()
    finally:
        if group.exists():
            group.rmdir()
    assert filtered.n("udp-socket-read") == watch.n("udp-socket-read") == 10
    assert list(watch.result.groups.values()) == [number]
    assert found.of(watch.result) == before
    assert f"nsight-{port}.service" in before.values()


def talk(netns: str, port: int, n: int) -> None:
    """Send datagrams within the namespace."""
    with inside(netns), socket.socket(type=socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", port))
        s.connect(("127.0.0.1", port))
        for _ in range(n):
            s.send(b"x")
            s.recv(1)


class Namespaces(contextlib.AbstractContextManager["Namespaces"]):
    """Network namespaces that are removed at the end."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._n = 0

    def __exit__(self, *_: object) -> None:
        for name in list(self._names):
            self.delete(name)

    def new(self) -> str:
        self._n += 1
        self._names.append(f"{run_name()}-again{self._n}")
        subprocess.run(["ip", "netns", "add", self._names[-1]], check=True)
        subprocess.run(["ip", "-n", self._names[-1], "link", "set", "lo", "up"], check=True)
        return self._names[-1]

    def delete(self, name: str) -> None:
        self._names.remove(name)
        subprocess.run(["ip", "netns", "del", name], check=True)

    def with_number(self, number: int) -> str:
        """A namespace with this reused number, or "" if something else on this machine got the number."""
        end = time.monotonic() + 10
        while time.monotonic() < end:
            if inode(name := self.new()) == number:
                return name
            time.sleep(0.1)  # the kernel removes a namespace some time after its end
        return ""


def test_a_namespace_that_has_the_number_of_one_that_is_gone_is_another_one(port: int) -> None:
    if os.geteuid():
        skip_or_fail("root", "namespaces need root")
    again, begun = "", 0
    while not again:
        begun += 1
        assert begun <= 5, "the kernel did not give the number of a namespace again"
        with Namespaces() as spaces:
            first = spaces.new()
            number = inode(first)
            command = loader.argv(
                arguments.parser().parse_args(["--netns", first, "--interval", "3600"]), ""
            )[1:]
            with (
                Watch(*command) as filtered,
                Watch("--port", port, "--group-by", "netns") as by_netns,
                Watch("--port", port, "--group-by", "iface") as by_iface,
            ):
                talk(first, port, 3)
                spaces.delete(first)
                again = spaces.with_number(number)
                if again:
                    talk(again, port, 5)
    assert filtered.n("udp-socket-read") == 3
    for watch in (by_netns, by_iface):
        found = {
            g: h.count for (stage, g), h in watch.result.histograms.items() if stage == "udp-socket-read"
        }
        assert sorted(found.values()) == [3, 5]
        assert len({watch.result.groups[g] for g in found}) == 1
