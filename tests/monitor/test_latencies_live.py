# SPDX-License-Identifier: GPL-2.0-only
"""No false latencies: never negative, and never from another packet that once had the same buffer."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import time
from collections.abc import Iterator

import pytest
from machinery.testbed.ports import reserved
from monitored import Watch, connected, inode, inside, link, now, on_core
from nsight_demo.namespaces import CLIENT4, SERVER4, Link

pytestmark = pytest.mark.live
UDP_SEGMENT = 103  # include/uapi/linux/udp.h
SIOCGIFHWADDR = 0x8927
PAUSE_S = 0.01
ACKED_AT = 24  # tcpi_unacked in struct tcp_info, include/uapi/linux/tcp.h


@pytest.fixture(scope="module")
def veth() -> Iterator[Link]:
    with link("lat") as made:
        yield made


@pytest.fixture
def port() -> Iterator[int]:
    with reserved() as (number,):
        yield number


def test_two_readers_of_one_socket_make_no_negative_latencies(veth: Link, port: int) -> None:
    """One reader leaves a datagram behind while the other is between its read and the lookup of its time."""
    n, readers = 200_000, []
    with Watch("--netns", inode(veth.server), "--port", port) as watch:
        with connected(veth, False, False, port) as (client, server):
            server.setblocking(True)
            for core in (0, 1):
                pid = os.fork()
                if pid == 0:
                    with on_core(core):
                        while server.recv(64) != b"end":
                            pass
                    os._exit(0)
                readers.append(pid)
            for _ in range(n):
                client.send(b"x" * 50)
            for pid in readers:
                while os.waitpid(pid, os.WNOHANG) == (0, 0):
                    client.send(b"end")
    assert watch.n("head-of-line")
    # A negative latency, and a latency since boot, would be above 275 s.
    assert [key for key, h in watch.result.histograms.items() if h.n[-1]] == []


ETH_P_8021Q, ETH_P_IP = 0x8100, 0x0800


def tagged(of: Link, port: int, source: int, data: bytes) -> bytes:
    """A frame with a datagram to the server and a priority tag: VLAN 0, which every host treats as untagged."""
    with inside(of.server):
        there = mac_of(of.interface)
    head = struct.pack(
        ">BBHHHBBH4s4s", 0x45, 0, 28 + len(data), 0, 0, 64, 17, 0, *map(socket.inet_aton, (CLIENT4, SERVER4))
    )
    total = sum(struct.unpack(">10H", head))
    checksum = ~(total % 0xFFFF) & 0xFFFF
    return b"".join(
        (
            there + b"\2" * 6 + struct.pack(">HHH", ETH_P_8021Q, 0, ETH_P_IP),
            head[:10] + struct.pack(">H", checksum) + head[12:],
            struct.pack(">HHHH", source, port, 8 + len(data), 0) + data,
        )
    )


def mac_of(interface: str) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        return fcntl.ioctl(s, SIOCGIFHWADDR, struct.pack("256s", interface.encode()))[18:24]


def test_a_tag_in_the_data_makes_no_earlier_packets_arrival(veth: Link, port: int) -> None:
    """Untagged and tagged datagrams in turn, with a pause that no latency includes; all have buffers at the same few addresses."""
    took, n = 0, 100
    with contextlib.ExitStack() as stack:
        client, server = stack.enter_context(connected(veth, False, False, port))
        frame = tagged(veth, port, client.getsockname()[1], b"y" * 100)
        with inside(veth.client):
            raw = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
            raw.bind((veth.peer, 0))
        with Watch("--netns", inode(veth.server), "--port", port) as watch:
            for send in (lambda: client.send(b"x" * 100), lambda: raw.send(frame)) * n:
                time.sleep(PAUSE_S)
                before = now()
                send()
                server.recv(200)
                took += now() - before
    assert watch.of("udp-socket-enqueued").sum_ns <= took
    assert watch.of("udp-socket-read").sum_ns <= took
    assert watch.n("udp-socket-enqueued") == watch.n("udp-socket-read") == 2 * n
    assert watch.n("ip-start") == 2 * n


def test_datagrams_that_are_cut_out_of_one_have_its_arrival(veth: Link, port: int) -> None:
    """A single datagram, then five of the same size that the sender passes at once and the receiver's socket takes one by one."""
    took = 0
    with connected(veth, False, False, port) as (client, server):
        with Watch("--netns", inode(veth.server), "--port", port) as watch:
            for _ in range(50):
                for size, n in ((0, 1), (100, 5)):
                    time.sleep(PAUSE_S)
                    client.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, size)
                    before = now()
                    client.send(b"x" * 100 * n)
                    got = [len(server.recv(1000)) for _ in range(n)]
                    took += (now() - before) * n
                    assert got == [100] * n
    assert watch.n("udp-socket-enqueued") == watch.n("udp-socket-read") == 300
    assert watch.of("udp-socket-enqueued").sum_ns <= took
    assert watch.of("udp-socket-read").sum_ns <= took
    assert watch.result.counts["read_with_later_handoff"] == 0


