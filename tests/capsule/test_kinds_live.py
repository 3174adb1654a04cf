# SPDX-License-Identifier: GPL-2.0-only
"""Kinds of devices between two containers: payload intact, every chosen packet accounted for, nothing leaves in what hides packets.

The kernel may lack some kinds; a stock Debian kernel has all of them (tests/machinery/guest/run).
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from nsight_report import hops

from capsule.bed import V4, V6, Bed, exchange
from capsule.stamping import Stamping, skipped, total
from capsule.test_tunnels_live import INSIDE, connected
from conftest import skip_or_fail

pytestmark = pytest.mark.live

MAGIC = bytes([254, 28]) + b"NS"
#: Words of ``ip link add tun0``: tunnels, where capsules are taken off, because no point looks into them.
HIDING = {
    "gre": "type gre local {v4} remote {w4} ttl 64",
    "gretap": "type gretap local {v4} remote {w4} ttl 64",
    "ipip": "type ipip local {v4} remote {w4} ttl 64",
    "geneve": "type geneve id 7 remote {w4}",
    "ip6gre": "type ip6gre local {v6} remote {w6}",
    "ip6tnl": "type ip6tnl mode ipip6 local {v6} remote {w6}",
    "macsec": "link eth0 type macsec encrypt on",
    "wireguard": "type wireguard",
}
#: Devices that pass packets on as they are: capsules arrive.
PASSING = {
    "vlan": "link eth0 type vlan id 5",
    "macvlan": "link eth0 type macvlan mode bridge",
    "ipvlan": "link eth0 type ipvlan mode l2",
    "bond": "type bond mode active-backup miimon 100",
}
_KEY = "0123456789abcdef0123456789abcdef"


def _ip(bed: Bed, place: str, *words: str) -> None:
    """A command that this kernel may not know."""
    done = subprocess.run(["ip", "-n", bed.name(place), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        skip_or_fail("stock-kernel", f"ip {' '.join(words)}: {done.stderr.strip()}")


def _hardware(bed: Bed, place: str) -> str:
    return bed.ip(place, "-o", "link", "show", "eth0").split("link/ether ")[1].split()[0]


def _macsec(bed: Bed, place: str, other: str) -> None:
    receiver = ("rx", "port", "1", "address", _hardware(bed, other))
    _ip(bed, place, "macsec", "add", "tun0", "tx", "sa", "0", "pn", "1", "on", "key", "01", _KEY)
    _ip(bed, place, "macsec", "add", "tun0", *receiver)
    _ip(bed, place, "macsec", "add", "tun0", *receiver, "sa", "0", "pn", "1", "on", "key", "01", _KEY)


def _wireguard(bed: Bed, path: Path) -> None:
    """Each end has the other's public key."""
    wg = shutil.which("wg")
    if not wg:
        skip_or_fail("testbed", "wg is not installed")
    public = {}
    for place in "ab":
        key = subprocess.run([wg, "genkey"], capture_output=True, check=True).stdout
        (path / f"{place}.key").write_bytes(key)
        public[place] = (
            subprocess.run([wg, "pubkey"], input=key, capture_output=True, check=True).stdout.decode().strip()
        )
    for place, other, n in (("a", "b", 1), ("b", "a", 0)):
        words = ("private-key", str(path / f"{place}.key"), "listen-port", "7199")
        peer = ("peer", public[other], "allowed-ips", f"{INSIDE[n]}/32", "endpoint", f"{V4[n]}:7199")
        subprocess.run(
            ["ip", "netns", "exec", bed.name(place), str(wg), "set", "tun0", *words, *peer], check=True
        )


@contextmanager
def device(bed: Bed, kind: str, path: Path) -> Iterator[None]:
    """tun0 of that kind in a and b, with the addresses INSIDE."""
    extra = []
    try:
        if kind == "bond":
            bed._veth("a", "s0", "b", "s0")
            extra = [("a", "s0")]
        for place, other, n in (("a", "b", 0), ("b", "a", 1)):
            words = (HIDING | PASSING)[kind].format(v4=V4[n], w4=V4[1 - n], v6=V6[n], w6=V6[1 - n]).split()
            _ip(
                bed,
                place,
                "link",
                "add",
                *(words[:2] if words[0] == "link" else ()),
                "name",
                "tun0",
                *(words[2:] if words[0] == "link" else words),
            )
            if kind == "macsec":
                _macsec(bed, place, other)
            if kind == "bond":
                bed.ip(place, "link", "set", "s0", "master", "tun0")
            bed.ip(place, "link", "set", "tun0", "mtu", "1300")
            bed.ip(place, "addr", "add", f"{INSIDE[n]}/24", "dev", "tun0")
        if kind == "wireguard":
            _wireguard(bed, path)
        for place in "ab":
            bed.ip(place, "link", "set", "tun0", "up")
        yield
    finally:
        for place, name in (("a", "tun0"), ("b", "tun0"), *extra):
            subprocess.run(
                ["ip", "-n", bed.name(place), "link", "del", name], capture_output=True, check=False
            )


