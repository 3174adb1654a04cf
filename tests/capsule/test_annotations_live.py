# SPDX-License-Identifier: GPL-2.0-only
"""Annotations: which classes of points stamp a packet is chosen for each packet, by rules that change while traffic flows."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from nsight_report import hops

from capsule.bed import Bed, exchange
from capsule.stamping import Stamping, total

pytestmark = pytest.mark.live

#: Points of the network on the way from a to b, in order, and the class of each.
WAY = (
    ("a:eth0 out", "veth:out"), ("h1:va in", "veth:in"), ("h1:vx0 out", "tunnel:out"), ("h1:u0 out", "veth:out"),
    ("h2:u1 in", "veth:in"), ("h2:vx1 in", "tunnel:in"), ("h2:vb out", "veth:out"), ("b:eth0 in", "veth:in"),
)  # fmt: skip


def way(at: str, proto: int) -> list[str]:
    """The hops of a packet with that annotation: its birth, points of these classes, and its end."""
    wanted = {part.strip() for part in at.split(",")}
    born = [WAY[0][0]] if proto == 17 else ["socket"]
    passed = WAY[1 if proto == 17 else 0 : -1]
    return [
        *born,
        *(name for name, of in passed if at == "all" or of in wanted or of.partition(":")[0] in wanted),
        WAY[-1][0],
    ]


def ways(found: hops.Collection, bed: Bed, port: int) -> pd.DataFrame:
    """Packets to b's port, in the order of birth, with their points (``way``); the namespaces' prefix is left out."""
    packets = found.packets[found.packets["dport"] == port]
    names = found.hops["point"].astype(str).str.replace(f"{bed.prefix}-", "", regex=False)
    by = names.groupby(found.hops["packet"]).agg(list)
    return packets.assign(way=by.reindex(packets["packet"]).to_numpy())


def at(*rules: str) -> list[str]:
    return [word for rule in rules for word in ("--at", rule)]


def talk(bed: Bed, family: socket.AddressFamily, port: int, n: int = 20) -> None:
    """n segments and n datagrams from a to b, each the same when it arrives."""
    client, server = bed.connection(family, port)
    sender, receiver = bed.datagrams(family, port)
    with client, server, sender, receiver:
        for i in range(n):
            data = bytes([i]) * (100 + i)
            assert exchange(client, server, data) == data
            sender.send(data)
            assert receiver.recv(1 << 16) == data


def check(rows: pd.DataFrame, wanted: str, protocols: Sequence[int] = (6, 17)) -> None:
    """All these packets have that annotation, and were stamped where it says."""
    assert set(rows["at"].astype(str)) == {wanted}
    for proto in protocols:
        of = rows[rows["proto"] == proto]
        assert len(of) >= 20
        assert all(found == way(wanted, proto) for found in of["way"]), (wanted, proto)


def test_the_first_rule_that_fits_says_which_points_stamp_a_packet(
    bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    bed.offloads(True)
    before = bed.errors()
    rules = at(
        "tunnel@port=7131",
        "none@port=7132,protocol=udp",
        "veth:out@port=7132",
        "veth:in,tunnel:out@address=fd98::/16",
    )
    with Stamping(tmp_path / "out", *everywhere, "--rate", "1", *rules) as run:
        for family, port in (
            (socket.AF_INET, 7131),
            (socket.AF_INET, 7132),
            (socket.AF_INET6, 7133),
            (socket.AF_INET, 7133),
        ):
            talk(bed, family, port)
        manifest = run.end()
    assert bed.errors() == before
    assert manifest["settings"]["at"] == rules[1::2]
    found = hops.load(tmp_path / "out")
    assert not found.losses.num_rows
    check(ways(found, bed, 7131), "tunnel")
    rows = ways(found, bed, 7132)
    check(rows[rows["proto"] == 17], "none", [17])
    check(rows[rows["proto"] == 6], "veth:out", [6])
    rows = ways(found, bed, 7133)
    v6 = rows["daddr"].astype(str).str.startswith("fd98")
    check(rows[v6], "veth:in, tunnel:out")
    check(rows[~v6], "all")
    assert total(manifest, "born") == total(manifest, "ended")
    assert total(manifest, "forged") == 0


def test_rules_change_while_traffic_flows(bed: Bed, everywhere: list[str], tmp_path: Path) -> None:
    """No packet is lost or half of one rule and half of the other: each has exactly the points of its annotation."""
    bed.offloads(True)
    before = bed.errors()
    steps, ended, wrong = ("none", "tunnel", "veth:out, tunnel:in", "all"), threading.Event(), []
    client, server = bed.connection(socket.AF_INET6, 7134)
    sender, receiver = bed.datagrams(socket.AF_INET, 7134)

    def traffic() -> None:
        n = 0
        while not ended.is_set():
            n += 1
            data = n.to_bytes(4, "big") * 30
            client.sendall(data)
            sender.send(data)
            got = [server.recv(len(data), socket.MSG_WAITALL), receiver.recv(1 << 16)]
            wrong.extend(part for part in got if part != data)

    with (
        client,
        server,
        sender,
        receiver,
        Stamping(tmp_path / "out", *everywhere, "--rate", "1", "--port", "7134") as run,
    ):
        thread = threading.Thread(target=traffic)
        thread.start()
        try:
            for step in steps:
                counted = len(run.manifest()["points"])
                run.change("--at", step.replace(" ", ""))
                assert counted == 17
        finally:
            ended.set()
            thread.join()
        manifest = run.end()
    assert not wrong
    assert bed.errors() == before
    found = hops.load(tmp_path / "out")
    assert not found.losses.num_rows
    rows = ways(found, bed, 7134)
    assert total(manifest, "born") == total(manifest, "ended")
    for annotation, proto, found_way in zip(rows["at"].astype(str), rows["proto"], rows["way"]):
        assert found_way == way(annotation, proto)
    for proto in (6, 17):
        of = rows.loc[rows["proto"] == proto, "at"].astype(str)
        changes = of[of != of.shift()].tolist()
        assert changes == ["all", *steps]


def test_an_annotation_goes_with_the_packet_into_the_next_kernel(
    bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    """Its bits mean kinds of devices, not the numbers that points have in one kernel. u0 and u1 stand for two hosts' NICs."""
    bed.offloads(True)
    ends = [word for place in ("h1:u0", "h2:u1") for word in ("--boundary", bed.name(place))]
    with Stamping(
        tmp_path / "out", *everywhere, *ends, "--leave", "--rate", "1", "--port", "7135", *at("tunnel:in")
    ) as run:
        talk(bed, socket.AF_INET, 7135)
        manifest = run.end()
    assert total(manifest, "came") == total(manifest, "left") == total(manifest, "ended") > 0
    found = hops.load(tmp_path / "out")
    rows = ways(found, bed, 7135)
    assert set(rows["at"].astype(str)) == {"tunnel:in"}
    second = rows[rows["origin"] >= 0]
    assert len(second) >= 40
    # Where it comes into the kernel, and where that can be compared with when it left the other one, it is always stamped.
    assert all(points == ["h2:u1 in", "h2:vx1 in", "b:eth0 in"] for points in second["way"])


def test_the_read_only_mode_records_packets_at_these_points_only(
    bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    with Stamping(
        tmp_path / "out",
        *everywhere,
        "--match",
        "--rate",
        "1",
        "--port",
        "7136",
        *at("veth:out@protocol=udp", "none"),
    ) as run:
        talk(bed, socket.AF_INET, 7136)
        run.end()
    rows = ways(hops.load(tmp_path / "out"), bed, 7136)
    assert len(rows) == 20
    assert set(rows["proto"]) == {17}
    assert all(points == ["a:eth0 out", "h1:u0 out", "h2:vb out"] for points in rows["way"])
