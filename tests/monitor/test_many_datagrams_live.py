# SPDX-License-Identifier: GPL-2.0-only
"""Datagrams that wait at once do not lose their times to each other."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from machinery.testbed.ports import reserved
from monitored import Watch, connected, inode, link, now
from nsight_demo.namespaces import Link

pytestmark = pytest.mark.live
#: include/uapi/asm-generic/socket.h: root may exceed net.core.rmem_max.
SO_RCVBUFFORCE = 33
STAGES = "udp-socket-enqueued,udp-socket-read,handoff-to-read"


@pytest.fixture(scope="module")
def veth() -> Iterator[Link]:
    with link("many") as made:
        yield made


@pytest.fixture
def port() -> Iterator[int]:
    with reserved() as (number,):
        yield number


@pytest.mark.parametrize("n", [270, 2000, 5000])
def test_each_of_many_datagrams_that_wait_at_once_keeps_its_own_times(veth: Link, port: int, n: int) -> None:
    """The goal is at most one in a thousand without its times. The first datagram waits longest: a time of a
    later one in the place of its own would make the sum too small."""
    sent: list[int] = []
    got: list[int] = []
    with Watch("--netns", inode(veth.server), "--port", port, "--stages", STAGES) as watch:
        with connected(veth, False, False, port) as (client, server):
            server.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 4096 * n)
            for _ in range(n):
                client.send(b"x")
                sent.append(now())
            for _ in range(n):
                got.append(now())
                assert server.recv(9) == b"x"
    counts = watch.result.counts
    print({name: counts[name] for name in ("read_with_later_handoff", "handoff_without_arrival_udp")})
    lost = counts["read_with_later_handoff"] + counts["handoff_without_arrival_udp"]
    assert lost <= n / 1000
    assert [watch.n(stage) for stage in STAGES.split(",")] == [n] * 3
    longest = max(a - b for a, b in zip(got, sent, strict=True))
    least = sum(a - b for a, b in zip(got, sent, strict=True)) - longest * lost
    for stage in ("udp-socket-read", "handoff-to-read"):
        assert watch.of(stage).sum_ns >= least
