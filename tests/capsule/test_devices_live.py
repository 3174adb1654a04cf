# SPDX-License-Identifier: GPL-2.0-only
"""Devices and filters that the other files do not cover: macvlan, senders by cgroup, large segments that are split."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from nsight_capsule import settings
from nsight_record.errors import RecordError
from nsight_report import hops

from capsule.bed import V4, Bed, exchange, run
from capsule.stamping import Stamping, first_sent, total
from conftest import skip_or_fail

pytestmark = pytest.mark.live


@contextmanager
def macvlan(bed: Bed) -> Iterator[tuple[str, str]]:
    """A macvlan on eth0 of each container; their addresses."""
    addresses = ("10.97.0.1", "10.97.0.2")
    try:
        for place, address in zip(("a", "b"), addresses):
            bed.ip(place, "link", "add", "link", "eth0", "name", "up0", "type", "macvlan", "mode", "bridge")
            bed.ip(place, "addr", "add", f"{address}/24", "dev", "up0")
            bed.ip(place, "link", "set", "up0", "up")
        yield addresses
    finally:
        for place in ("a", "b"):
            subprocess.run(
                ["ip", "-n", bed.name(place), "link", "del", "up0"], capture_output=True, check=False
            )


def test_packets_of_a_macvlan_have_every_hop(bed: Bed, everywhere: list[str], tmp_path: Path) -> None:
    """up0, eth0, the six devices between, and the same at the other end: 10 points per datagram, 11 with the sender's socket."""
    bed.offloads(True)
    before = bed.errors()
    with macvlan(bed) as (_, there):
        with Stamping(tmp_path / "out", *everywhere, "--rate", "1", "--port", "7051") as stamping:
            with (
                bed.socket("b", socket.AF_INET, socket.SOCK_DGRAM) as server,
                bed.socket("a", socket.AF_INET, socket.SOCK_DGRAM) as client,
            ):
                server.bind((there, 7051))
                server.settimeout(30)
                for size in (10, 11, 1000):
                    client.sendto(b"d" * size, (there, 7051))
                    assert server.recv(2000) == b"d" * size
            with (
                bed.socket("b", socket.AF_INET, socket.SOCK_STREAM) as listener,
                bed.socket("a", socket.AF_INET, socket.SOCK_STREAM) as client,
            ):
                listener.bind((there, 7051))
                listener.listen()
                listener.settimeout(30)
                client.settimeout(30)
                client.connect((there, 7051))
                server, _ = listener.accept()
                assert exchange(client, server, b"s" * 100) == b"s" * 100
                server.close()
            manifest = stamping.end()
    assert first_sent(tmp_path / "out") == 4
    assert total(manifest, "born") == total(manifest, "ended")
    collection = hops.load(tmp_path / "out")
    collection = replace(
        collection, hops=collection.hops[~collection.packets["again"][collection.hops["packet"]].to_numpy()]
    )
    # Ingress at b's eth0 comes before its upper device gets the packet: both see it, and the address is the one of up0.
    counts = collection.hops.groupby("packet").size()
    assert sorted(counts) in ([9, 9, 9, 10], [10, 10, 10, 11])
    assert bed.errors() == before


def _known(bed: Bed, place: str, other: str, address: str) -> None:
    """A fixed neighbour entry of up0: else eth0 may answer for the address, and the other up0 gets nothing."""
    hardware = bed.ip(other, "-o", "link", "show", "up0").split("link/ether ")[1].split()[0]
    bed.ip(place, "neigh", "replace", address, "lladdr", hardware, "dev", "up0")


