# SPDX-License-Identifier: GPL-2.0-only
"""Other programs that take packets past parts of the stack: XDP, tc redirection, nft's flow table, IPVS. The hops are those of the points
that a packet passed; payload intact, and every chosen packet accounted for.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from machinery.harness import capabilities

from capsule.bed import Bed, run
from capsule.stamping import Stamping, skipped, total
from capsule.test_others_live import PORT, accounted, datagrams, segments
from capsule.test_removal_live import BPFTOOL
from conftest import skip_or_fail

pytestmark = pytest.mark.live

HERE = Path(__file__).parent


@contextmanager
def programs(tmp_path: Path) -> Iterator[Path]:
    """A directory with the other programs, pinned."""
    if why := capabilities.programs("clang", "bpftool", "tc")():
        skip_or_fail("bpf", why)
    made, pins = tmp_path / "others.o", tmp_path / "bpf"
    words = ("clang", "-O2", "-g", "-target", "bpf", f"-idirafter/usr/include/{os.uname().machine}-linux-gnu")
    run(*words, "-c", str(HERE / "others.bpf.c"), "-o", str(made))
    pins.mkdir()
    run("mount", "-t", "bpf", "bpf", str(pins))
    try:
        # Not into pins itself: bpftool would mount over the directory above it.
        run(BPFTOOL, "prog", "loadall", str(made), str(pins / "all"), "pinmaps", str(pins / "all"))
        yield pins
    finally:
        run("umount", str(pins))


def index(bed: Bed, place: str, device: str) -> int:
    return int(bed.ip(place, "-o", "link", "show", device).partition(":")[0])


@pytest.mark.parametrize("mode", ["xdpgeneric", "xdpdrv"])
def test_packets_pass_xdp_programs(bed: Bed, everywhere: list[str], tmp_path: Path, mode: str) -> None:
    """At both ends of the receiver's link; a program in the driver of a veth turns large segments into pages of their own."""
    bed.offloads(True)
    before = bed.errors()
    places = (("b", "eth0"), ("h1", "va"))
    with programs(tmp_path) as pins:
        for place, name in places:
            bed.ip(place, "link", "set", "dev", name, mode, "pinned", str(pins / "all/pass"))
        try:
            with Stamping(tmp_path / "out", *everywhere, "--rate", "1", "--port", str(PORT)) as stamping:
                client, server = bed.connection(socket.AF_INET, PORT)
                with client, server:
                    segments(client, server)
                datagrams(bed)
                manifest = stamping.end()
        finally:
            for place, name in places:
                bed.ip(place, "link", "set", "dev", name, mode, "off")
    assert bed.errors() == before
    accounted(manifest, 20)
    assert total(manifest, "ended") == total(manifest, "born") > 20


