# SPDX-License-Identifier: GPL-2.0-only
"""No capsule leaves the host, whatever happens to its packet on the way: parts, fragments, other headers, other devices."""

from __future__ import annotations

import ctypes
import os
import platform
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from capsule.bed import V4, V6, Bed, exchange, guest_macvtap, guest_tap, run
from capsule.stamping import Stamping, total

pytestmark = pytest.mark.live

ETH_P_ALL = 3
MAGIC = bytes([254, 28]) + b"NS"
#: The sum of a segment's capsule: the same as that of 28 NOPs (tools/bpf/capsule.h).
SUM_TCP = 0x0E0E
SEQ = 0x12345678
PAYLOAD = b"leaving."  # whole units of eight bytes, as in a fragment that other fragments follow
HOP_BY_HOP, ROUTING, DESTINATION = 0, 43, 60
C_TAG, S_TAG = 0x8100, 0x88A8


def words_of(data: bytes) -> int:
    return sum(struct.unpack(f">{len(data) // 2}H", data))


def capsule(session: int, seq: int, points: int = 0) -> bytes:
    """A capsule as nsight-stamp makes it for a segment with this sequence number. ``points``: numbers in its slots."""
    head, tail = MAGIC + struct.pack(">H", points), struct.pack(">HHI12x", session, seq & 0xFFFF, 1)
    return head + struct.pack(">H", (SUM_TCP - words_of(head + tail)) % 0xFFFF) + tail


def segment(capsule: bytes, pseudo: bytes) -> bytes:
    """A TCP segment with this capsule as its option; ``pseudo``: the addresses of its checksum."""
    head = struct.pack(">HHIIBBHHH", 9, 7091, SEQ, 1, (20 + len(capsule)) // 4 << 4, 0x18, 512, 0, 0)
    whole = head + capsule + PAYLOAD
    summed = words_of(pseudo + struct.pack(">HH", socket.IPPROTO_TCP, len(whole)) + whole)
    return whole[:16] + struct.pack(">H", 0xFFFF - summed % 0xFFFF) + whole[18:]


def ipv4(content: bytes, flags: int) -> bytes:
    ends = b"".join(map(socket.inet_aton, V4))
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(content), 7, flags, 9, socket.IPPROTO_TCP, 0) + ends
    return b"\x08\x00" + head[:10] + struct.pack(">H", 0xFFFF - words_of(head) % 0xFFFF) + head[12:] + content


def ipv6(content: bytes, *extensions: int) -> bytes:
    """An IPv6 packet with these extension headers; the second and later ones have 16 bytes, padded."""
    ends = b"".join(socket.inet_pton(socket.AF_INET6, of) for of in V6)
    chain = [*extensions, socket.IPPROTO_TCP]
    for i, kind in reversed(list(enumerate(extensions))):
        body = b"\0\0\0\0\0\0" if kind == ROUTING else b"\x01\x04\0\0\0\0"  # no segments left; PadN
        longer = int(i > 0 and kind != ROUTING)
        content = bytes([chain[i + 1], longer]) + body + b"\x01\x06\0\0\0\0\0\0" * longer + content
    return b"\x86\xdd" + struct.pack(">IHBB", 6 << 28, len(content), chain[0], 9) + ends + content


def v4_segment(session: int, seq: int = SEQ, flags: int = 0x4000, points: int = 0) -> bytes:
    return ipv4(segment(capsule(session, seq, points), b"".join(map(socket.inet_aton, V4))), flags)


def v6_segment(session: int, *extensions: int) -> bytes:
    pseudo = b"".join(socket.inet_pton(socket.AF_INET6, of) for of in V6)
    return ipv6(segment(capsule(session, SEQ), pseudo), *extensions)


def in_v6(packet: bytes) -> bytes:
    """A packet in an IPv6 packet, as a route with ``encap`` leaves it: without a device that would be a boundary."""
    head, kind = ipv6(packet[2:]), {b"\x08\x00": socket.IPPROTO_IPIP, b"\x86\xdd": socket.IPPROTO_IPV6}
    return head[: 2 + 6] + bytes([kind[packet[:2]]]) + head[2 + 7 :]


def tagged(packet: bytes, *types: int) -> bytes:
    """The packet behind VLAN tags of these types."""
    return b"".join(struct.pack(">HH", of, 5) for of in types) + packet


def labelled(packet: bytes, n: int) -> bytes:
    """The packet behind MPLS labels, the last one marked as such: what a route with ``encap mpls`` sends."""
    labels = (100 << 12 | (i == n - 1) << 8 | 64 for i in range(n))
    return b"\x88\x47" + b"".join(struct.pack(">I", label) for label in labels) + packet[2:]


