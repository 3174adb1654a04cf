# SPDX-License-Identifier: GPL-2.0-only
"""The layer that delays packets is found: a throttled queue at a known place, with capsules and by fields alone."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machinery.harness.judged import judge
from nsight_report import hops
from nsight_report.hops import layers

from capsule.bed import Bed
from capsule.stamping import Stamping, total

pytestmark = [pytest.mark.live, pytest.mark.alone]

#: A burst of N datagrams of SIZE bytes through a queue of RATE, whose bucket holds BURST bytes.
N, SIZE, RATE_BIT, BURST = 40, 1000, 8_000_000, 4_000
WAITS = {
    ("a", "eth0"): ("a:eth0 out", "h1:va in"),
    ("h1", "u0"): ("h1:u0 out", "h2:u1 in"),
    ("h2", "vb"): ("h2:vb out", "b:eth0 in"),
}


@contextmanager
def throttled(bed: Bed, place: str, device: str) -> Iterator[None]:
    """The device lets RATE_BIT bits per second through."""
    words = ("root", "tbf", "rate", f"{RATE_BIT}bit", "burst", str(BURST), "limit", "1000000")
    tc(bed, place, "qdisc", "add", "dev", device, *words)
    try:
        yield
    finally:
        tc(bed, place, "qdisc", "del", "dev", device, "root")


def tc(bed: Bed, place: str, *words: str) -> None:
    from capsule.bed import run

    run("tc", "-n", bed.name(place), *words)


def quiet_and_burst(bed: Bed, port: int) -> None:
    """Send 100 datagrams, each after the previous one's arrival, then N at once."""
    client, server = bed.datagrams(socket.AF_INET, port)
    for _ in range(100):
        client.send(b"q" * 8)
        server.recv(1 << 16)
    for _ in range(N):
        client.send(b"b" * SIZE)
    for _ in range(N):
        assert len(server.recv(1 << 16)) == SIZE


def queued(collection: hops.Collection, bed: Bed, place: tuple[str, str]) -> tuple[Any, Any]:
    """The times at which each datagram of the burst passed the two points around that queue."""
    burst = collection.packets[collection.packets["length"] == SIZE]["packet"]
    of = collection.hops[collection.hops["packet"].isin(burst)]
    names = [f"{bed.prefix}-{name}" for name in WAITS[place]]
    return tuple(np.sort(of[of["point"] == name]["ts_ns"].to_numpy(np.int64)) for name in names)  # type: ignore[return-value]


@pytest.mark.parametrize("match", [False, True], ids=["capsules", "by-fields"])
@pytest.mark.parametrize("place", list(WAITS), ids=lambda place: f"{place[0]}-{place[1]}")
def test_a_throttled_layer_is_named(
    bed: Bed, everywhere: list[str], tmp_path: Path, place: tuple[str, str], match: bool
) -> None:
    """The last of 40,000 bytes leaves no sooner than (40,000 - 4,000) / 1,000,000 s = 36 ms after the arrival of the first."""
    options = [
        *everywhere,
        "--rate",
        "1",
        "--protocol",
        "udp",
        "--port",
        "7021",
        *(["--match"] if match else []),
    ]
    with Stamping(tmp_path / "out", *options) as run, throttled(bed, *place):
        quiet_and_burst(bed, 7021)
        manifest = run.end()
    collection = hops.load(tmp_path / "out")
    assert len(collection.packets) == 100 + N
    assert collection.packets["arrived"].all()
    assert total(manifest, "matched") == (8 * (100 + N) if match else 0)
    assert len(collection.hops) == 8 * (100 + N)
    came, went = queued(collection, bed, place)
    assert len(came) == len(went) == N
    assert went[-1] - came[0] >= (N * SIZE - BURST) * 8 * 1_000_000_000 // RATE_BIT
    rows = layers.passages(collection)
    sums = rows.groupby("packet")["dur_ns"].sum()
    assert (sums == collection.packets.set_index("packet")["latency_ns"]).all()
    slow, usual = layers.chosen(collection.packets, 80, 100), layers.chosen(collection.packets, 10, 60)
    first = layers.excess(collection, rows, slow, usual).iloc[0]
    wanted = " -> ".join(f"{bed.prefix}-{name}" for name in WAITS[place])
    judge(
        "live",
        f"capsule {place} {match}",
        first["layer"] == wanted and first["share"] > 0.5,
        str(dict(first)),
    )


def test_equal_datagrams_of_which_one_is_lost_are_doubtful_by_fields(
    bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    """IPv6 has no identification field: equal datagrams have one key, and a queue for one packet lets fewer of them pass."""
    with Stamping(
        tmp_path / "out", *everywhere, "--rate", "1", "--protocol", "udp", "--port", "7022", "--match"
    ) as run:
        client, server = bed.datagrams(socket.AF_INET6, 7022)
        for text in (b"one, and no other", b"twice, each arrives", b"twice, each arrives"):
            client.send(text)
            assert server.recv(99) == text
        run_tbf = ("root", "tbf", "rate", "8kbit", "burst", "1500", "limit", "1")
        tc(bed, "h2", "qdisc", "add", "dev", "vb", *run_tbf)
        client.send(b"lost, never read" * 90)
        client.send(b"lost, never read" * 90)
        tc(bed, "h2", "qdisc", "del", "dev", "vb", "root")
        run.end()
    collection = hops.load(tmp_path / "out")
    # 3 packets at 8 points. The two equal datagrams, one of them lost, cannot be distinguished at the points that saw both.
    arrived = collection.packets[collection.packets["length"] < 1000]
    assert len(arrived) == 3
    assert len(collection.hops[collection.hops["packet"].isin(arrived["packet"])]) == 24
