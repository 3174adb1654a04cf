# SPDX-License-Identifier: GPL-2.0-only
"""Packets that leave for another kernel and come from one; and only one nsight-capsule at a time.

The other kernel is this one: u0 and u1 are both boundaries, and the records of their two sides are split into two directories.
The true offset of their clocks is 0.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from nsight_report import hops
from nsight_report.hops import layers, records

from capsule.bed import Bed
from capsule.stamping import TOOL, Stamping, total

pytestmark = pytest.mark.live

N = 150


def parted(whole: Path, bed: Bed) -> list[Path]:
    """Two directories: one for the points in a and h1, one for the points in h2 and b."""
    points = json.loads((whole / "manifest.json").read_text())["points"]
    first = {p["number"] for p in points if p["netns"] in (bed.name("a"), bed.name("h1"))}
    data = (whole / "capsules").read_bytes()
    found = np.frombuffer(data[records.HEADER.itemsize :], records.RECORD)
    here = np.isin(found["point"], list(first))
    made = []
    for name, chosen in (("one", here), ("two", ~here)):
        path = whole.parent / f"{name}.capsules"
        shutil.copytree(whole, path)
        (path / "capsules").write_bytes(data[: records.HEADER.itemsize] + found[chosen].tobytes())
        made.append(path)
    return made


def ask(bed: Bed, port: int) -> None:
    """N requests and replies over TCP and IPv4, and as many over UDP and IPv6."""
    for one, other in (bed.connection(socket.AF_INET, port), bed.datagrams(socket.AF_INET6, port)):
        if other.type == socket.SOCK_DGRAM:
            other.connect(bed.in_place("a", one.getsockname))
        for n in range(N):
            one.send(b"%3d" % n * 50)
            assert other.recv(1 << 16) == b"%3d" % n * 50
            other.send(b"%3d" % n)
            assert one.recv(1 << 16) == b"%3d" % n


def test_a_packet_is_followed_over_the_boundary_and_the_clocks_agree(
    bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    boundaries = [word for place in ("h1:u0", "h2:u1") for word in ("--boundary", bed.name(place))]
    before = bed.errors()
    with Stamping(
        tmp_path / "whole", *everywhere, "--rate", "1", "--port", "7041", "--leave", *boundaries
    ) as run:
        ask(bed, 7041)
        manifest = run.end()
    assert bed.errors() == before
    assert total(manifest, "born") >= 4 * N
    for name in ("left", "came", "ended"):
        assert total(manifest, name) == total(manifest, "born"), name
    c = hops.load_all(parted(tmp_path / "whole", bed))
    assert len(c.packets) == total(manifest, "born")
    assert c.packets["arrived"].all()
    assert not [row for row in c.losses.to_pylist() if row["key"].startswith("hops_")]
    offset, bound = c.crossings[1].offset.of(c.hops["ts_ns"].to_numpy(np.int64))
    assert (np.abs(offset) <= bound).all()
    rows = layers.passages(c)
    assert (rows["dur_ns"] >= 0).all()
    crossed = rows["layer"].astype(str).str.contains("u0 out -> two") | rows["layer"].astype(
        str
    ).str.contains("u1 out -> one")
    assert (rows.loc[crossed, "bound_ns"] > 0).all()
    assert (rows.loc[~crossed, "bound_ns"] == 0).all()
    assert crossed.sum() == len(c.packets)


def test_read_only_recordings_of_two_kernels_are_joined(bed: Bed, tmp_path: Path) -> None:
    """Two runs with --match at the same time, each with the points of one half: every segment and datagram is followed from one to the
    other, and the fitted clock is 0 within its bound."""
    options = ("--match", "--rate", "1", "--port", "7044")
    halves = {
        name: [word for place in places for word in ("--netns", bed.name(place))]
        for name, places in (("one", ("a", "h1")), ("two", ("h2", "b")))
    }
    paths = [tmp_path / f"{name}.capsules" for name in halves]
    with (
        Stamping(paths[0], *halves["one"], *options) as first,
        Stamping(paths[1], *halves["two"], *options) as second,
    ):
        ask(bed, 7044)
        ends = first.end(), second.end()
    # 4 points in each half; a segment that was sent again has the key of the first, and both are doubtful.
    assert {total(manifest, "matched") % 4 for manifest in ends} == {0}
    c = hops.load_all(paths)
    lost = {row["key"]: row["count"] for row in c.losses.to_pylist()}
    assert set(lost) <= {"hops_match_doubtful"}
    assert len(c.packets) == 4 * N - len(lost)
    for _, way in c.hops.groupby("packet"):
        assert sorted(way["clock"]) == [0] * 4 + [1] * 4
        assert abs(int(way["clock"].diff().sum())) == 1
    offset, bound = c.crossings[1].offset.of(c.hops["ts_ns"].to_numpy(np.int64))
    assert (np.abs(offset) <= bound).all()
    rows = layers.passages(c)
    between = rows["bound_ns"] > 0
    assert between.sum() == len(c.packets)
    assert (rows.loc[between, "dur_ns"] >= -rows.loc[between, "bound_ns"]).all()
    assert (rows.loc[~between, "dur_ns"] >= 0).all()


@pytest.mark.parametrize("leave", [False, True])
def test_a_datagram_whose_first_device_leads_out_has_a_capsule_only_if_they_may_leave(
    bed: Bed, tmp_path: Path, leave: bool
) -> None:
    """The packet socket in b sees 28 bytes more, or none."""
    options = [
        "--netns",
        bed.name("a"),
        "--boundary",
        f"{bed.name('a')}:eth0",
        "--rate",
        "1",
        "--port",
        "7042",
    ]
    with Stamping(tmp_path / "out", *options, *(["--leave"] if leave else [])) as run:
        tap = bed.socket("b", socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        tap.bind(("eth0", 3))
        tap.settimeout(30)
        client, server = bed.datagrams(socket.AF_INET, 7042)
        client.send(b"datagram")
        assert server.recv(99) == b"datagram"
        frame = tap.recv(1 << 16)
        while b"datagram" not in frame:
            frame = tap.recv(1 << 16)
        manifest = run.end()
    # 14 bytes of Ethernet, 20 of IPv4, 8 of UDP, 8 of payload; a veth does not pad such a short frame.
    assert len(frame) == 50 + (28 if leave else 0)
    assert total(manifest, "drawn") == total(manifest, "born") == total(manifest, "left") == int(leave)
    packets = hops.load(tmp_path / "out").packets
    assert packets["arrived"].tolist() == [True] * int(leave)


def test_a_second_one_is_refused_and_so_is_taking_its_marks_off(
    bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    def said(*options: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, str(TOOL), *everywhere, *options], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr

    with Stamping(tmp_path / "first", *everywhere, "--rate", "1", "--port", "7043") as run:
        for options in (["-d", "1", "-o", str(tmp_path / "second")], ["--restore"]):
            code, text = said(*options)
            assert code == 4
            assert f"another nsight-capsule runs on this machine, process {run.process.pid}" in text
            assert "hint: " in text
        assert not (tmp_path / "second").exists()
        assert said("--match", "-d", "0.1", "--rate", "1", "-o", str(tmp_path / "match"))[0] == 0
        run.process.kill()
        run.process.wait()
    # nsight-stamp holds the lock until it has ended, too.
    assert said("-d", "0.1", "-o", str(tmp_path / "third"))[0] == 0