LEAVING: dict[str, Callable[[int], bytes]] = {
    "whole": lambda session: v4_segment(session),
    "cut from a larger segment": lambda session: v4_segment(session, SEQ - 1400),
    "first fragment": lambda session: v4_segment(session, flags=0x2000),
    "behind an extension header": lambda session: v6_segment(session, DESTINATION),
    "in a VLAN": lambda session: tagged(v4_segment(session), C_TAG),
    "in a VLAN in a VLAN": lambda session: tagged(v6_segment(session), S_TAG, C_TAG),
    "IPv4 in IPv6": lambda session: in_v6(v4_segment(session)),
    "IPv6 in IPv6": lambda session: in_v6(v6_segment(session, ROUTING)),
    "behind an MPLS label": lambda session: labelled(v4_segment(session), 1),
    "in a VLAN behind three MPLS labels": lambda session: tagged(labelled(v6_segment(session), 3), C_TAG),
    "behind three": lambda session: v6_segment(session, HOP_BY_HOP, DESTINATION, ROUTING),
}


def hardware(bed: Bed, place: str) -> bytes:
    text = bed.ip(place, "-o", "link", "show", "eth0").split("link/ether ")[1].split()[0]
    return bytes.fromhex(text.replace(":", ""))


def tap_of(bed: Bed, place: str) -> socket.socket:
    """A socket that gets all frames that pass eth0 there from now on."""
    tap = bed.socket(place, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    tap.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
    tap.bind(("eth0", ETH_P_ALL))
    tap.settimeout(30)
    return tap


def waiting(tap: socket.socket) -> list[bytes]:
    """Frames that have already arrived."""
    tap.setblocking(False)
    frames = []
    try:
        while True:
            frames.append(tap.recv(1 << 16))
    except BlockingIOError:
        return frames


def boundary(bed: Bed) -> list[str]:
    """Options: u0 leads out of the host."""
    return ["--boundary", f"{bed.name('h1')}:u0"]


@pytest.mark.parametrize("form", list(LEAVING))
def test_a_segment_leaves_with_nop_in_place_of_its_capsule(
    bed: Bed, everywhere: list[str], tmp_path: Path, form: str
) -> None:
    """The frame that arrives in b equals the one that a sent, except for 28 bytes; the checksum is equal, too."""
    with (
        Stamping(tmp_path / "out", *everywhere, "--rate", "1", "--port", "1", *boundary(bed)) as run,
        tap_of(bed, "b") as tap,
        bed.socket("a", socket.AF_PACKET, socket.SOCK_RAW) as raw,
    ):
        sent = hardware(bed, "b") + hardware(bed, "a") + LEAVING[form](run.manifest()["settings"]["session"])
        raw.bind(("eth0", 0x0800))
        raw.send(sent)
        frame = b""
        while PAYLOAD not in frame:
            frame = tap.recv(1 << 16)
        manifest = run.end()
    if "VLAN" in form:
        sent = sent[:12] + sent[16:]  # packet sockets hand the outer tag over separately
    at = sent.index(MAGIC)
    assert frame == sent[:at] + b"\x01" * 28 + sent[at + 28 :]
    assert total(manifest, "left") == int("cut" not in form)
    assert total(manifest, "forged") == total(manifest, "not_stripped") == 0


def test_no_part_of_a_segment_that_was_cut_before_the_boundary_has_a_capsule(
    bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    """Without offloads, a's device splits large segments: each part has the option, and the boundary must remove it."""
    bed.offloads(False)
    before, data = bed.errors(), os.urandom(300_000)
    with (
        Stamping(tmp_path / "out", *everywhere, "--rate", "1", "--port", "7092", *boundary(bed)) as run,
        tap_of(bed, "b") as tap,
    ):
        client, server = bed.connection(socket.AF_INET, 7092)
        assert exchange(client, server, data) == data
        frames = waiting(tap)
        manifest = run.end()
    assert len(frames) > len(data) // 1500
    assert not [frame for frame in frames if MAGIC in frame]
    assert total(manifest, "copies") > 0
    assert total(manifest, "left") == total(manifest, "born")
    assert bed.errors() == before


def test_a_datagram_that_routers_may_cut_gets_no_capsule(
    bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    """A capsule cannot be found in fragments. IP_MTU_DISCOVER decides whether IPv4 has DF; in IPv6, only senders fragment."""

    def counts(family: socket.AddressFamily, level: int, option: int, value: int) -> tuple[int, ...]:
        out = tmp_path / f"out-{family}-{value}"
        with Stamping(out, *everywhere, "--rate", "1", "--port", "7093") as run:
            client, server = bed.datagrams(family, 7093)
            client.setsockopt(level, option, value)
            client.send(b"datagram")
            assert server.recv(99) == b"datagram"
            manifest: dict[str, Any] = run.end()
        return tuple(total(manifest, name) for name in ("drawn", "born", "skip_fragment"))

    ip, ip6 = (socket.IPPROTO_IP, 10), (socket.IPPROTO_IPV6, 23)  # IP_MTU_DISCOVER, IPV6_MTU_DISCOVER
    assert counts(socket.AF_INET, *ip, 2) == (1, 1, 0)  # IP_PMTUDISC_DO
    assert counts(socket.AF_INET, *ip, 0) == (1, 0, 1)  # IP_PMTUDISC_DONT
    assert counts(socket.AF_INET6, *ip6, 0) == (1, 1, 0)


#: bpf(2): its number, commands and types.
SYS_BPF = {"x86_64": 321, "aarch64": 280}
PROG_LOAD, LINK_CREATE, SCHED_CLS, TCX_EGRESS = 5, 28, 3, 47
TC_ACT_OK = 0


def bpf(command: int, attributes: bytes) -> int:
    """Call bpf(2); the file descriptor."""
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.syscall(SYS_BPF[platform.machine()], command, buffer, len(attributes))
    assert fd >= 0, os.strerror(ctypes.get_errno())
    return fd


@contextmanager
def accepting(bed: Bed, place: str, device: str) -> Iterator[None]:
    """A foreign program at a device's egress that accepts every packet: no program after it sees a packet."""
    code = ctypes.create_string_buffer(
        struct.pack("<BBhi", 0xB7, 0, 0, TC_ACT_OK) + struct.pack("<BBhi", 0x95, 0, 0, 0)
    )
    terms = ctypes.create_string_buffer(b"GPL")
    program = bpf(
        PROG_LOAD, struct.pack("=IIQQ", SCHED_CLS, 2, ctypes.addressof(code), ctypes.addressof(terms))
    )
    index = bed.in_place(place, lambda: socket.if_nametoindex(device))
    link = bed.in_place(
        place, lambda: bpf(LINK_CREATE, struct.pack("=IIII16x", program, index, TCX_EGRESS, 0))
    )
    try:
        yield
    finally:
        os.close(link)
        os.close(program)


def test_capsules_are_taken_off_before_another_program_lets_the_packet_go(
    bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    """Cilium's program does this at the device that leads out: it was there first, and ends the chain of programs."""
    with (
        accepting(bed, "h1", "u0"),
        Stamping(tmp_path / "out", *everywhere, "--rate", "1", "--port", "7094", *boundary(bed)) as run,
        tap_of(bed, "b") as tap,
    ):
        for client, server in (
            bed.datagrams(socket.AF_INET, 7094),
            bed.connection(socket.AF_INET, 7094),
        ):
            client.send(b"leaves")
            assert server.recv(99) == b"leaves"
        frames = [frame for frame in waiting(tap) if b"leaves" in frame]
        manifest = run.end()
    assert len(frames) >= 2
    assert not [frame for frame in frames if MAGIC in frame]
    assert total(manifest, "left") == total(manifest, "born") >= 2


NOBODY = "02:00:00:00:00:09"
#: A guest's tap at that bridge.
GUEST = ("guest", "master", "br0")


def out_of(tap: int, content: bytes) -> bytes:
    """The frame that contains ``content``."""
    frame = b""
    while content not in frame:
        assert select.select([tap], [], [], 30)[0], "nothing came out"
        frame = os.read(tap, 1 << 16)
    return frame


def test_capsules_are_taken_off_where_packets_leave_by_a_device_that_is_no_point(
    bed: Bed, tmp_path: Path
) -> None:
    """The bridge floods frames to unknown addresses: one copy goes to the guest, and one to b, which drops it."""
    address = "10.98.0.9"
    bed.ip("a", "neigh", "replace", address, "lladdr", NOBODY, "dev", "eth0")
    places = ("--netns", bed.name("a"), "--rate", "1", "--port", "7095")
    with guest_tap(bed, "h1", *GUEST) as frames, Stamping(tmp_path / "out", *places) as run:
        assert f"{bed.name('h1')}:guest" in run.manifest()["guards"]
        with bed.socket("a", socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(b"datagram", (address, 7095))
        datagram = out_of(frames, b"datagram")
        session = run.manifest()["settings"]["session"]
        sent = bytes.fromhex(NOBODY.replace(":", "")) + hardware(bed, "a") + v4_segment(session)
        with bed.socket("a", socket.AF_PACKET, socket.SOCK_RAW) as raw:
            raw.bind(("eth0", 0x0800))
            raw.send(sent)
        segment = out_of(frames, PAYLOAD)
        manifest = run.end()
    # 14 bytes of Ethernet, 20 of IPv4, 8 of UDP.
    assert len(datagram) == 14 + 20 + 8 + len(b"datagram")
    at = sent.index(MAGIC)
    assert segment == sent[:at] + b"\x01" * 28 + sent[at + 28 :]
    assert total(manifest, "taken_off") == 2
    assert any("packets left by a device that is no point" in line for line in run.said)


def test_no_device_is_guarded_where_capsules_may_leave(bed: Bed, tmp_path: Path) -> None:
    places = ("--netns", bed.name("a"), "--rate", "1", "--port", "7096")
    with guest_tap(bed, "h1", *GUEST):
        for option in ("--leave", "--match"):
            with Stamping(tmp_path / option, *places, option) as run:
                assert run.end()["guards"] == []


def test_segments_get_no_capsule_where_a_route_wraps_them(bed: Bed, tmp_path: Path) -> None:
    """Segment routing puts them into other packets before a device sees them; IPsec is decided at the same place."""
    ends = ("fd97::1", "fd97::2")
    for place, end in zip("ab", ends):
        bed.ip(place, "addr", "add", f"{end}/128", "dev", "lo", "nodad")
        for name in ("all", "eth0"):
            run(
                "ip",
                "netns",
                "exec",
                bed.name(place),
                "sysctl",
                "-qw",
                f"net.ipv6.conf.{name}.seg6_enabled=1",
            )
    wraps = ("encap", "seg6", "mode", "encap", "segs", V6[1], "src", ends[0], "dev", "eth0")
    try:
        bed.ip("a", "-6", "route", "add", ends[1], *wraps)
        bed.ip("b", "-6", "route", "add", ends[0], "via", V6[0])
        places = (
            "--netns",
            bed.name("a"),
            "--rate",
            "1",
            "--port",
            "7100",
            "--boundary",
            f"{bed.name('a')}:eth0",
        )
        with (
            Stamping(tmp_path / "out", *places) as stamping,
            tap_of(bed, "b") as tap,
            bed.socket("b", socket.AF_INET6, socket.SOCK_STREAM) as listener,
            bed.socket("a", socket.AF_INET6, socket.SOCK_STREAM) as client,
        ):
            listener.bind((ends[1], 7100))
            listener.listen()
            listener.settimeout(30)
            client.settimeout(30)
            client.bind((ends[0], 0))
            client.connect((ends[1], 7100))
            with listener.accept()[0] as server:
                assert exchange(client, server, b"wrapped" * 1000) == b"wrapped" * 1000
            frames = [frame for frame in waiting(tap) if b"wrapped" in frame]
            manifest = stamping.end()
    finally:
        bed.ip("a", "-6", "route", "flush", ends[1])
        bed.ip("b", "-6", "route", "flush", ends[0])
        for place, end in zip("ab", ends):
            bed.ip(place, "addr", "del", f"{end}/128", "dev", "lo")
    assert frames and not [frame for frame in frames if MAGIC in frame]
    assert total(manifest, "drawn") == total(manifest, "skip_tunnel") > 0


@pytest.mark.parametrize("point", [True, False], ids=["point", "guard"])
def test_capsules_are_taken_off_where_a_macvtap_hands_packets_to_a_guest(
    bed: Bed, tmp_path: Path, point: bool
) -> None:
    """At its ingress: a macvtap stands for the guest's side of the link, a tap for the host's."""
    places = ["--point", f"{bed.name('h1')}:m0", *(["--point", f"{bed.name('h1')}:t0"] if point else [])]
    with guest_macvtap(bed, NOBODY) as frames:
        bed.ip("h1", "addr", "add", "10.94.0.1/24", "dev", "m0")
        bed.ip("h1", "neigh", "replace", "10.94.0.2", "lladdr", NOBODY, "dev", "m0")
        with (
            Stamping(tmp_path / "out", *places, "--rate", "1", "--port", "7101") as stamping,
            bed.socket("h1", socket.AF_INET, socket.SOCK_DGRAM) as client,
        ):
            client.sendto(b"datagram", ("10.94.0.2", 7101))
            frame = out_of(frames, b"datagram")
            manifest = stamping.end()
    assert MAGIC not in frame
    assert total(manifest, "born") == total(manifest, "left" if point else "taken_off") == 1
