# SPDX-License-Identifier: GPL-2.0-only
"""nsight-stamp is stopped and empties its ring buffer no more: what does not fit is counted, and all that fits is kept."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from nsight_capsule.account import TROUBLE
from nsight_report import hops

from capsule.bed import DEVICES, Bed
from capsule.stamping import Stamping, total

pytestmark = pytest.mark.live
N = 1000
#: A record takes 96 bytes and a header of 8.
RING, FIT = ("--ring-kb", "64"), 65536 // 104
KEPT = ("ended", "left", "dumped", "matched")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("options", "kept", "lost", "made"),
    [
        ((), "ended", "end_lost", N),
        (("--boundary", "{h1}:u0"), "left", "left_lost", N),
        (("--match",), "matched", "match_lost", N * len(DEVICES)),
    ],
    ids=["ended", "left", "matched"],
)
def test_what_was_seen_is_recorded_or_counted_as_lost(
    bed: Bed, everywhere: list[str], tmp_path: Path, options: tuple[str, ...], kept: str, lost: str, made: int
) -> None:
    """N datagrams, each received before the next one is sent. Each one ends, leaves, or is seen by every device, once."""
    words = [word.format(h1=bed.name("h1")) for word in options]
    with Stamping(tmp_path / "out", *everywhere, "--rate", "1", "--port", "7061", *RING, *words) as run:
        client, server = bed.datagrams(socket.AF_INET, 7061)
        with client, server, stopped(run.child()):
            for n in range(N):
                client.send(b"%d" % n)
                assert server.recv(99) == b"%d" % n
        manifest = run.end()
    assert total(manifest, kept) + total(manifest, lost) == made
    assert total(manifest, lost) >= made - FIT
    # All that the programs put into the ring is in the file, and is read from there.
    records = manifest["counted"]["records"]
    assert records == sum(total(manifest, name) for name in KEPT) == FIT
    assert manifest["counted"]["unwritten"] == 0
    assert (tmp_path / "out/capsules").stat().st_size == 64 + 96 * records
    assert any(f"{total(manifest, lost)} {TROUBLE[lost]}" in line for line in run.said)
    losses = {row["key"]: row["count"] for row in hops.load(tmp_path / "out").losses.to_pylist()}
    assert losses[f"capsule_{lost}"] == total(manifest, lost)
