# SPDX-License-Identifier: GPL-2.0-only
"""Stages that are measured only if the user names them: accept queue, driver to completion."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterator

import pytest
from machinery.testbed.ports import reserved
from monitored import Watch, addresses, assert_between, connected, inode, inside, link, now
from nsight_demo.namespaces import Link

pytestmark = pytest.mark.live
SLEEP_S, N = 0.02, 5
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
KINDS = ("accept-queue", "driver-to-completion")


@pytest.fixture(scope="module")
def veth() -> Iterator[Link]:
    with link("named") as made:
        yield made


@pytest.fixture
def port() -> Iterator[int]:
    with reserved() as (number,):
        yield number


def test_they_are_measured_only_if_they_are_named(veth: Link, port: int) -> None:
    with Watch("--netns", inode(veth.server), "--port", port) as watch:
        measured = {stage.name: (stage.measured, stage.missing) for stage in watch.header.stages}
        with connected(veth, True, False, port) as (client, server):
            client.send(b"x")
            server.recv(1)
    assert all(measured[name] == (False, "") for name in KINDS)
    assert all(watch.n(name) == 0 for name in KINDS)


@pytest.mark.parametrize("v6", [False, True], ids=["4", "6"])
def test_a_connection_waits_from_the_handshakes_end_until_accept_returns_it(
    veth: Link, port: int, v6: bool
) -> None:
    family, (address, _) = (socket.AF_INET6 if v6 else socket.AF_INET), addresses(v6)
    with inside(veth.server):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
    known, ends = [], [listener]
    options = (
        "--stages",
        "accept-queue",
        "--netns",
        inode(veth.server),
        "--port",
        port,
        "--group-by",
        "port",
    )
    with Watch(*options) as watch:
        for _ in range(N):
            with inside(veth.client):
                client = socket.socket(family, socket.SOCK_STREAM)
            before = now()
            client.connect((address, port))
            there = now()
            time.sleep(SLEEP_S)
            begin = now()
            ends += [client, listener.accept()[0]]
            known.append((begin - there, now() - before))
    for end in ends:
        end.close()
    assert list(watch.result.groups.values()) == [port]
    assert_between(watch.of("accept-queue", 2), known)
    assert watch.n("accept-queue") == N


def test_a_packet_is_with_its_device_until_the_device_has_done_with_it(veth: Link, port: int) -> None:
    """A TUN device completes a packet when the program behind it reads the packet."""
    name, known = f"tun{os.getpid() % 100000}", []
    with inside(veth.server):
        fd = os.open("/dev/net/tun", os.O_RDWR)
        try:
            fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
            for command in (f"addr add 198.18.79.1/24 dev {name}", f"link set {name} up"):
                subprocess.run(["ip", *command.split()], check=True)
            index = socket.if_nametoindex(name)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
                s.connect(("198.18.79.2", port))
                options = ("--stages", "driver-to-completion", "--ifindex", index, "--port", port)
                with Watch(*options) as watch:
                    for n in range(N):
                        before = now()
                        s.send(bytes([n]) * 9)
                        sent = now()
                        time.sleep(SLEEP_S)
                        begin = now()
                        while os.read(fd, 2048)[-9:] != bytes([n]) * 9:
                            pass  # some IPv6 packet
                        known.append((begin - sent, now() - before))
        finally:
            os.close(fd)
    assert_between(watch.of("driver-to-completion"), known)


def test_a_packet_that_this_machine_receives_is_no_completion(veth: Link, port: int) -> None:
    with Watch("--stages", "driver-to-completion", "--port", port) as watch:
        with connected(veth, False, False, port) as (client, server):
            for _ in range(N):
                client.send(b"x")
                server.recv(1)
    assert watch.n("driver-to-completion") == 0
