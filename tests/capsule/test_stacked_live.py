# SPDX-License-Identifier: GPL-2.0-only
"""A device that hands its datagrams to another one: where both are points, each datagram is drawn once.

The kernel may lack some kinds; a stock Debian kernel has all of them (tests/machinery/guest/run).
"""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from nsight_capsule import stamp

from capsule.bed import Bed, run
from capsule.stamping import Stamping, total
from conftest import skip_or_fail

pytestmark = pytest.mark.live

N, EXTRA, SIZE, TOO_LONG = 4000, 20, 100, 1422
HERE, THERE = "10.97.0.1", [f"10.97.0.{n}" for n in range(2, 10)]
NEIGHBOUR = "02:00:00:00:00:01"
#: Words of ``ip link add``: up0 is above eth0, or (bond) above s0.
KINDS = {
    "macvlan": "link eth0 name up0 type macvlan mode bridge",
    "vlan": "link eth0 name up0 type vlan id 5",
    "bond": "name up0 type bond mode active-backup miimon 100",
    "ipvlan-l2": "link eth0 name up0 type ipvlan mode l2",
    "ipvlan-l3": "link eth0 name up0 type ipvlan mode l3",
    "ipvlan-l3s": "link eth0 name up0 type ipvlan mode l3s",
}


@dataclass(frozen=True)
class Stack:
    """up0 in namespace ``space`` above ``lower`` in a."""

    space: str
    lower: str