@contextmanager
def redirected(bed: Bed, pins: Path, how: str) -> Iterator[None]:
    """Containers c and d on a host h, whose veths hand packets to each other by redirection."""
    spaces = {place: bed.name(place) for place in "cdh"}
    try:
        for space in spaces.values():
            run("ip", "netns", "add", space)
        for place, n in (("c", 1), ("d", 2)):
            bed._veth(place, "eth0", "h", f"l{place}")
            bed.ip("h", "link", "set", f"l{place}", "up")
            bed.ip(place, "addr", "add", f"10.95.0.{n}/24", "dev", "eth0")
            bed.ip(place, "link", "set", "eth0", "up")
        # Frames go by redirection alone, with the other's hardware address.
        for place, other, n in (("c", "d", 2), ("d", "c", 1)):
            there = bed.ip(other, "-o", "link", "show", "eth0").split("link/ether ")[1].split()[0]
            bed.ip(place, "neigh", "replace", f"10.95.0.{n}", "lladdr", there, "dev", "eth0")
        for place, other in (("c", "d"), ("d", "c")):
            tc = ("tc", "-n", spaces["h"])
            dev = ("dev", f"l{place}")
            run(*tc, "qdisc", "add", *dev, "clsact")
            if how == "mirred":
                words = ("matchall", "action", "mirred", "egress", "redirect", "dev", f"l{other}")
                done = subprocess.run(
                    [*tc, "filter", "add", *dev, "ingress", *words],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode:
                    skip_or_fail("stock-kernel", f"tc mirred: {done.stderr.strip()}")
                continue
            # One map for each direction: programs are loaded twice.
            directory = pins / place
            directory.mkdir()
            run(
                BPFTOOL,
                "prog",
                "loadall",
                str(pins.parent / "others.o"),
                str(directory),
                "pinmaps",
                str(directory),
            )
            to = struct.pack("<I", index(bed, "h", f"l{other}"))
            value = [f"0x{byte:02x}" for byte in to]
            run(
                BPFTOOL,
                "map",
                "update",
                "pinned",
                str(directory / "to"),
                "key",
                "0",
                "0",
                "0",
                "0",
                "value",
                *value,
            )
            name = {"peer": "to_peer", "egress": "to_egress"}[how]
            run(*tc, "filter", "add", *dev, "ingress", "bpf", "da", "pinned", str(directory / name))
        yield
    finally:
        for space in spaces.values():
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


@pytest.mark.parametrize("how", ["mirred", "egress", "peer"])
def test_packets_that_others_redirect_have_their_hops(bed: Bed, tmp_path: Path, how: str) -> None:
    """Other tc programs run after the points: tc mirred, bpf_redirect, and bpf_redirect_peer, which no egress point sees."""
    with programs(tmp_path) as pins, redirected(bed, pins, how):
        points = [word for place in "chd" for word in ("--netns", bed.name(place))]
        with (
            Stamping(tmp_path / "out", *points, "--rate", "1", "--port", str(PORT)) as stamping,
            bed.socket("d", socket.AF_INET, socket.SOCK_STREAM) as listener,
            bed.socket("c", socket.AF_INET, socket.SOCK_STREAM) as client,
            bed.socket("d", socket.AF_INET, socket.SOCK_DGRAM) as receiver,
            bed.socket("c", socket.AF_INET, socket.SOCK_DGRAM) as sender,
        ):
            for server in (listener, receiver):
                server.bind(("10.95.0.2", PORT))
                server.settimeout(30)
            listener.listen()
            client.settimeout(30)
            client.connect(("10.95.0.2", PORT))
            connection, _ = listener.accept()
            connection.settimeout(30)
            with connection:
                segments(client, connection)
            for size in (0, 1, 51, 1000, 1443, 1444, 1445, 1472):
                sender.sendto(b"r" * size, ("10.95.0.2", PORT))
                assert receiver.recv(1 << 16) == b"r" * size
            manifest = stamping.end()
    accounted(manifest, 20)
    assert total(manifest, "ended") == total(manifest, "born") > 20
    names = {str(p["number"]): (p["device"], p["direction"]) for p in manifest["points"]}
    stamped = {
        names[number]
        for number, of in manifest["counted"]["counts"].items()
        if of.get("stamped") or of.get("dumped")
    }
    assert ("lc", "in") in stamped
    assert (("ld", "out") in stamped) == (how != "peer")


@contextmanager
def router(bed: Bed) -> Iterator[str]:
    """a and b reach each other through the namespace r as well: 10.94.1.0/24 and 10.94.2.0/24."""
    name = bed.name("r")
    run("ip", "netns", "add", name)
    try:
        for place, n in (("a", 1), ("b", 2)):
            bed._veth(place, "eth2", "r", f"r{n}")
            bed.ip(place, "addr", "add", f"10.94.{n}.1/24", "dev", "eth2")
            bed.ip("r", "addr", "add", f"10.94.{n}.2/24", "dev", f"r{n}")
            bed.ip("r", "link", "set", f"r{n}", "up")
            bed.ip(place, "link", "set", "eth2", "up")
            bed.ip(place, "route", "add", "10.94.0.0/16", "via", f"10.94.{n}.2")
        run("ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        yield name
    finally:
        for place in "ab":
            with contextlib.suppress(AssertionError):
                bed.ip(place, "link", "del", "eth2")
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def through_router(bed: Bed, tmp_path: Path, to: str, count: int = 12) -> dict[str, Any]:
    """Segments and datagrams from a to b's server, by that address."""
    points = [word for place in "arb" for word in ("--netns", bed.name(place))]
    with (
        Stamping(tmp_path / "out", *points, "--rate", "1", "--port", str(PORT)) as stamping,
        bed.socket("b", socket.AF_INET, socket.SOCK_STREAM) as listener,
        bed.socket("b", socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        bed.socket("a", socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        for server in (listener, receiver):
            server.bind(("10.94.2.1", PORT))
            server.settimeout(30)
        listener.listen()
        for _ in range(2):
            with bed.socket("a", socket.AF_INET, socket.SOCK_STREAM) as client:
                client.settimeout(30)
                client.connect((to, PORT))
                connection, _ = listener.accept()
                connection.settimeout(30)
                with connection:
                    segments(client, connection)
        for i in range(count):
            size = (0, 1, 51, 1000, 1443, 1444, 1445, 1472)[i % 8]
            sender.sendto(b"f" * size, (to, PORT))
            assert receiver.recv(1 << 16) == b"f" * size
        return stamping.end()


def test_packets_of_a_flow_table_fast_path_have_their_hops(bed: Bed, tmp_path: Path) -> None:
    """nft hands established flows from ingress to egress; that comes after the ingress point."""
    rules = "table inet t { flowtable f { hook ingress priority 0; devices = { r1, r2 }; }\nchain c { type filter hook forward priority 0; meta l4proto { tcp, udp } flow add @f; counter; }\n}"
    with router(bed) as name:
        before = bed.errors()
        done = subprocess.run(
            ["ip", "netns", "exec", name, "nft", "-f", "-"],
            input=rules,
            text=True,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            skip_or_fail("stock-kernel", f"nft flowtable: {done.stderr.strip()}")
        manifest = through_router(bed, tmp_path, "10.94.2.1")
        listed = run("ip", "netns", "exec", name, "cat", "/proc/net/nf_conntrack")
        assert bed.errors() == before
    assert "OFFLOAD" in listed
    accounted(manifest, 30)
    assert total(manifest, "ended") == total(manifest, "born")


def test_ipvs_forwards_what_it_balances(bed: Bed, tmp_path: Path) -> None:
    """A virtual service of the router, masquerading: its address is the router's, so packets end there. Segments go on to b, where they are not counted as arrived again."""
    if why := capabilities.programs("ipvsadm")():
        skip_or_fail("testbed", why)
    with router(bed) as name:
        before = bed.errors()
        for proto in ("-t", "-u"):
            words = ["ip", "netns", "exec", name, "ipvsadm"]
            for more in (
                ["-A", proto, f"10.94.1.2:{PORT}", "-s", "rr"],
                ["-a", proto, f"10.94.1.2:{PORT}", "-r", f"10.94.2.1:{PORT}", "-m"],
            ):
                done = subprocess.run([*words, *more], text=True, capture_output=True, check=False)
                if done.returncode:
                    skip_or_fail("stock-kernel", f"ipvsadm: {done.stderr.strip()}")
        manifest = through_router(bed, tmp_path, "10.94.1.2")
        assert bed.errors() == before
    assert total(manifest, "drawn") == total(manifest, "born") + skipped(manifest) >= 30
    assert total(manifest, "ended") == total(manifest, "born")
    assert total(manifest, "ended_again") >= 20
    for trouble in ("forged", "foreign", "not_written", "not_stripped"):
        assert not total(manifest, trouble), trouble
