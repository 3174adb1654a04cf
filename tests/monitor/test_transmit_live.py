# SPDX-License-Identifier: GPL-2.0-only
"""Transmit stages: a packet is counted once, by its own times, and not at all if no driver gets it."""

from __future__ import annotations

import socket
import struct
import subprocess
import time
from collections.abc import Iterator

import pytest
from machinery.testbed.ports import reserved
from monitored import Watch, connected, inode, inside, link
from nsight_demo.namespaces import Link, LinkOptions

pytestmark = pytest.mark.live
N = 50
SO_TXTIME = SCM_TXTIME = 61  # include/uapi/asm-generic/socket.h
CLOCK_TAI = 11
SEGS_OUT_AT = 136  # tcpi_segs_out in struct tcp_info, include/uapi/linux/tcp.h


@pytest.fixture
def port() -> Iterator[int]:
    with reserved() as (number,):
        yield number


@pytest.fixture
def veth() -> Iterator[Link]:
    with link("send") as made:
        yield made


def segments(of: socket.socket) -> int:
    """Number of segments that the socket has sent."""
    info = of.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, SEGS_OUT_AT + 4)
    return int(struct.unpack_from("I", info, SEGS_OUT_AT)[0])


def test_a_segment_that_passes_stacked_devices_is_counted_once(port: int) -> None:
    """The server's address belongs to a bridge whose port is the veth."""
    with link("stack", LinkOptions(bridge_rps_cpu=0)) as made, connected(made, True, False, port) as ends:
        client, server = ends
        with inside(made.server):
            (bridge,) = [i for i, name in socket.if_nameindex() if name.startswith("br")]
        before = segments(server)
        with (
            Watch("--netns", inode(made.server), "--port", port, "--stages", "tcp-driver") as watch,
            Watch("--netns", inode(made.server), "--port", port, "--ifindex", bridge) as of_bridge,
        ):
            for _ in range(N):
                client.send(b"x")
                server.send(server.recv(1))
                client.recv(1)
            sent = segments(server) - before
    assert sent >= N
    assert watch.n("tcp-driver") == sent
    assert of_bridge.n("tcp-driver") == sent


@pytest.mark.parametrize("clock", [time.CLOCK_MONOTONIC, CLOCK_TAI], ids=["monotonic", "tai"])
@pytest.mark.parametrize("ahead_s", [-1, 1], ids=["past", "future"])
def test_the_time_that_a_program_asks_for_is_not_when_tcp_transmitted(
    veth: Link, port: int, clock: int, ahead_s: int
) -> None:
    with Watch("--netns", inode(veth.client), "--port", port) as watch:
        with connected(veth, False, False, port) as (client, server):
            client.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("iI", clock, 0))
            for _ in range(N):
                at = struct.pack("Q", time.clock_gettime_ns(clock) + ahead_s * 10**9)
                client.sendmsg([b"x"], [(socket.SOL_SOCKET, SCM_TXTIME, at)])
                server.recv(1)
    assert watch.n("tcp-driver") == 0
    assert watch.result.counts["transmit_before_its_time"] == 0


QDISC = ("tc", "qdisc")


def run(of: Link, *command: object) -> str:
    """Run a command in the client's namespace; its output."""
    done = subprocess.run(
        ["ip", "netns", "exec", of.client, *map(str, command)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def queue_all_but_first(of: Link) -> None:
    """Some 1.6 kB pass at once, and all later data waits for minutes."""
    run(of, *QDISC, "add", "dev", of.peer, "root", "tbf", "rate", "100bit", "burst", 1600, "limit", 1_000_000)


def is_queued(of: Link) -> bool:
    return "backlog 0b" not in run(of, "tc", "-s", "qdisc", "show", "dev", of.peer)


def test_what_a_queueing_discipline_drops_has_no_latency_when_it_is_sent_again(veth: Link, port: int) -> None:
    """The segment waits behind the first one. Its queue is removed, and TCP retransmits it without a queue."""
    with connected(veth, True, False, port) as (client, server):
        with (
            Watch("--netns", inode(veth.client), "--port", port, "--stages", "qdisc") as watch,
            Watch("--netns", inode(veth.server), "--stages", "qdisc") as of_other,
        ):
            queue_all_but_first(veth)
            client.send(b"x" * 1000)
            server.recv(1000)
            client.send(b"y" * 1000)
            while not is_queued(veth):
                time.sleep(0.01)
            run(veth, *QDISC, "del", "dev", veth.peer, "root")
            assert server.recv(1000) == b"y" * 1000
    assert watch.n("qdisc") == 1
    assert watch.result.counts["dropped_in_qdisc"] == 1
    assert of_other.result.counts["dropped_in_qdisc"] == 0
