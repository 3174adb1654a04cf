# SPDX-License-Identifier: GPL-2.0-only
"""Which interface a packet belongs to if devices are stacked."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator

import pytest
from machinery.testbed.ports import reserved
from monitored import HANGS_S, Watch, connected, inode, inside, link
from nsight_demo.namespaces import SERVER4, Link

pytestmark = pytest.mark.live
MAC = "02:00:00:00:00:03"


@pytest.fixture(scope="module")
def veth() -> Iterator[Link]:
    with link("iface") as made:
        yield made


@pytest.fixture
def port() -> Iterator[int]:
    with reserved() as (number,):
        yield number


@pytest.mark.parametrize("tcp", [True, False], ids=["tcp", "udp"])
@pytest.mark.parametrize("moved", [False, True], ids=["same-namespace", "other-namespace"])
def test_an_interface_above_another_one_is_that_of_its_packets(port: int, tcp: bool, moved: bool) -> None:
    """A macvlan on the server's veth, stacked like bonds and VLANs; in a container, the veth is in another namespace."""
    above, address = f"mac{os.getpid() % 100000}", "198.18.77.3"
    with link("above") as made, contextlib.ExitStack() as stack:
        space = made.server
        if moved:
            space = f"{made.server}-in"
            subprocess.run(["ip", "netns", "add", space], check=True)
            stack.callback(subprocess.run, ["ip", "netns", "del", space], check=True)
        for command in (
            f"-n {made.server} link add link {made.interface} name {above} address {MAC} type macvlan",
            *([f"-n {made.server} link set {above} netns {space}"] if moved else []),
            *([] if moved else [f"-n {made.server} addr del {SERVER4}/24 dev {made.interface}"]),
            f"-n {space} addr add {address}/24 dev {above}",
            f"-n {space} link set {above} up",
            # The veth would answer for any address of its namespace.
            f"-n {made.client} neigh add {address} lladdr {MAC} dev {made.peer}",
        ):
            subprocess.run(["ip", *command.split()], check=True)
        with inside(space):
            index = socket.if_nametoindex(above)
            server = stack.enter_context(socket.socket(type=socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM))
            server.bind((address, port))
        with inside(made.client):
            client = stack.enter_context(socket.socket(type=server.type))
        if tcp:
            server.listen()
        client.connect((address, port))
        if tcp:
            server = stack.enter_context(server.accept()[0])
        for sock in (client, server):
            sock.settimeout(HANGS_S)
        number = inode(space)
        options = ("--netns", number, "--port", port)
        with (
            Watch(*options, "--ifindex", index) as watch,
            Watch(*options, "--group-by", "iface") as by_interface,
        ):
            for _ in range(20):
                client.send(b"x")
                server.recv(1)
    kind = "tcp" if tcp else "udp"
    assert watch.n(f"{kind}-socket-enqueued") == watch.n(f"{kind}-socket-read") == 20
    assert watch.n("handoff-to-read") == 20
    assert by_interface.n(f"{kind}-socket-enqueued") == by_interface.n(f"{kind}-socket-read") == 20
    assert index | number << 32 in by_interface.result.groups.values()
    for name in ("handoff_without_arrival_tcp", "handoff_without_arrival_udp", "tcp_start_without_arrival"):
        assert watch.result.counts[name] == by_interface.result.counts[name] == 0


def test_segments_from_another_interface_are_not_counted_as_without_arrival(veth: Link, port: int) -> None:
    with inside(veth.server):
        loopback = socket.if_nametoindex("lo")
    with Watch("--netns", inode(veth.server), "--port", port, "--ifindex", loopback) as watch:
        with connected(veth, True, False, port) as (client, server):
            for _ in range(20):
                client.send(b"x")
                server.recv(1)
    assert watch.result.histograms == {}
    assert watch.result.counts["tcp_start_without_arrival"] == 0
