# SPDX-License-Identifier: GPL-2.0-only
"""Two hosts of a virtual network with one container each: veth, bridge and VXLAN between them, all in namespaces of this run.

a: eth0 == va :h1: br0, vx0 . u0 == u1 . vx1, br1 :h2: vb == eth0 :b
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import os
import socket
import stat
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from conftest import skip_or_fail

T = TypeVar("T")
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 2, 0x1000
MTU = 1450  # of the inner packets: 1500 minus the overhead of VXLAN
V4 = ("10.98.0.1", "10.98.0.2")
V6 = ("fd98::1", "fd98::2")
DEVICES = (
    ("a", "eth0"),
    ("h1", "va"),
    ("h1", "vx0"),
    ("h1", "u0"),
    ("h2", "u1"),
    ("h2", "vx1"),
    ("h2", "vb"),
    ("b", "eth0"),
)
OFFLOADS = ("tx", "tso", "gso", "gro")
_libc = ctypes.CDLL(None, use_errno=True)


def run(*words: str) -> str:
    """A command's output; it must succeed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


@dataclass
class Bed:
    """The virtual network; ``name("a")`` is the namespace of place a."""

    prefix: str = field(default_factory=lambda: f"nsight-cap-{os.getpid()}")

    def name(self, place: str) -> str:
        return f"{self.prefix}-{place}"

    def ip(self, place: str, *words: str) -> str:
        return run("ip", "-n", self.name(place), *words)

    def build(self) -> None:
        for place in ("a", "h1", "h2", "b"):
            run("ip", "netns", "add", self.name(place))
            self.ip(place, "link", "set", "lo", "up")
        self._veth("a", "eth0", "h1", "va")
        self._veth("b", "eth0", "h2", "vb")
        self._veth("h1", "u0", "h2", "u1")
        self._host("h1", "va", "u0", "vx0", "br0", "10.99.0.1", "10.99.0.2")
        self._host("h2", "vb", "u1", "vx1", "br1", "10.99.0.2", "10.99.0.1")
        for place, n in (("a", 0), ("b", 1)):
            self.ip(place, "link", "set", "eth0", "mtu", str(MTU))
            self.ip(place, "addr", "add", f"{V4[n]}/24", "dev", "eth0")
            self.ip(place, "addr", "add", f"{V6[n]}/64", "dev", "eth0", "nodad")
            self.ip(place, "link", "set", "eth0", "up")
            for family in (socket.AF_INET, socket.AF_INET6):
                self._neighbour(place, family, n)

    def _neighbour(self, place: str, family: int, n: int) -> None:
        """Add a fixed neighbour entry, so that no test waits for address resolution."""
        other = "b" if place == "a" else "a"
        line = self.ip(other, "-o", "link", "show", "eth0")
        address = (V4 if family == socket.AF_INET else V6)[1 - n]
        self.ip(
            place,
            "neigh",
            "replace",
            address,
            "lladdr",
            line.split("link/ether ")[1].split()[0],
            "dev",
            "eth0",
        )

    def _veth(self, one: str, dev: str, other: str, peer: str) -> None:
        run(
            "ip",
            "link",
            "add",
            dev,
            "netns",
            self.name(one),
            "type",
            "veth",
            "peer",
            "name",
            peer,
            "netns",
            self.name(other),
        )

    def _host(
        self, place: str, inner: str, under: str, vxlan: str, bridge: str, local: str, remote: str
    ) -> None:
        self.ip(place, "addr", "add", f"{local}/24", "dev", under)
        self.ip(place, "link", "set", under, "up")
        self.ip(place, "link", "add", bridge, "type", "bridge")
        self.ip(place, "link", "add", vxlan, "type", "vxlan", "id", "7", "local", local, "remote", remote, "dstport", "4789",
                "dev", under)  # fmt: skip
        for dev in (vxlan, inner):
            self.ip(place, "link", "set", dev, "mtu", str(MTU))
            self.ip(place, "link", "set", dev, "master", bridge)
            self.ip(place, "link", "set", dev, "up")
        self.ip(place, "link", "set", bridge, "up")

    def clear(self) -> None:
        for place in ("a", "h1", "h2", "b"):
            subprocess.run(["ip", "netns", "del", self.name(place)], capture_output=True, check=False)

    def offloads(self, on: bool) -> None:
        for place, dev in DEVICES:
            words = [word for of in OFFLOADS for word in (of, "on" if on else "off")]
            run("ip", "netns", "exec", self.name(place), "ethtool", "-K", dev, *words)

    def in_place(self, place: str, function: Callable[[], T]) -> T:
        """Call ``function()`` in a thread in the namespace."""
        made: list[T] = []
        errors: list[BaseException] = []

        def work() -> None:
            fd = os.open(f"/run/netns/{self.name(place)}", os.O_RDONLY)
            try:
                assert _libc.setns(fd, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
                made.append(function())
            except BaseException as error:
                errors.append(error)
            finally:
                os.close(fd)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return made[0]

    def socket(self, place: str, family: int, kind: int, proto: int = 0) -> socket.socket:
        return self.in_place(place, lambda: socket.socket(family, kind, proto))

    def connection(self, family: int, port: int) -> tuple[socket.socket, socket.socket]:
        """A TCP connection from a to b: both ends."""
        address = (V4 if family == socket.AF_INET else V6)[1]
        with self.socket("b", family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen()
            listener.settimeout(30)
            client = self.socket("a", family, socket.SOCK_STREAM)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.settimeout(30)
            client.connect((address, port))
            server, _ = listener.accept()
            server.settimeout(30)
        return client, server

    def datagrams(self, family: int, port: int) -> tuple[socket.socket, socket.socket]:
        """A UDP socket in a, connected to one in b."""
        address = (V4 if family == socket.AF_INET else V6)[1]
        server = self.socket("b", family, socket.SOCK_DGRAM)
        server.bind((address, port))
        server.settimeout(30)
        client = self.socket("a", family, socket.SOCK_DGRAM)
        client.connect((address, port))
        return client, server

    def errors(self) -> dict[str, int]:
        """Checksum and other errors of received packets, in all places."""
        found: dict[str, int] = {}
        for place in ("a", "h1", "h2", "b"):
            text = run("ip", "netns", "exec", self.name(place), "cat", "/proc/net/snmp", "/proc/net/snmp6")
            found |= {f"{place} {name}": n for name, n in _errors(text)}
        return found


def _errors(text: str) -> list[tuple[str, int]]:
    lines = [line.split() for line in text.splitlines()]
    pairs: list[tuple[str, Any]] = []
    for head, values in itertools.pairwise(lines):
        if head[0] == values[0] and head[0] in ("Tcp:", "Udp:", "Ip:") and not head[1].isdecimal():
            pairs += [(head[0] + name, value) for name, value in zip(head[1:], values[1:])]
    pairs += [(line[0], line[1]) for line in lines if len(line) == 2]
    wanted = ("InCsumErrors", "InErrors", "InErrs", "InHdrErrors", "InTruncatedPkts")
    return [(name, int(value)) for name, value in pairs if name.endswith(wanted)]


@contextmanager
def guest_tap(bed: Bed, place: str, name: str, *settings: str, up: bool = True) -> Iterator[int]:
    """A tap like that of a guest: the descriptor from which its frames are read. ``settings`` of ip link set."""

    def opened() -> int:
        fd = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
        return fd

    try:
        fd = bed.in_place(place, opened)
    except OSError as error:
        skip_or_fail("testbed", f"/dev/net/tun: {error.strerror}")
    try:
        bed.ip(place, "link", "set", name, *settings, "up" if up else "down")
        yield fd
    finally:
        os.close(fd)


@contextmanager
def guest_macvtap(bed: Bed, hardware: str) -> Iterator[int]:
    """t0 in h1: a guest's macvtap beside the host's macvlan m0; the descriptor from which its frames are read."""
    inside = f"--net=/run/netns/{bed.name('h1')}"
    script = "mount -t sysfs none /sys && cat /sys/class/net/t0/macvtap/tap*/dev"
    bed.ip("h1", "link", "add", "l0", "type", "veth", "peer", "name", "l1")
    try:
        for name, kind in (("m0", "macvlan"), ("t0", "macvtap")):
            done = subprocess.run(
                ["ip", "-n", bed.name("h1"), "link", "add", "link", "l0", "name", name, "type", kind, "mode", "bridge"],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                skip_or_fail("testbed", f"{kind}: {done.stderr.strip()}")
        bed.ip("h1", "link", "set", "t0", "address", hardware)
        for name in ("l0", "l1", "m0", "t0"):
            bed.ip("h1", "link", "set", name, "up")
        numbers = run("nsenter", inside, "unshare", "-m", "sh", "-c", script).split(":")
        with tempfile.TemporaryDirectory() as directory:
            node = os.path.join(directory, "tap")
            os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(int(numbers[0]), int(numbers[1])))
            fd = os.open(node, os.O_RDWR | os.O_NONBLOCK)
        try:
            yield fd
        finally:
            os.close(fd)
    finally:
        subprocess.run(["ip", "-n", bed.name("h1"), "link", "del", "l0"], capture_output=True, check=False)


def exchange(client: socket.socket, server: socket.socket, data: bytes) -> bytes:
    """Send data over TCP, even more than the buffers hold; return the received data."""
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    got = bytearray()
    while len(got) < len(data):
        part = server.recv(1 << 20)
        if not part:
            break
        got += part
    sender.join()
    return bytes(got)
