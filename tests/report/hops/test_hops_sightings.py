# SPDX-License-Identifier: GPL-2.0-only
"""Recordings of several kernels in the read-only mode: packets followed by their keys, clocks fitted, nothing guessed."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from nsight_report import hops
from nsight_report.errors import BadInput
from nsight_report.hops import records
from report.hops.made_up import A_OUT, B_IN, T0, VA_IN, VB_OUT, directory, record
from report.hops.test_hops import lost

AHEAD = {"a": 0, "b": 7_000_000_000_123, "c": 6_997_000_000_123}
A_IN, VA_OUT, VB_IN, B_OUT = A_OUT - 1, VA_IN + 1, VB_OUT - 1, B_IN + 1
#: (kernel, point, ns after the packet was first seen): a sends, b passes on, c receives; and back.
THERE = (("a", A_OUT, 0), ("b", VA_IN, 20_000), ("b", VB_OUT, 20_300), ("c", B_IN, 70_300))
BACK = (("c", B_OUT, 0), ("b", VB_IN, 50_000), ("b", VA_OUT, 50_300), ("a", A_IN, 70_300))
N = 200


class Recorded:
    """Sightings by kernel."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = defaultdict(bytes)

    def seen(self, kernel: str, point: int, ns: int, key: int) -> None:
        self.bodies[kernel] += record(ns + AHEAD[kernel], records.MATCH, point, struct.pack("<Q", key), 17)

    def packet(self, at: int, key: int, way: tuple[tuple[str, int, int], ...], longer: int = 0) -> None:
        """``longer``: ns that it takes more before its last point."""
        for n, (kernel, point, after) in enumerate(way):
            self.seen(kernel, point, at + after + longer * (n == len(way) - 1), key)

    def load(self, path: Path) -> hops.Collection:
        return hops.load_all([directory(path / f"{k}.capsules", self.bodies[k]) for k in "abc"])


def usual() -> Recorded:
    """N packets there and N back, one ms apart."""
    made = Recorded()
    for n in range(N):
        made.packet(T0 + n * 1_000_000, n, THERE)
        made.packet(T0 + n * 1_000_000 + 500_000, N + n, BACK)
    return made


def test_a_packet_is_followed_by_its_key_through_three_kernels(tmp_path: Path) -> None:
    """Each wire takes as long there as back, 20 and 50 us: so the bounds are these, but for the ends of the fit."""
    c = usual().load(tmp_path)
    assert lost(c) == {}
    assert c.match
    assert len(c.packets) == 2 * N
    assert c.packets["arrived"].all()
    for packet, points in (
        (0, ["a/a:eth0 out", "b/h:va in", "b/h:vb out", "c/b:eth0 in"]),
        (1, ["c/b:eth0 out", "b/h:vb in", "b/h:va out", "a/a:eth0 in"]),
    ):
        way = c.hops[c.hops["packet"] == packet]
        assert way["point"].tolist() == points
        assert np.abs(np.diff(way["ts_ns"])[1] - 300) <= 1
    assert np.abs(c.packets["latency_ns"] - 70_300).max() <= c.packets["bound_ns"].max()
    assert 60_000 <= np.median(c.packets["bound_ns"]) <= 80_000
    for kernel, name in ((1, "b"), (2, "c")):
        at = c.hops.loc[c.hops["clock"] == 0, "ts_ns"].to_numpy(np.int64)
        offset, bound = c.crossings[kernel].offset.of(at)
        of = AHEAD[name] - AHEAD["a" if kernel == 1 else "b"]
        assert (np.abs(offset - of) <= bound).all()
    c.arrow("hops"), c.arrow("packets")


def test_a_delay_between_two_kernels_is_found_with_its_size(tmp_path: Path) -> None:
    made = usual()
    made.packet(T0 + 3_250_000, 4 * N, THERE, longer=10_000_000)
    c = made.load(tmp_path)
    slow = c.packets.loc[c.packets["latency_ns"].idxmax()]
    steps = np.diff(c.hops.loc[c.hops["packet"] == slow["packet"], "ts_ns"])
    assert steps.argmax() == 2
    assert abs(int(steps[2]) - 10_050_000) <= slow["bound_ns"]


def test_keys_that_do_not_show_one_way_are_counted_and_not_followed(tmp_path: Path) -> None:
    """Four keys that do not show which way a packet took:

    1001: two kernels saw it twice (4 sightings); one of them may have missed the first packet. 1002: one of its 5 sightings is a copy.
    1003: b and c both passed it on (5 sightings), so their order is unknown. 1004: only one point saw it.
    """
    made = usual()
    for at in (0, 900_000):
        made.seen("a", A_OUT, T0 + 1_100_000 + at, 1001)
        made.seen("b", VA_IN, T0 + 1_120_000 + at, 1001)
    made.packet(T0 + 2_100_000, 1002, THERE)
    made.seen("c", B_IN, T0 + 2_180_000, 1002)
    made.packet(T0 + 3_100_000, 1003, THERE[:3])
    for point in (VA_IN, VB_OUT):
        made.seen("c", point, T0 + 3_170_000 + point, 1003)
    made.seen("c", B_IN, T0 + 4_100_000, 1004)
    c = made.load(tmp_path)
    assert lost(c) == {"hops_match_doubtful": 4 + 5, "hops_match_order_unknown": 5, "hops_match_alone": 1}
    assert len(c.packets) == 2 * N


def test_a_key_twice_in_one_kernel_alone_is_matched_there(tmp_path: Path) -> None:
    made = usual()
    for at in (0, 900_000):
        made.seen("b", VA_IN, T0 + 1_120_000 + at, 1001)
        made.seen("b", VB_OUT, T0 + 1_120_300 + at, 1001)
    c = made.load(tmp_path)
    assert lost(c) == {}
    assert len(c.packets) == 2 * N + 2


def test_a_macvtap_lets_packets_out_where_they_come_in(tmp_path: Path) -> None:
    """The host's tap device at which a guest's packets come in has packets for it going out at ingress."""
    made = usual()
    paths = [directory(tmp_path / f"{k}.capsules", made.bodies[k]) for k in "abc"]
    manifest = json.loads((paths[0] / "manifest.json").read_text())
    for point in manifest["points"]:
        if point["device"] == "eth0":
            point["kind"] = "macvtap"
    (paths[0] / "manifest.json").write_text(json.dumps(manifest))
    # Both directions are turned around: a seems to receive what it sent, after c did.
    with pytest.raises(BadInput, match="no packet went"):
        hops.load_all(paths)


def test_kernels_that_share_no_key_are_an_error(tmp_path: Path) -> None:
    made = Recorded()
    for kernel, key in (("a", 1), ("b", 2), ("c", 3)):
        for point in (A_OUT, B_IN):
            made.seen(kernel, point, T0 + point, key)
    with pytest.raises(BadInput, match="no packet went") as error:
        made.load(tmp_path)
    assert "--match" in str(error.value.hint)
