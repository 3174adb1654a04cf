# SPDX-License-Identifier: GPL-2.0-only
"""A namespace that forwards packets and has IPsec policies: no capsule is in what it may encrypt.

a: eth1 == r0 :r: r1 == eth1 :b
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from nsight_capsule import points
from nsight_record import netns

from capsule.bed import Bed, run
from capsule.stamping import Stamping, total
from conftest import skip_or_fail

pytestmark = pytest.mark.live

MAGIC = bytes([254, 28]) + b"NS"
THERE = "10.91.2.1"


@pytest.fixture
def router(bed: Bed) -> Iterator[str]:
    """The namespace r, whose policy is for other packets than those of the tests: this kernel may have no ESP."""
    name = bed.name("r")
    run("ip", "netns", "add", name)
    try:
        for place, peer, address, router in (
            ("a", "r0", "10.91.1.1", "10.91.1.2"),
            ("b", "r1", THERE, "10.91.2.2"),
        ):
            bed.ip(place, "link", "add", "eth1", "type", "veth", "peer", "name", peer, "netns", name)
            bed.ip(place, "addr", "add", f"{address}/24", "dev", "eth1")
            bed.ip("r", "addr", "add", f"{router}/24", "dev", peer)
            bed.ip("r", "link", "set", peer, "up")
            bed.ip(place, "link", "set", "eth1", "up")
            bed.ip(place, "route", "add", "10.91.0.0/16", "via", router)
        run("ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        ends = ("src", "10.90.1.1", "dst", "10.90.2.1")
        words = (
            "ip",
            "-n",
            name,
            "xfrm",
            "policy",
            "add",
            "dir",
            "out",
            *ends,
            "tmpl",
            *ends,
            "proto",
            "esp",
            "mode",
            "tunnel",
        )
        if done := subprocess.run(words, capture_output=True, text=True, check=False).stderr:
            skip_or_fail("testbed", f"IPsec policies: {done.strip()}")
        yield name
    finally:
        for place in "ab":
            subprocess.run(
                ["ip", "-n", bed.name(place), "link", "del", "eth1"], capture_output=True, check=False
            )
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def policies(name: str) -> set[bool]:
    """What ``points.links`` says of the namespace's policies, device by device."""
    return {link["ipsec"] for link in netns.call_in(netns.find(name), points.links)}


@pytest.mark.parametrize("how", ["point", "guard", "leave"])
def test_capsules_are_taken_off_where_packets_come_into_a_router_that_encrypts(
    bed: Bed, router: str, tmp_path: Path, how: str
) -> None:
    """At the point, or at the guard, before routing decides. With --leave they stay."""
    assert policies(router) == {True}
    assert policies(bed.name("a")) == {False}
    places = ["--point", f"{bed.name('a')}:eth1", *(["--netns", router] if how == "point" else [])]
    options = [*places, "--rate", "1", "--port", "7121", *(["--leave"] if how == "leave" else [])]
    with (
        Stamping(tmp_path / "out", *options) as stamping,
        bed.socket("b", socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as tap,
        bed.socket("b", socket.AF_INET, socket.SOCK_STREAM) as listener,
        bed.socket("b", socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        bed.socket("a", socket.AF_INET, socket.SOCK_STREAM) as client,
        bed.socket("a", socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        tap.bind(("eth1", 3))
        for server in (listener, receiver):
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((THERE, 7121))
            server.settimeout(30)
        listener.listen()
        client.settimeout(30)
        client.connect((THERE, 7121))
        connection, _ = listener.accept()
        with connection:
            client.sendall(b"a segment")
            assert connection.recv(99) == b"a segment"
        sender.sendto(b"a datagram", (THERE, 7121))
        assert receiver.recv(99) == b"a datagram"
        tap.setblocking(False)
        frames = []
        while not any(b"a datagram" in frame for frame in frames):
            frames.append(tap.recv(1 << 16))
        manifest = stamping.end()
    kept = [frame for frame in frames if MAGIC in frame]
    if how == "leave":
        assert {text for text in (b"a segment", b"a datagram") for frame in kept if text in frame} == {
            b"a segment",
            b"a datagram",
        }
        return
    assert not kept
    counted = total(manifest, "left") + total(manifest, "taken_off")
    assert counted == total(manifest, "born") >= 2  # a busy machine sends the segment twice
    assert (total(manifest, "taken_off") == 0) == (how == "point")
    assert any(f"IPsec policies in {router}" in line for line in stamping.said) == (how == "point")
