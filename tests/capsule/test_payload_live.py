# SPDX-License-Identifier: GPL-2.0-only
"""Traffic with capsules is unchanged: bytes, sizes, checksums; and every chosen packet is accounted for."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nsight_report import hops

from capsule.bed import MTU, Bed, exchange, run
from capsule.stamping import Stamping, first_sent, skipped, total

pytestmark = pytest.mark.live

FAMILIES = (socket.AF_INET, socket.AF_INET6)
IP = {socket.AF_INET: 20, socket.AF_INET6: 40}
CAPSULE = 28


def bounds(room: int, width: int) -> range:
    """Sizes around a critical one."""
    return range(room - width, room + width + 1)


@pytest.mark.parametrize("offloads", [True, False], ids=["offloads", "no-offloads"])
def test_payload_is_exact_at_every_size_around_the_mtu(
    bed: Bed, everywhere: list[str], tmp_path: Path, offloads: bool
) -> None:
    """MTU 1450: TCP takes IP + 20 + 12 (timestamps) + 28; a datagram with its capsule IP + 8 + 28."""
    bed.offloads(offloads)
    before = bed.errors()
    data = random.Random(7).randbytes(200_000)
    n_datagrams = 0
    with Stamping(tmp_path / "out", *everywhere, "--rate", "1", "--port", "7001") as run:
        for family in FAMILIES:
            client, server = bed.connection(family, 7001)
            mss = MTU - IP[family] - 20 - 12
            sizes = [
                1,
                2,
                3,
                77,
                *bounds(mss - CAPSULE, 2),
                *bounds(mss, 2),
                *bounds(2 * (mss - CAPSULE), 1),
                65_000,
                200_000,
            ]
            for size in sizes:
                assert exchange(client, server, data[:size]) == data[:size], size
            client.close()
            server.close()
            client, server = bed.datagrams(family, 7001)
            room = MTU - IP[family] - 8
            sizes = [0, 1, 2, 3, 4, 77, 78, *bounds(room - CAPSULE, 3), *bounds(room, 3), 4_000]
            for size in sizes:
                client.send(data[:size])
                assert server.recv(1 << 16) == data[:size], size
            n_datagrams += len(sizes)
            client.close()
            server.close()
        manifest = run.end()
    assert bed.errors() == before
    # Per family: 18 writes, each at least one segment, and 11 datagrams.
    assert total(manifest, "born") >= 2 * (18 + 11)
    assert total(manifest, "drawn") == total(manifest, "born") + skipped(manifest)
    assert total(manifest, "born") == total(manifest, "ended")
    # Of 21 sizes per family: 7 small ones, and the 4 around room - 28 that still fit.
    points = {(p["netns"], p["device"], p["direction"]): str(p["number"]) for p in manifest["points"]}
    udp = manifest["counted"]["counts"][points[bed.name("a"), "eth0", "out"]]
    # Later fragments have no ports, so a filter cannot match them: the first fragment stands for all.
    assert udp["drawn"] == n_datagrams
    assert udp["born"] == 2 * (7 + 4)
    assert udp["skip_mtu"] == 2 * (3 + 4)
    assert udp["skip_fragment"] == 2 * (3 + 1)


def test_a_receiver_without_program_gets_the_exact_payload(bed: Bed, tmp_path: Path) -> None:
    """The receiver's kernel cuts off the bytes after a datagram, and ignores an unknown option."""
    bed.offloads(True)
    before, data = bed.errors(), os.urandom(1400)
    with Stamping(
        tmp_path / "out", "--point", f"{bed.name('a')}:eth0", "--rate", "1", "--port", "7003"
    ) as run:
        for family in FAMILIES:
            client, server = bed.datagrams(family, 7003)
            for size in range(0, 300, 7):
                client.send(data[:size])
                assert server.recv(1 << 16) == data[:size]
            client, server = bed.connection(family, 7003)
            for size in range(1, 300, 7):
                assert exchange(client, server, data[:size]) == data[:size]
        manifest = run.end()
    assert bed.errors() == before
    # 43 datagrams and 43 writes, v4 and v6; nothing collects the capsules.
    assert total(manifest, "born") >= 2 * 43 + 2 * 43
    assert total(manifest, "ended") == total(manifest, "end_lost") == 0


