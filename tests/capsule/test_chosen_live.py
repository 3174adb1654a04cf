# SPDX-License-Identifier: GPL-2.0-only
"""How packets are chosen: by time across all points, and by their fields."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from nsight_capsule import stamp
from nsight_report import hops
from nsight_report.hops import records
from nsight_report.losses import Ledger

from capsule.bed import V4, Bed, exchange, run
from capsule.stamping import Stamping, total
from capsule.test_removal_live import BPFTOOL, loaded

pytestmark = pytest.mark.live


def test_one_packet_at_a_time_is_one_of_all_sockets_and_devices(
    bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    """Segments begin at a socket; datagrams begin at two devices, one for each direction."""
    bed.offloads(True)
    begins, period = [], 20_000_000
    with Stamping(tmp_path / "out", *everywhere, "--every", "20ms", "--port", "7081") as stamping:
        client, server = bed.connection(socket.AF_INET, 7081)
        sender, receiver = bed.datagrams(socket.AF_INET, 7081)
        receiver.connect(bed.in_place("a", sender.getsockname))
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            for one, other in ((client, server), (sender, receiver), (receiver, sender)):
                begins.append(time.monotonic_ns())
                one.send(b"x" * 100)
                assert len(other.recv(100)) == 100
        begins.append(time.monotonic_ns())
        manifest = stamping.end()
    born = np.sort(hops.load(tmp_path / "out").packets["born_ns"].to_numpy())
    assert total(manifest, "born") == len(born) > 1
    # The last send call that began before a birth sent the chosen packet.
    call = np.searchsorted(begins, born) - 1
    begin, end = np.array(begins)[call], np.array(begins)[call + 1]
    assert (end[1:] - begin[:-1] >= period).all()


def test_short_datagrams_that_differ_in_their_last_byte_are_not_taken_for_each_other(
    bed: Bed, tmp_path: Path
) -> None:
    """IPv6 has no identification field, so only the bytes of the datagrams differ."""
    point = f"{bed.name('a')}:eth0"
    with Stamping(
        tmp_path / "out", "--point", point, "--rate", "1", "--protocol", "udp", "--port", "7082", "--match"
    ) as stamping:
        client, server = bed.datagrams(socket.AF_INET6, 7082)
        for length in range(1, 34):
            for last in (b"0", b"1"):
                client.send(b"x" * (length - 1) + last)
                assert server.recv(99)[-1:] == last
        stamping.end()
    found = records.read(tmp_path / "out/capsules", 3, Ledger("hops"))
    keys = np.ascontiguousarray(found["capsule"]).view(np.uint8).reshape(len(found), -1)[:, :8]
    different = [len(np.unique(keys[found["length"] == length], axis=0)) for length in range(1, 34)]
    # Only the first 32 bytes count.
    assert different == [2] * 32 + [1]


def given(directory: Path, pid: int, ingress: int) -> int:
    """Give a datagram with a socket, which came in by that device, to all programs of points; how many have drawn it since the start."""
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + 8 + 4, 7, 0x4000, 64, 17, 0) + b"".join(
        map(socket.inet_aton, V4)
    )
    frame = bytes(12) + b"\x08\x00" + head + struct.pack(">HHHH", 9, 7087, 8 + 4, 0) + b"data"
    (directory / "frame").write_bytes(frame)
    # struct __sk_buff: ingress_ifindex is its tenth word.
    (directory / "context").write_bytes(bytes(36) + struct.pack("<I", ingress) + bytes(152))
    for program in sorted(loaded(pid)):
        if json.loads(run(BPFTOOL, "-j", "prog", "show", "id", str(program))).get("name") == "at_point":
            files = ("data_in", str(directory / "frame"), "ctx_in", str(directory / "context"))
            run(BPFTOOL, "prog", "run", "id", str(program), *files)
    counts = stamp.ask(directory / "out", "counts")
    return sum(of.get("drawn", 0) for of in counts.values())


def test_a_datagram_that_came_in_by_a_device_is_not_drawn_again(bed: Bed, tmp_path: Path) -> None:
    """Linux 6.12 keeps the sender's socket over veths and bridges, so that each device on the way would draw once more."""
    with Stamping(
        tmp_path / "out", "--point", f"{bed.name('h1')}:va", "--rate", "1", "--port", "7087"
    ) as stamping:
        assert given(tmp_path, stamping.child(), 0) == 1
        assert given(tmp_path, stamping.child(), 7) == 1
        stamping.end()


HEAD = {socket.AF_INET: 20 + 8, socket.AF_INET6: 40 + 8}


def sizes_born(bed: Bed, path: Path, family: socket.AddressFamily, port: int, limit: int) -> list[int]:
    """Send datagrams with lengths around the one that, with its capsule, fills a packet of ``limit`` bytes; the lengths, minus that one,
    of the datagrams that got a capsule."""
    full = limit - HEAD[family] - 28
    with Stamping(
        path, "--netns", bed.name("a"), "--rate", "1", "--protocol", "udp", "--port", str(port), "--leave",
        "--boundary", f"{bed.name('a')}:eth0",
    ) as stamping:  # fmt: skip
        client, server = bed.datagrams(family, port)
        if port == 7084:
            too_big(bed, client, limit)
        for size in range(full - 2, full + 3):
            client.send(b"m" * size)
            assert len(server.recv(2000)) == size
        manifest = stamping.end()
    assert total(manifest, "skip_mtu") == 2
    return [int(n) - full for n in hops.load(path).packets["length"]]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_datagram_with_its_capsule_fits_the_route(
    bed: Bed, tmp_path: Path, family: socket.AddressFamily
) -> None:
    """The route's MTU stands for a link beyond this kernel that carries no larger packets."""
    bed.offloads(True)
    address = ("10.98.0.2/32", "fd98::2/128")[family == socket.AF_INET6]
    bed.ip("a", "route", "add", address, "dev", "eth0", "mtu", "1300")
    try:
        assert sizes_born(bed, tmp_path / "out", family, 7083, 1300) == [-2, -1, 0]
    finally:
        bed.ip("a", "route", "del", address, "dev", "eth0", "mtu", "1300")