def test_a_segment_that_a_macvlan_takes_arrives_once(bed: Bed, tmp_path: Path) -> None:
    """It has the address of its namespace at eth0 already, and once more at up0: two hops, one arrival."""
    bed.offloads(True)
    points = [word for place in "ab" for word in ("--netns", bed.name(place))]
    with macvlan(bed) as (here, there):
        _known(bed, "a", "b", there)
        _known(bed, "b", "a", here)
        with Stamping(tmp_path / "out", *points, "--rate", "1", "--port", "7058") as stamping:
            with (
                bed.socket("b", socket.AF_INET, socket.SOCK_STREAM) as listener,
                bed.socket("a", socket.AF_INET, socket.SOCK_STREAM) as client,
            ):
                listener.bind((there, 7058))
                listener.listen()
                listener.settimeout(30)
                client.settimeout(30)
                client.connect((there, 7058))
                server, _ = listener.accept()
                for size in (1, 100, 1000):
                    assert exchange(client, server, b"s" * size) == b"s" * size
                server.close()
            manifest = stamping.end()
    born = total(manifest, "born")
    assert born == total(manifest, "ended") == total(manifest, "ended_again") >= 3
    made = hops.load(tmp_path / "out")
    assert len(made.packets) == born
    labels = [f"{bed.name(place)}:{point}" for place, point in (("a", "up0 out"), ("a", "eth0 out"), ("b", "eth0 in"), ("b", "up0 in"))]  # fmt: skip
    for _, ways in made.hops.groupby("packet"):
        assert ways["point"].tolist() == ["socket", *labels]


def test_only_senders_of_the_cgroup_are_chosen(bed: Bed, everywhere: list[str], tmp_path: Path) -> None:
    """One process in the cgroup, and this process outside it, send 5 datagrams and 5 segments each."""
    bed.offloads(True)
    try:
        group = settings.cgroup_root() / f"nsight-cap-{os.getpid()}"
    except RecordError as error:
        skip_or_fail("bpf", str(error))
    group.mkdir()
    try:
        program = (
            "import socket\nu = socket.socket(type=socket.SOCK_DGRAM)\n"
            f"for i in range(5): u.sendto(b'in', ('{V4[1]}', 7052))\n"
            f"t = socket.create_connection(('{V4[1]}', 7053))\nt.setsockopt(6, 1, 1)\n"
            "for i in range(5): t.send(b'in'); t.recv(9)\n"
        )
        with Stamping(tmp_path / "out", *everywhere, "--rate", "1", "--cgroup", str(group)) as stamping:
            client, server = bed.datagrams(socket.AF_INET, 7052)
            outside, inside = bed.connection(socket.AF_INET, 7054)
            with bed.socket("b", socket.AF_INET, socket.SOCK_STREAM) as listener:
                listener.bind((V4[1], 7053))
                listener.listen()
                listener.settimeout(30)
                # Not ip netns exec, which mounts another /sys, without cgroups.
                inside_a = f"--net=/run/netns/{bed.name('a')}"
                words = [
                    "nsenter",
                    inside_a,
                    "sh",
                    "-c",
                    'echo $$ > "$1"/cgroup.procs && exec "$2" -c "$3"',
                    "sh",
                ]
                child = subprocess.Popen([*words, str(group), sys.executable, program])
                peer, _ = listener.accept()
                for _ in range(5):
                    assert peer.recv(9) == b"in"
                    peer.send(b"out")
                assert child.wait(30) == 0
            for _ in range(5):
                client.send(b"out")
                assert exchange(outside, inside, b"out") == b"out"
            assert sorted(server.recv(9) for _ in range(10)) == [b"in"] * 5 + [b"out"] * 5
            manifest = stamping.end()
    finally:
        group.rmdir()
    assert first_sent(tmp_path / "out") == 5 + 5
    assert total(manifest, "born") == total(manifest, "ended")


def test_of_a_segment_that_is_cut_on_its_way_the_first_part_counts(
    bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    """tbf splits segments larger than its bucket: each part has the option, and one end is counted for each birth."""
    bed.offloads(True)
    run(
        "tc",
        "-n",
        bed.name("h1"),
        "qdisc",
        "add",
        "dev",
        "u0",
        "root",
        "tbf",
        "rate",
        "400mbit",
        "burst",
        "5000",
        "limit",
        "3000000",
    )
    try:
        with Stamping(tmp_path / "out", *everywhere, "--rate", "1", "--port", "7055") as stamping:
            client, server = bed.connection(socket.AF_INET, 7055)
            data = os.urandom(300_000)
            assert exchange(client, server, data) == data
            manifest = stamping.end()
    finally:
        run("tc", "-n", bed.name("h1"), "qdisc", "del", "dev", "u0", "root")
    assert total(manifest, "copies") > 0
    assert total(manifest, "ended") == total(manifest, "born") > 0
    assert total(manifest, "forged") == 0