def _try(*words: str) -> None:
    """A command that this kernel may not know."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        skip_or_fail("stock-kernel", f"{' '.join(words)}: {done.stderr.strip()}")


def _reaches(space: str, device: str) -> None:
    for address in THERE:
        run("ip", "-n", space, "neigh", "replace", address, "lladdr", NEIGHBOUR, "dev", device)


@contextmanager
def stack(bed: Bed, kind: str, apart: bool) -> Iterator[Stack]:
    """``apart``: up0 is in a namespace of its own."""
    a = bed.name("a")
    space = f"{bed.prefix}-up" if apart else a
    lower = "s0" if kind == "bond" else "eth0"
    try:
        if apart:
            run("ip", "netns", "add", space)
        if kind == "bond":
            run("ip", "-n", a, "link", "add", "s0", "type", "veth", "peer", "name", "s1")
        _try("ip", "-n", a, "link", "add", *KINDS[kind].split())
        if kind == "bond":
            run("ip", "-n", a, "link", "set", "s1", "mtu", "1450", "up")
            run("ip", "-n", a, "link", "set", "s0", "master", "up0")
            run("ip", "-n", a, "link", "set", "up0", "mtu", "1450")
        if apart:
            run("ip", "-n", a, "link", "set", "up0", "netns", space)
        run("ip", "-n", space, "addr", "add", f"{HERE}/24", "dev", "up0")
        run("ip", "-n", space, "link", "set", "up0", "up")
        if kind.startswith("ipvlan-l3"):  # it looks up a route of the device below
            run("ip", "-n", a, "route", "add", "10.97.0.0/24", "dev", "eth0", "metric", "500")
            _reaches(a, "eth0")
        else:
            _reaches(space, "up0")
        yield Stack(space, lower)
    finally:
        for name in ("up0", "s0"):
            subprocess.run(["ip", "-n", space, "link", "del", name], capture_output=True, check=False)
            subprocess.run(["ip", "-n", a, "link", "del", name], capture_output=True, check=False)
        subprocess.run(
            ["ip", "-n", a, "route", "del", "10.97.0.0/24", "metric", "500"], capture_output=True, check=False
        )
        if apart:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


def drawn_once(
    bed: Bed, made: Stack, points: tuple[str, ...], path: Path, send: Callable[[int, int], None]
) -> None:
    """4000 datagrams at a rate of 1/2: 2000 are drawn, with a standard deviation of 32. If the lower device drew again, it would be 3000.
    At rate 1, each of 20 that do not fit is skipped once. ``send``: one datagram, with its number and size."""
    places = {"up0": made.space, made.lower: bed.name("a")}
    words = [w for p in points for w in ("--point", f"{places[p]}:{p}")]
    with Stamping(path, *words, "--rate", "1/2", "--port", "7059") as stamping:
        for i in range(N):
            send(i, SIZE)
        counts = stamp.ask(path, "counts")
        half = sum(of.get("drawn", 0) for of in counts.values())
        stamping.change("--rate", "1")
        for i in range(EXTRA):
            send(i, TOO_LONG)
        manifest = stamping.end()
    print(manifest["counted"]["counts"])
    assert abs(half - N // 2) < 6 * 32
    assert total(manifest, "drawn") - half == EXTRA == total(manifest, "skip_mtu")


@pytest.mark.parametrize(
    ("kind", "points", "apart"),
    [
        pytest.param(
            kind, points, apart, id=f"{kind}-{points}-{'two-namespaces' if apart else 'one-namespace'}"
        )
        for kind in KINDS
        for points in ("both", "upper", "lower")
        for apart in (False, True)
        # A bond and its devices are in one namespace.
        if not (apart and (kind == "bond" or (points != "both" and kind != "macvlan")))
    ],
)
def test_a_datagram_is_drawn_once_at_stacked_devices(
    bed: Bed, tmp_path: Path, kind: str, points: str, apart: bool
) -> None:
    with ExitStack() as stay:
        made = stay.enter_context(stack(bed, kind, apart))
        client = stay.enter_context(
            bed.in_place("up" if apart else "a", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        )
        client.bind((HERE, 0))
        if kind == "ipvlan-l3s" and not apart:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"up0")

        def send(i: int, size: int) -> None:
            client.sendto(b"d" * size, (THERE[i % 8], 7059))

        chosen = {"both": ("up0", made.lower), "upper": ("up0",), "lower": (made.lower,)}[points]
        drawn_once(bed, made, chosen, tmp_path / "out", send)


def frame(size: int) -> bytes:
    """A datagram to port 7059 that must not be fragmented, in an Ethernet frame."""
    udp = struct.pack(">HHHH", 7000, 7059, 8 + size, 0) + b"d" * size
    addresses = socket.inet_aton(HERE) + socket.inet_aton(THERE[0])
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0x4000, 64, socket.IPPROTO_UDP, 0)
    hardware = bytes.fromhex(NEIGHBOUR.replace(":", "")) + bytes.fromhex("020000000002")
    return hardware + b"\x08\x00" + head + addresses + udp


@pytest.mark.parametrize("kind", ["macvlan", "vlan", "bond"])
def test_a_frame_of_a_packet_socket_is_drawn_once(bed: Bed, tmp_path: Path, kind: str) -> None:
    with ExitStack() as stay:
        made = stay.enter_context(stack(bed, kind, False))
        sender = stay.enter_context(bed.socket("a", socket.AF_PACKET, socket.SOCK_RAW))
        sender.bind(("up0", 0))
        drawn_once(
            bed,
            made,
            ("up0", made.lower),
            tmp_path / "out",
            lambda _, size: sender.send(frame(size)) and None,
        )


@pytest.mark.parametrize("kind", ["macvlan", "bond"])
def test_a_datagram_that_is_sent_below_is_drawn_there(bed: Bed, tmp_path: Path, kind: str) -> None:
    """Every second one is sent at the lower device itself, by the same core, whose packets have the same addresses in memory."""
    with ExitStack() as stay:
        made = stay.enter_context(stack(bed, kind, False))
        senders = [stay.enter_context(bed.socket("a", socket.AF_PACKET, socket.SOCK_RAW)) for _ in range(2)]
        for sender, device in zip(senders, ("up0", made.lower)):
            sender.bind((device, 0))
        drawn_once(
            bed,
            made,
            ("up0", made.lower),
            tmp_path / "out",
            lambda i, size: senders[i % 2].send(frame(size)) and None,
        )