def too_big(bed: Bed, client: socket.socket, mtu: int) -> None:
    """Send a router's ICMP message: a datagram of this socket is larger than this MTU. Then the kernel knows the path MTU."""
    port = client.getsockname()[1]
    inside = struct.pack(">BBHHHBBH", 0x45, 0, 1400, 1, 0x4000, 64, 17, 0) + b"".join(
        map(socket.inet_aton, V4)
    )
    inside += struct.pack(">HHHH", port, 7084, 1380, 0)
    head = struct.pack(">BBHHH", 3, 4, 0, 0, mtu)
    words = struct.unpack(f">{len(head + inside) // 2}H", head + inside)
    head = head[:2] + struct.pack(">H", 0xFFFF - sum(words) % 0xFFFF) + head[4:]
    with bed.socket("b", socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        raw.sendto(head + inside, (V4[0], 0))
    while not client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        pass


def test_a_datagram_with_its_capsule_fits_the_path(bed: Bed, tmp_path: Path) -> None:
    bed.offloads(True)
    try:
        assert sizes_born(bed, tmp_path / "out", socket.AF_INET, 7084, 1300) == [-2, -1, 0]
    finally:
        bed.ip("a", "route", "flush", "cache")


@pytest.mark.parametrize("point", [True, False], ids=["point", "no-point"])
@pytest.mark.parametrize("late", [False, True], ids=["there", "late"])
def test_a_datagram_with_its_capsule_fits_devices_that_are_no_points(
    bed: Bed, tmp_path: Path, point: bool, late: bool
) -> None:
    """A router's link beside a's: the sender only learns that it is narrower when a datagram was lost. Whether or not the router has a
    point, and whether or not that link was there at the start.
    """
    name = bed.name("r")
    run("ip", "netns", "add", name)
    try:
        for place, device, peer, mtu in (("a", "ra", "r0", 1500), ("b", "rb", "r1", 1300)):
            bed.ip(
                place,
                "link",
                "add",
                device,
                "mtu",
                str(mtu),
                "type",
                "veth",
                "peer",
                "name",
                peer,
                "netns",
                name,
            )
            if not (late and peer == "r1"):
                bed.ip("r", "link", "set", peer, "mtu", str(mtu), "up")
            bed.ip(place, "link", "set", device, "up")
        for place, device, address in (
            ("a", "ra", "10.93.1.1"), ("r", "r0", "10.93.1.2"), ("r", "r1", "10.93.2.2"), ("b", "rb", "10.93.2.1"),
        ):  # fmt: skip
            bed.ip(place, "addr", "add", f"{address}/24", "dev", device)
        run("ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        bed.ip("a", "route", "add", "10.93.2.0/24", "via", "10.93.1.2")
        bed.ip("b", "route", "add", "10.93.1.0/24", "via", "10.93.2.2")
        points = ["--point", f"{bed.name('a')}:ra", *(["--point", f"{name}:r0"] if point else [])]
        with (
            Stamping(tmp_path / "out", *points, "--rate", "1", "--port", "7085") as stamping,
            bed.socket("b", socket.AF_INET, socket.SOCK_DGRAM) as server,
            bed.socket("a", socket.AF_INET, socket.SOCK_DGRAM) as client,
        ):
            if late:
                bed.ip("r", "link", "set", "r1", "mtu", "1300", "up")
                bed.ip("a", "route", "replace", "10.93.2.0/24", "via", "10.93.1.2")
                while stamping.manifest()["settings"]["most_bytes"] != 1300:
                    time.sleep(0.01)
            server.bind(("10.93.2.1", 7085))
            server.settimeout(5)
            for size in (1300 - 28 - 28, 1300 - 28 - 27, 1300 - 28):
                client.sendto(b"n" * size, ("10.93.2.1", 7085))
                assert len(server.recv(2000)) == size
            manifest = stamping.end()
    finally:
        for words in (
            ("netns", "del", name),
            ("-n", bed.name("a"), "link", "del", "ra"),
            ("-n", bed.name("b"), "link", "del", "rb"),
        ):
            subprocess.run(["ip", *words], capture_output=True, check=False)
    assert (total(manifest, "born"), total(manifest, "skip_mtu")) == (1, 2)


def test_segments_that_are_too_long_for_the_length_in_their_header_have_their_length(
    bed: Bed, tmp_path: Path
) -> None:
    """BIG TCP: eth0 takes segments of up to 180 kB; in their IPv6 header the length is 0."""
    bed.offloads(True)
    data = bytes(range(250)) * 8000
    bed.ip("a", "link", "set", "eth0", "gso_max_size", "180000")
    try:
        place = ("--point", f"{bed.name('a')}:eth0", "--match", "--port", "7086")
        with Stamping(tmp_path / "out", *place, "--rate", "1") as stamping:
            client, server = bed.connection(socket.AF_INET6, 7086)
            with client, server:
                assert exchange(client, server, data) == data
            stamping.end()
    finally:
        bed.ip("a", "link", "set", "eth0", "gso_max_size", "65536")
    found = records.read(tmp_path / "out/capsules", 3, Ledger("hops"))
    sent = np.unique(
        found[found["dport"] == 7086][["seq", "length"]]
    )  # a segment that was sent again counts once
    assert sent["length"].max() > 65536
    assert sent["length"].sum() >= len(data)