def test_one_of_eight_is_chosen_and_the_rest_is_untouched(
    bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    """1/8 of 2000 packets is about 250, with a standard deviation of 15; ten standard deviations are 150."""
    bed.offloads(True)
    with Stamping(
        tmp_path / "out", *everywhere, "--rate", "1/8", "--protocol", "udp", "--port", "7004"
    ) as run:
        client, server = bed.datagrams(socket.AF_INET, 7004)
        for i in range(2000):
            client.send(b"%d" % i)
            assert server.recv(99) == b"%d" % i
        manifest = run.end()
    assert 100 < total(manifest, "drawn") < 400
    assert total(manifest, "drawn") == total(manifest, "born") == total(manifest, "ended")


def test_the_filter_chooses_and_can_be_changed_meanwhile(
    bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    """An open connection gets capsules once the filter matches it, and none when it no longer does."""
    bed.offloads(True)
    first, second = bed.connection(socket.AF_INET, 7005), bed.connection(socket.AF_INET, 7006)

    def tens(ends: tuple[socket.socket, socket.socket]) -> None:
        for _ in range(10):
            assert exchange(*ends, b"x" * 100) == b"x" * 100

    with Stamping(tmp_path / "out", *everywhere, "--rate", "1", "--port", "7005") as run:
        tens(first)
        tens(second)
        run.change("--port", "7006")
        tens(first)
        tens(second)
        tens(second)
        run.change("--rate", "0")
        tens(second)
        manifest = run.end()
    # 10 from the first port, then 20 from the second.
    assert first_sent(tmp_path / "out") == 10 + 20
    assert total(manifest, "born") == total(manifest, "ended")
    # Both ends of the first connection.
    assert manifest["counted"]["existing"] == 2


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_one_packet_at_a_time_is_the_first_when_it_is_due(
    kind: socket.SocketKind, bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    """Births are a period apart, and no packet was sent between the time when the next birth was due and that birth."""
    bed.offloads(True)
    ends = (
        bed.connection(socket.AF_INET, 7010)
        if kind == socket.SOCK_STREAM
        else bed.datagrams(socket.AF_INET, 7010)
    )
    begins, period = [], 20_000_000
    with Stamping(tmp_path / "out", *everywhere, "--every", "20ms", "--port", "7010") as run:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            begins.append(time.monotonic_ns())
            ends[0].send(b"x" * 100)
            assert len(ends[1].recv(100)) == 100
        begins.append(time.monotonic_ns())
        run.change("--every", "0")
        for _ in range(10):
            ends[0].send(b"x" * 100)
            assert len(ends[1].recv(100)) == 100
        manifest = run.end()
    born = np.sort(hops.load(tmp_path / "out").packets["born_ns"].to_numpy())
    early, late = born[:-10], born[-10:]
    assert total(manifest, "born") == total(manifest, "ended") == len(born)
    # The last send call that began before a birth sent that packet.
    call = np.searchsorted(begins, early) - 1
    begin, end = np.array(begins)[call], np.array(begins)[call + 1]
    assert len(early) > 1
    assert (end[1:] - begin[:-1] >= period).all()
    # The call before that came before the birth was due.
    assert (np.array(begins)[call[1:] - 1] - end[:-1] < period).all()
    assert late[0] > begins[-1]


def test_points_are_chosen_while_it_runs(bed: Bed, everywhere: list[str], tmp_path: Path) -> None:
    """A datagram's birth at a:eth0 and its end at b:eth0 are always there; of the six devices between, only the chosen ones are."""
    bed.offloads(True)
    client, server = bed.datagrams(socket.AF_INET, 7008)
    chosen = [word for place in ("h1:u0", "h2:u1") for word in ("--only", bed.name(place))]

    def ten() -> None:
        for _ in range(10):
            client.send(b"datagram")
            assert server.recv(99) == b"datagram"

    with Stamping(tmp_path / "out", *everywhere, "--rate", "1", "--port", "7008", *chosen) as stamping:
        ten()
        stamping.change("--only", "all")
        ten()
        stamping.change("--only", bed.name("h1:va"))
        ten()
        stamping.end()
    collection = hops.load(tmp_path / "out")
    assert collection.hops.groupby("packet").size().tolist() == [4] * 10 + [8] * 10 + [3] * 10


def test_traffic_is_exact_while_programs_come_and_go(bed: Bed, everywhere: list[str], tmp_path: Path) -> None:
    """A stream and datagrams, while nsight-capsule is started, changed, ended and killed."""
    bed.offloads(True)
    before, leave = bed.errors(), threading.Event()
    failures: list[str] = []

    def stream(family: int) -> None:
        client, server = bed.connection(family, 7007)
        numbers = random.Random(family)
        n = 0
        while not leave.is_set():
            data = numbers.randbytes(numbers.choice((1, 700, 1390, 3000, 50_000)))
            if exchange(client, server, data) != data:
                failures.append(f"stream {n}")
                return
            n += 1

    def datagrams(family: int) -> None:
        client, server = bed.datagrams(family, 7007)
        numbers = random.Random(family)
        while not leave.is_set():
            data = numbers.randbytes(numbers.randrange(1430))
            client.send(data)
            if server.recv(1 << 16) != data:
                failures.append(f"datagram of {len(data)} bytes")
                return
            leave.wait(0.0005)

    threads = [
        threading.Thread(target=work, args=(family,)) for work in (stream, datagrams) for family in FAMILIES
    ]
    for thread in threads:
        thread.start()
    try:
        for i in range(3):
            with Stamping(tmp_path / f"out{i}", *everywhere, "--rate", "1/2", "--port", "7007") as run:
                for rate in ("0", "1", "1/3"):
                    run.change("--rate", rate)
                if i == 1:
                    os.kill(run.child(), signal.SIGKILL)
                    assert run.finish() == 5
                else:
                    manifest = run.end()
                    assert total(manifest, "drawn") == total(manifest, "born") + skipped(manifest)
                    assert total(manifest, "ended") > 0
                    assert not total(manifest, "forged")
    finally:
        leave.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert bed.errors() == before


@pytest.mark.parametrize("offloads", [True, False], ids=["offloads", "no-offloads"])
@pytest.mark.parametrize("stripped", [True, False], ids=["stripped", "cut-off-by-the-kernel"])
def test_conntrack_and_address_translation_find_nothing_wrong(
    bed: Bed, everywhere: list[str], tmp_path: Path, offloads: bool, stripped: bool
) -> None:
    """conntrack checks a datagram's checksum over the whole packet, including the bytes after the datagram."""
    bed.offloads(offloads)
    name, before = bed.name("b"), bed.errors()
    rules = """add table inet t; add chain inet t c { type filter hook input priority 0; };
        add chain inet t n { type nat hook prerouting priority dstnat; }; add rule inet t n meta l4proto { tcp, udp } th dport 7041 redirect to :7042;
        add rule inet t c ct state invalid counter comment "invalid"; add rule inet t c th dport 7042 counter comment "all" """
    run_in(name, "nft", rules)
    try:
        with Stamping(
            tmp_path / "out", *everywhere, "--rate", "1", *([] if stripped else ["--keep"])
        ) as stamping:
            for family in FAMILIES:
                client, server = bed.datagrams(family, 7042)
                client.connect((*client.getpeername()[:1], 7041))
                for size in (0, 1, 50, 51):
                    client.send(b"x" * size)
                    assert server.recv(99) == b"x" * size
                client, server = bed.connection(family, 7042)
                assert exchange(client, server, b"y" * 50) == b"y" * 50
            manifest = stamping.end()
        counters = {
            c["comment"]: c["expr"][-1]["counter"]["packets"] for c in rules_of(name) if "comment" in c
        }
    finally:
        run_in(name, "nft", "flush ruleset")
    assert counters["invalid"] == 0
    assert counters["all"] >= 2 * (4 + 1)
    assert first_sent(tmp_path / "out") == 2 * (4 + 1)
    assert total(manifest, "born") == total(manifest, "ended")
    assert bed.errors() == before


def run_in(name: str, *words: str) -> str:
    return run("ip", "netns", "exec", name, *words)


def rules_of(name: str) -> list[dict[str, Any]]:
    listed = json.loads(run_in(name, "nft", "-j", "list", "ruleset"))["nftables"]
    return [entry["rule"] for entry in listed if "rule" in entry]