def reached(bed: Bed) -> None:
    """Wait until a datagram passes: links, addresses and keys need a moment."""
    with (
        bed.socket("b", socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        bed.socket("a", socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind((INSIDE[1], 7140))
        receiver.settimeout(0.5)
        for _ in range(60):
            sender.sendto(b"?", (INSIDE[1], 7140))
            try:
                receiver.recv(9)
            except TimeoutError:
                continue
            return
    raise AssertionError("nothing passes the device, also without nsight-capsule")


def talk(bed: Bed) -> None:
    """Segments and datagrams from a to b, around the size where a capsule still fits."""
    client, server = connected(bed, 7141)
    with client, server:
        for size in (1, 2, 51, 1000, 1220, 1232, 1248, 30_000):
            data = bytes(i % 251 for i in range(size))
            client.settimeout(30)
            server.settimeout(30)
            assert exchange(client, server, data) == data
    with (
        bed.socket("b", socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        bed.socket("a", socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind((INSIDE[1], 7141))
        receiver.settimeout(30)
        for size in (0, 1, 50, 51, 1243, 1244, 1245, 1272):
            sender.sendto(b"d" * size, (INSIDE[1], 7141))
            assert receiver.recv(2000) == b"d" * size


def arrived_at(manifest: dict[str, Any], device: str) -> int:
    """Number of packets at that device which were counted as arrived below it."""
    numbers = [str(p["number"]) for p in manifest["points"] if p["device"] == device]
    return sum(manifest["counted"]["counts"].get(number, {}).get("ended_again", 0) for number in numbers)


@pytest.mark.parametrize("kind", [*HIDING, *PASSING])
def test_payload_passes_and_packets_are_accounted_for(bed: Bed, tmp_path: Path, kind: str) -> None:
    bed.offloads(True)
    with device(bed, kind, tmp_path):
        reached(bed)
        before = bed.errors()
        points = [word for place in "ab" for word in ("--netns", bed.name(place))]
        with Stamping(tmp_path / "out", *points, "--rate", "1") as run:
            with bed.socket("b", socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as tap:
                tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
                tap.bind(("s0" if kind == "bond" else "eth0", 3))
                talk(bed)
                tap.setblocking(False)
                frames = []
                while True:
                    try:
                        frames.append(tap.recv(1 << 17))
                    except BlockingIOError:
                        break
            manifest = run.end()
        assert bed.errors() == before
    print(kind, manifest["counted"]["counts"])
    born = total(manifest, "born")
    assert total(manifest, "drawn") == born + skipped(manifest)
    assert total(manifest, "drawn") >= 16 - 8 * (kind in HIDING)
    assert born == total(manifest, "ended") + total(manifest, "left") + total(manifest, "taken_off")
    for trouble in ("forged", "foreign", "not_written"):
        assert not total(manifest, trouble), trouble
    assert frames
    if kind in PASSING:
        assert any(MAGIC in frame for frame in frames)
        assert total(manifest, "ended") >= 8 + 4
        # A packet's address is one of the namespace already at the lower device, where it arrives; a segment keeps its capsule,
        # and is seen again at tun0. In front of a macvlan, the lower device may have answered for the address itself.
        if kind != "macvlan":
            assert total(manifest, "ended_again") == arrived_at(manifest, "tun0") >= 8
    else:
        assert total(manifest, "left") >= 8
        inside = [frame for frame in frames if MAGIC in frame and _hidden(frame, kind)]
        assert not inside
    found = hops.load(tmp_path / "out").packets
    assert len(found) == born


def _hidden(frame: bytes, kind: str) -> bool:
    """Whether the capsule is in what the tunnel carries, not behind the tunnel's own datagram, where the receiver's point takes it off."""
    return kind not in ("geneve", "wireguard") or frame.rfind(MAGIC) != len(frame) - 28
