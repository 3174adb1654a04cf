# SPDX-License-Identifier: GPL-2.0-only
"""Stages of nsight-histograms over veth: every message is counted once, in the bucket of a known delay."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from machinery.testbed.ports import reserved
from monitored import (
    HANGS_S,
    Watch,
    addresses,
    assert_between,
    connected,
    in_kernel,
    inode,
    inside,
    link,
    now,
    on_core,
    programs,
)
from nsight_demo.namespaces import Link

pytestmark = pytest.mark.live

SO_RCVBUFFORCE = 33  # include/uapi/asm-generic/socket.h
N = 400
SLEEP_S, SLEEP_NS = 0.02, 20_000_000
KINDS = [(tcp, v6) for tcp in (True, False) for v6 in (False, True)]
IDS = [f"{'tcp' if tcp else 'udp'}{'6' if v6 else '4'}" for tcp, v6 in KINDS]


@pytest.fixture(scope="module")
def veth() -> Iterator[Link]:
    with link("mon") as made:
        yield made


@pytest.fixture
def port() -> Iterator[int]:
    with reserved() as (number,):
        yield number


def echo(client: socket.socket, server: socket.socket, n: int) -> None:
    for _ in range(n):
        client.send(b"x" * 100)
        server.send(server.recv(200))
        client.recv(200)


@pytest.mark.parametrize(("tcp", "v6"), KINDS, ids=IDS)
def test_every_message_is_counted_once_at_each_stage(veth: Link, port: int, tcp: bool, v6: bool) -> None:
    """N requests and N replies, all read by this one thread."""
    kind = "tcp" if tcp else "udp"
    with Watch("--netns", inode(veth.server), "--port", port, "--receive-stamps") as watch:
        with connected(veth, tcp, v6, port) as (client, server):
            echo(client, server, N)
    assert watch.n(f"{kind}-socket-enqueued") == N
    assert watch.n(f"{kind}-socket-read") == N
    assert watch.n("handoff-to-read") == N
    assert watch.n("request") == N
    assert watch.n("head-of-line") == 0
    # A thread's first read shows only how long the thread had waited in run queues so far.
    assert watch.n("run-queue") == N - 1
    assert watch.result.counts["read_by_new_thread"] == 1
    assert watch.n("ip-start") >= N
    assert watch.n("udp-socket-read" if tcp else "tcp-socket-read") == 0
    if tcp:
        assert watch.n("tcp-start") >= N
        assert watch.n("tcp-driver") >= N
    counts = watch.result.counts
    without = sum(n for name, n in counts.items() if name.startswith("no_stamp"))
    assert without * 1000 <= watch.n("ip-start")
    assert counts["handoff_without_arrival_tcp"] == counts["handoff_without_arrival_udp"] == 0
    assert counts["read_without_handoff"] == counts["read_without_arrival"] == 0
    assert watch.result.missed == 0


@pytest.mark.parametrize(("tcp", "v6"), KINDS, ids=IDS)
def test_a_reader_that_sleeps_makes_the_read_late_and_not_the_hand_off(
    veth: Link, port: int, tcp: bool, v6: bool
) -> None:
    known, kind = [], "tcp" if tcp else "udp"
    with Watch("--netns", inode(veth.server), "--port", port) as watch:
        with connected(veth, tcp, v6, port) as (client, server):
            for _ in range(10):
                before = now()
                client.send(b"x" * 100)
                sent = now()
                time.sleep(SLEEP_S)
                begin = now()
                server.recv(200)
                known.append((begin - sent, now() - before))
    assert all(least >= SLEEP_NS for least, _ in known)
    assert_between(watch.of(f"{kind}-socket-read"), known)
    assert watch.of("handoff-to-read").sum_ns <= watch.of(f"{kind}-socket-read").sum_ns
    assert watch.of(f"{kind}-socket-enqueued").count == 10
    assert watch.of(f"{kind}-socket-enqueued").sum_ns <= sum(most for _, most in known) - 10 * SLEEP_NS


@pytest.mark.parametrize("tcp", [True, False], ids=["tcp", "udp"])
def test_messages_that_wait_behind_another_one_are_head_of_line(veth: Link, port: int, tcp: bool) -> None:
    """Three messages of 100 bytes wait; the reader works 20 ms on each of the first two."""
    known = []
    with Watch("--netns", inode(veth.server), "--port", port) as watch:
        with connected(veth, tcp, False, port) as (client, server):
            for _ in range(3):
                client.send(b"x" * 100)
            time.sleep(0.1)  # until the last one is there, even on a busy core
            server.recv(100)
            for _ in range(2):
                left = now()
                time.sleep(SLEEP_S)
                begin = now()
                server.recv(100)
                known.append((begin - left, now()))
    h = watch.of("head-of-line")
    assert h.count == 2
    assert h.sum_ns >= 2 * SLEEP_NS
    assert sum(h.n[:25]) == 0  # 2**24 ns are 16.8 ms
    assert watch.n(f"{'tcp' if tcp else 'udp'}-socket-read") == 3


def test_times_of_messages_beyond_those_that_are_kept_are_counted_as_lost(veth: Link, port: int) -> None:
    """Of twelve waiting messages, the times of the first nine are known; the other three have the times of the last one."""
    with Watch("--netns", inode(veth.server), "--port", port) as watch:
        with connected(veth, True, False, port) as (client, server):
            for _ in range(12):
                client.send(b"x" * 100)
            time.sleep(0.1)
            for _ in range(12):
                server.recv(100)
    assert watch.n("tcp-socket-enqueued") == watch.n("tcp-socket-read") == 12
    assert watch.n("head-of-line") == 9
    assert watch.result.counts["read_with_later_handoff"] == 1


def test_a_message_that_is_read_in_parts_does_not_wait_for_itself(veth: Link, port: int) -> None:
    with Watch("--netns", inode(veth.server), "--port", port) as watch:
        with connected(veth, True, False, port) as (client, server):
            client.send(b"x" * 100)
            time.sleep(SLEEP_S)
            for _ in range(4):
                server.recv(25)
    assert watch.n("tcp-socket-read") == 4
    assert watch.n("head-of-line") == 0
    assert sum(watch.of("tcp-socket-read").n[:25]) == 0  # all four have waited since the arrival


def test_filters_leave_out_everything_else(veth: Link) -> None:
    with reserved(2) as (one, other):
        with (
            Watch("--port", one) as by_port,
            Watch("--pid", os.getpid(), "--netns", inode(veth.client)) as by_pid,
        ):
            with (
                Watch("--pid", 1, "--netns", inode(veth.client)) as by_other_pid,
                Watch("--comm", "no-such") as by_comm,
            ):
                with (
                    connected(veth, True, False, one) as first,
                    connected(veth, False, False, other) as second,
                ):
                    echo(*first, 30)
                    echo(*second, 40)
    assert by_port.n("tcp-socket-read") == 60 and by_port.n("udp-socket-read") == 0
    # Until a thread of the process has read from a socket, the socket's process is not known.
    assert by_pid.n("tcp-socket-read") == 30 and by_pid.n("udp-socket-read") == 40
    assert by_pid.n("tcp-socket-enqueued") == 29 and by_pid.n("udp-socket-enqueued") == 39
    assert by_pid.n("ip-start") == 0
    assert by_other_pid.result.histograms == {}
    assert by_comm.result.histograms == {}


@pytest.mark.parametrize(("tcp", "v6"), KINDS, ids=IDS)
def test_a_peer_is_an_address_or_a_prefix_of_it(veth: Link, port: int, tcp: bool, v6: bool) -> None:
    """The client has 198.18.77.2 or fd77:6e73::2."""
    client_address = addresses(v6)[1]
    ours = [client_address, "fd77:6e73::/32" if v6 else "198.18.76.0/23"]
    others = ["fd77:6e74::/32" if v6 else "198.18.78.0/23", "198.18.77.2" if v6 else "fd77:6e73::2"]
    with contextlib.ExitStack() as stack:
        options = ("--netns", inode(veth.server), "--port", port)
        watches = [stack.enter_context(Watch(*options, "--peer", peer)) for peer in (*ours, *others)]
        with connected(veth, tcp, v6, port) as (client, server):
            echo(client, server, 10)
    assert [w.n("handoff-to-read") for w in watches] == [10, 10, 0, 0]
    assert [w.n("request") for w in watches] == [10, 10, 0, 0]
    assert all(w.n("ip-start") == 0 for w in watches)


def test_groups_beyond_the_limit_are_counted_together(veth: Link) -> None:
    with reserved(5) as ports:
        with Watch(
            "--netns", inode(veth.server), "--group-by", "port", "--groups", 3, "--stages", "udp-socket-read"
        ) as watch:
            for i, number in enumerate(ports):
                with connected(veth, False, False, number) as (client, server):
                    for _ in range(i + 1):
                        client.send(b"x")
                        server.recv(1)
    groups = watch.result.groups
    assert sorted(groups.values()) == sorted(ports[:3])
    assert {groups[g]: h.count for (_, g), h in watch.result.histograms.items() if g > 1} == {
        ports[0]: 1, ports[1]: 2, ports[2]: 3,
    }  # fmt: skip
    assert watch.of("udp-socket-read", 0).count == 4 + 5  # the other ports


def test_groups_are_those_of_socket_reader_and_device(veth: Link, port: int) -> None:
    with inside(veth.server):
        index = socket.if_nametoindex(veth.interface)
    space = inode(veth.server)
    found = {}
    with contextlib.ExitStack() as stack:
        for by in ("netns", "iface", "comm", "cgroup"):
            found[by] = stack.enter_context(Watch("--netns", space, "--port", port, "--group-by", by))
        with connected(veth, True, False, port) as (client, server):
            echo(client, server, 5)
    with open("/proc/thread-self/comm") as f:
        comm = f.read().strip()
    assert list(found["netns"].result.groups.values()) == [space]
    assert index | space << 32 in found["iface"].result.groups.values()
    assert list(found["comm"].result.groups.values()) == [comm]
    assert len(found["cgroup"].result.groups) == 1
    for watch in found.values():
        assert watch.n("tcp-socket-read") == 5


TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000


def datagram(source: str, destination: str, port: int) -> bytes:
    """An IPv4 packet of 33 bytes, without a UDP checksum."""
    head = struct.pack(
        ">BBHHHBBH4s4s", 0x45, 0, 33, 0, 0, 64, 17, 0, socket.inet_aton(source), socket.inet_aton(destination)
    )
    total = sum(struct.unpack(">10H", head))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (
        head[:10]
        + struct.pack(">H", ~total & 0xFFFF)
        + head[12:]
        + struct.pack(">HHHH", 9, port, 13, 0)
        + b"hello"
    )


class Device:
    """A TUN device, through which datagrams that nobody on this machine sent come in, and the socket that they reach."""

    def __init__(self, stack: contextlib.ExitStack, port: int) -> None:
        import fcntl

        name, self._port = f"tun{os.getpid() % 100000}", port
        self._fd = os.open("/dev/net/tun", os.O_RDWR)
        stack.callback(os.close, self._fd)
        fcntl.ioctl(self._fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
        for command in (f"addr add 198.18.78.1/24 dev {name}", f"link set {name} up"):
            subprocess.run(["ip", *command.split()], check=True)
        self.index = socket.if_nametoindex(name)
        self._server = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._server.bind(("198.18.78.1", port))
        self._server.settimeout(HANGS_S)

    def receive(self, n: int) -> None:
        """One after the other."""
        for _ in range(n):
            os.write(self._fd, datagram("198.18.78.2", "198.18.78.1", self._port))
            self._server.recv(64)


@pytest.mark.parametrize("stamps", [True, False], ids=["kernel-stamps", "none"])
def test_a_packet_of_a_device_has_the_kernels_stamp_or_is_counted_as_without(
    veth: Link, port: int, stamps: bool
) -> None:
    with inside(veth.server), contextlib.ExitStack() as stack:
        device = Device(stack, port)
        options = ["--netns", inode(veth.server), "--ifindex", device.index, "--port", port]
        with Watch(*options, *(["--receive-stamps"] if stamps else [])) as watch:
            before = now()
            device.receive(20)
            took = now() - before
    counts = watch.result.counts
    assert counts["stamp_kernel"] + counts["no_stamp_zero"] == 20
    assert counts["stamp_kernel"] == watch.n("ip-start")
    if stamps:
        assert counts["stamp_kernel"] == 20
        assert watch.of("ip-start").sum_ns <= took  # the two clocks are aligned correctly
    assert watch.n("udp-socket-enqueued") == watch.n("udp-socket-read") == 20
    assert watch.of("udp-socket-read").sum_ns <= took


BUSY = "print(flush=True)\nwhile True: pass"


@pytest.mark.alone
def test_receive_stamps_are_there_when_the_first_line_is(veth: Link, port: int) -> None:
    """The kernel begins to stamp in a work item of this core. A real-time thread lets it wait, by the kernel's default for 0.95 s of
    each second."""
    other = max(os.sched_getaffinity(0))
    with inside(veth.server), on_core(0), contextlib.ExitStack() as stack:
        device = Device(stack, port)
        busy = stack.enter_context(
            subprocess.Popen(["chrt", "-f", "1", sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
        )
        stack.callback(busy.kill)
        assert busy.stdout is not None
        busy.stdout.readline()
        os.sched_setaffinity(0, {other})
        options = ["--netns", inode(veth.server), "--port", port, "--receive-stamps"]
        with Watch(*options, through=("chrt", "-f", "2", "taskset", "-c", "0")) as watch:
            device.receive(20)
    assert watch.result.counts["stamp_kernel"] == 20


def test_two_watch_at_once_under_load_and_nothing_is_left(veth: Link, port: int) -> None:
    with connected(veth, True, False, port) as (client, server):
        leave = threading.Event()
        traffic = threading.Thread(target=lambda: [echo(client, server, 1) for _ in iter(leave.is_set, True)])
        traffic.start()
        try:
            with Watch("--port", port) as one, Watch("--port", port) as other:
                held = programs(one.process.pid) | programs(other.process.pid)
                # Where the kernel permits function probes, there are two more each.
                assert len(held) in (18, 22) and in_kernel(held) == held
                time.sleep(0.1)
        finally:
            leave.set()
            traffic.join()
    # ``one`` began before ``other``, and ended after it.
    assert one.n("tcp-socket-read") >= other.n("tcp-socket-read") > 0
    for _ in range(HANGS_S):  # the kernel frees the programs when no core can be running one any more
        if not in_kernel(held):
            return
        time.sleep(1)
    pytest.fail(f"programs {in_kernel(held)} are still there")


def udp_counters(netns: str) -> dict[str, int]:
    """The kernel's UDP counters of a namespace."""
    with inside(netns), open("/proc/thread-self/net/snmp") as f:
        names, values = (line.split()[1:] for line in f if line.startswith("Udp:"))
    return dict(zip(names, map(int, values), strict=True))


