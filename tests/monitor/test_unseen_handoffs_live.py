# SPDX-License-Identifier: GPL-2.0-only
"""Datagrams whose hand-offs were not seen wait between others: only the others are measured, each with its own times."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from machinery.testbed.ports import reserved
from monitored import HANGS_S, Watch, addresses, connected, inode, inside, link, on_core
from nsight_demo.namespaces import Link

pytestmark = pytest.mark.live
SLEEP_S = 0.02


@pytest.fixture(scope="module")
def veth() -> Iterator[Link]:
    with link("unseen") as made:
        yield made


@pytest.fixture
def port() -> Iterator[int]:
    with reserved() as (number,):
        yield number


def test_what_waited_before_the_monitor_began_is_not_measured_as_what_came_later(
    veth: Link, port: int
) -> None:
    """Three datagrams wait when the monitor begins, one comes later. Read 20 ms later, the first has no times. The next two are taken for
    datagrams whose times were lost: those of the newest one are a lower bound. The newest has its own."""
    with connected(veth, False, False, port) as (client, server), on_core(0):
        for _ in range(3):
            client.send(b"x")
        with Watch("--netns", inode(veth.server), "--port", port) as watch:
            client.send(b"x")
            time.sleep(SLEEP_S)
            for _ in range(4):
                server.recv(1)
    counts = watch.result.counts
    assert (counts["read_without_handoff"], counts["read_with_later_handoff"]) == (1, 2)
    assert watch.n("udp-socket-enqueued") == 1 and watch.n("udp-socket-read") == 3


@pytest.mark.parametrize("order", ["vlv", "lv", "vllv", "lvlv", "l", "vl"])
def test_datagrams_through_another_device_are_left_out(veth: Link, port: int, order: str) -> None:
    """One socket gets them from its veth (v), which is selected, and from loopback (l)."""
    address = addresses(False)[0]
    with inside(veth.server):
        server, local = (socket.socket(type=socket.SOCK_DGRAM) for _ in range(2))
        index = socket.if_nametoindex(veth.interface)
        server.bind(("0.0.0.0", port))
        server.settimeout(HANGS_S)
    with inside(veth.client):
        remote = socket.socket(type=socket.SOCK_DGRAM)
    options = ("--netns", inode(veth.server), "--port", port, "--ifindex", index)
    with server, local, remote, on_core(0), Watch(*options) as watch:
        for _ in range(3):
            for device in order:
                if device == "v":
                    remote.sendto(b"v", (address, port))
                else:
                    local.sendto(b"l", ("127.0.0.1", port))
            assert "".join(server.recv(1).decode() for _ in order) == order
    n = 3 * order.count("v")
    assert watch.n("udp-socket-enqueued") == watch.n("udp-socket-read") == watch.n("handoff-to-read") == n
    assert watch.result.counts["read_without_handoff"] == watch.result.counts["read_with_later_handoff"] == 0