def unacknowledged(of: socket.socket) -> int:
    """Number of segments that the other side has not acknowledged."""
    info = of.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, ACKED_AT + 4)
    return int(struct.unpack_from("I", info, ACKED_AT)[0])


def test_data_for_a_half_closed_socket_has_not_the_arrival_of_an_earlier_segment(
    veth: Link, port: int
) -> None:
    """The last segment that tcp_probe sees is the acknowledgement of the request: after FIN it sees none."""
    with on_core(0), Watch("--netns", inode(veth.client), "--port", port) as watch:
        with connected(veth, True, False, port) as (client, server):
            client.send(b"request")
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            server.recv(100)
            while unacknowledged(client):
                time.sleep(PAUSE_S)
            client.shutdown(socket.SHUT_WR)
            time.sleep(50 * PAUSE_S)
            before = now()
            server.send(b"reply")
            client.recv(100)
            took = now() - before
    assert watch.n("tcp-socket-enqueued") == watch.n("tcp-socket-read") == 1
    assert watch.of("tcp-socket-enqueued").sum_ns <= took
    assert watch.of("tcp-socket-read").sum_ns <= took


@pytest.mark.parametrize(
    ("n", "half_closed"),
    [(1, False), (12, False), (1, True)],
    ids=["few", "more-than-are-kept", "of-a-half-closed-socket"],
)
def test_a_read_behind_messages_that_were_taken_has_its_own_times(
    veth: Link, port: int, n: int, half_closed: bool
) -> None:
    """sendfile into a pipe is no read for any probe. The next recv does not read the data that it took."""
    ends = os.pipe()
    try:
        with Watch("--netns", inode(veth.server), "--port", port) as watch:
            with connected(veth, True, False, port) as (client, server):
                if half_closed:
                    server.shutdown(socket.SHUT_WR)
                for _ in range(n):
                    client.send(b"x" * 100)
                    server.setblocking(True)
                    assert os.sendfile(ends[1], server.fileno(), None, 100) == 100
                time.sleep(50 * PAUSE_S)
                before = now()
                client.send(b"y" * 100)
                assert server.recv(200) == b"y" * 100
                took = now() - before
    finally:
        for end in ends:
            os.close(end)
    for stage in ("handoff-to-read", "tcp-socket-read"):
        assert watch.n(stage) == 1
        assert watch.of(stage).sum_ns <= took
    assert watch.n("head-of-line") == 0
    assert watch.result.counts["taken_without_read"] == 1


def test_a_raw_socket_that_gets_copies_has_no_messages(veth: Link, port: int) -> None:
    """Raw sockets with the protocol of UDP and of TCP, as traceroute and port scanners have."""
    with inside(veth.server):
        raw = [
            socket.socket(socket.AF_INET, socket.SOCK_RAW, p)
            for p in (socket.IPPROTO_UDP, socket.IPPROTO_TCP)
        ]
    with raw[0], raw[1], Watch("--netns", inode(veth.server)) as watch:
        for tcp in (False, True):
            with connected(veth, tcp, False, port) as (client, server):
                for _ in range(10):
                    client.send(b"x")
                    server.recv(1)
        for one in raw:
            one.recv(2048, socket.MSG_DONTWAIT)
    for kind in ("udp", "tcp"):
        assert watch.n(f"{kind}-socket-enqueued") == watch.n(f"{kind}-socket-read") == 10
    assert watch.n("handoff-to-read") == 20