def test_sums_are_those_of_the_kernels_own_counters(veth: Link, port: int) -> None:
    """20,000 datagrams in bursts of 50, which fit into the socket: InDatagrams counts them when they are read. On a single core,
    nobody reads a datagram between its arrival and its hand-off."""
    before = udp_counters(veth.server)
    with on_core(0), Watch("--netns", inode(veth.server)) as watch:
        with connected(veth, False, False, port) as (client, server):
            for _ in range(400):
                for _ in range(50):
                    client.send(b"x" * 50)
                for _ in range(50):
                    server.recv(64)
    new = {name: n - before[name] for name, n in udp_counters(veth.server).items()}
    assert new["InDatagrams"] == 20_000 and new["RcvbufErrors"] == 0
    assert watch.n("udp-socket-read") == watch.n("udp-socket-enqueued") == new["InDatagrams"]
    assert watch.n("head-of-line") == 400 * 49
    assert watch.result.missed == 0


def test_what_another_core_reads_before_its_hand_off_is_counted(veth: Link, port: int) -> None:
    """The reader is on one core, the receive softirq on another: each datagram is in the histogram, or in the count beside it."""
    n, before = 20_000, udp_counters(veth.server)
    with (
        Watch("--netns", inode(veth.server)) as watch,
        connected(veth, False, False, port) as (client, server),
    ):
        server.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 25)

        def read() -> None:
            with on_core(1):
                for _ in range(n):
                    server.recv(64)

        reader = threading.Thread(target=read)
        reader.start()
        with on_core(0):
            for _ in range(n):
                client.send(b"x" * 50)
        reader.join()
    new = {name: count - before[name] for name, count in udp_counters(veth.server).items()}
    assert new["InDatagrams"] == n and new["RcvbufErrors"] == 0
    counts = watch.result.counts
    assert watch.n("udp-socket-enqueued") + counts["handoff_without_arrival_udp"] == n
    read_ = watch.n("udp-socket-read") + counts["read_without_arrival"]
    assert read_ == watch.n("handoff-to-read") == n - counts["read_without_handoff"]
    assert watch.result.missed == 0


def test_a_namespace_that_goes_while_it_is_watched_leaves_its_counts() -> None:
    with link("gone") as short_lived, reserved() as (port,):
        with Watch("--netns", inode(short_lived.server), "--group-by", "netns") as watch:
            with connected(short_lived, True, True, port) as (client, server):
                echo(client, server, 10)
            short_lived.delete()
    assert watch.n("tcp-socket-read") == 10
