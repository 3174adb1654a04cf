# SPDX-License-Identifier: GPL-2.0-only
"""Tunnels that no point parses, in stamped datagrams: the inner packets arrive as they were sent."""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from capsule.bed import V4, V6, Bed, exchange
from capsule.stamping import Stamping, skipped, total

pytestmark = pytest.mark.live

INSIDE = ("10.96.0.1", "10.96.0.2")
#: VXLAN at a port that the points do not know, as with Geneve: they see only datagrams.
TUNNELS = {"v4": ("{v4}",), "v4-checksum": ("{v4}", "udpcsum"), "v6": ("{v6}",)}


@contextmanager
def tunnel(bed: Bed, kind: str) -> Iterator[None]:
    """A tunnel between the two containers, with the addresses INSIDE."""
    try:
        for place, n in (("a", 0), ("b", 1)):
            words = [word.format(v4=V4[1 - n], v6=V6[1 - n]) for word in TUNNELS[kind]]
            bed.ip(place, "link", "add", "tun0", "mtu", "1300", "type", "vxlan", "id", "9", "dstport", "6081", "remote", *words)  # fmt: skip
            bed.ip(place, "addr", "add", f"{INSIDE[n]}/24", "dev", "tun0")
            bed.ip(place, "link", "set", "tun0", "up")
        yield
    finally:
        for place in ("a", "b"):
            subprocess.run(
                ["ip", "-n", bed.name(place), "link", "del", "tun0"], capture_output=True, check=False
            )


def connected(bed: Bed, port: int) -> tuple[socket.socket, socket.socket]:
    """A TCP connection through the tunnel: both ends."""
    with bed.socket("b", socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((INSIDE[1], port))
        listener.listen()
        listener.settimeout(5)
        client = bed.socket("a", socket.AF_INET, socket.SOCK_STREAM)
        client.settimeout(5)
        client.connect((INSIDE[1], port))
        server, _ = listener.accept()
        server.settimeout(5)
    return client, server


@pytest.mark.parametrize("offloads", [True, False], ids=["offloads", "no-offloads"])
@pytest.mark.parametrize("kind", list(TUNNELS))
def test_what_is_in_a_stamped_tunnel_arrives(bed: Bed, tmp_path: Path, kind: str, offloads: bool) -> None:
    """A datagram with an unfinished inner checksum gets no capsule; a datagram without one gets a capsule."""
    bed.offloads(offloads)
    before = bed.errors()
    points = [word for place in ("a", "b") for word in ("--point", f"{bed.name(place)}:eth0")]
    with tunnel(bed, kind):
        with Stamping(tmp_path / "out", *points, "--rate", "1", "--protocol", "udp", "--port", "6081") as run:
            client, server = connected(bed, 7061)
            with client, server:
                for size in (1, 2, 50, 51, 1000):
                    assert exchange(client, server, b"t" * size) == b"t" * size
            with (
                bed.socket("b", socket.AF_INET, socket.SOCK_DGRAM) as receiver,
                bed.socket("a", socket.AF_INET, socket.SOCK_DGRAM) as sender,
            ):
                receiver.bind((INSIDE[1], 7061))
                receiver.settimeout(5)
                for size in (0, 1, 50, 51):
                    sender.sendto(b"d" * size, (INSIDE[1], 7061))
                    assert receiver.recv(99) == b"d" * size
            manifest = run.end()
    assert bed.errors() == before
    # At least a SYN, 5 segments and 4 datagrams.
    assert total(manifest, "drawn") >= 10
    assert total(manifest, "drawn") == total(manifest, "born") + skipped(manifest)
    assert total(manifest, "skip_tunnel") >= (10 if offloads else 0)


def checksum(data: bytes) -> int:
    """The one's-complement sum of 16-bit words; 0xffff for data that contains a correct checksum."""
    return sum(struct.unpack(f">{len(data) // 2}H", data)) % 0xFFFF or 0xFFFF


def hardware(bed: Bed, place: str) -> bytes:
    """Hardware address of eth0."""
    text = bed.ip(place, "-o", "link", "show", "eth0").split("link/ether ")[1].split()[0]
    return bytes.fromhex(text.replace(":", ""))


def test_a_checksum_that_the_sender_left_unfinished_behind_its_headers_is_completed_rightly(
    bed: Bed, tmp_path: Path
) -> None:
    """A user-space switch sends a tunnel's frames through a packet socket, and lets the kernel complete the inner checksum: the kernel
    sums all bytes that follow, up to the end of the packet.
    """
    bed.offloads(False)  # otherwise a virtual link never completes the checksum
    inside = struct.pack(">HHHH", 1, 2, 28, 28 + 17) + b"inside the tunnel..."
    udp = struct.pack(">HHHH", 4000, 6081, 8 + len(inside), 0)
    head = struct.pack(">BBHHHBBH", 0x45, 0, 28 + len(inside), 7, 0x4000, 9, 17, 0) + b"".join(
        map(socket.inet_aton, V4)
    )
    head = head[:10] + struct.pack(">H", 0xFFFF - checksum(head)) + head[12:]
    # struct virtio_net_hdr: a checksum is needed; it begins after the datagram's header, and is stored 6 bytes further on.
    need = struct.pack("<BBHHHH", 1, 0, 0, 0, 14 + 20 + 8, 6)
    with (
        Stamping(
            tmp_path / "out", "--point", f"{bed.name('a')}:eth0", "--rate", "1", "--port", "6081"
        ) as run,
        bed.socket("b", socket.AF_INET, socket.SOCK_DGRAM) as server,
        bed.socket("a", socket.AF_PACKET, socket.SOCK_RAW) as raw,
    ):
        server.bind((V4[1], 6081))
        server.settimeout(5)
        raw.setsockopt(263, 15, 1)  # SOL_PACKET, PACKET_VNET_HDR
        raw.bind(("eth0", 0x0800))
        raw.send(need + hardware(bed, "b") + hardware(bed, "a") + b"\x08\x00" + head + udp + inside)
        got = server.recv(99)
        manifest = run.end()
    assert got[8:] == inside[8:]
    # The pseudo header is what the sender put in: 28 + 17.
    assert checksum(got + struct.pack(">H", 28 + 17)) == 0xFFFF
    assert total(manifest, "drawn") == total(manifest, "skip_tunnel") == 1
