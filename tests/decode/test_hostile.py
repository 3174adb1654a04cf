# SPDX-License-Identifier: GPL-2.0-only
"""Malicious recordings: attacks on nsight-decode by a perf.data file that fuzzing found (tests/fuzz/decode)."""

from __future__ import annotations

import json
import resource
import struct
import subprocess
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from machinery.pt_emulation.fixtures import unpack

from conftest import skip_or_fail
from decode import packets as pt
from decode import parity
from decode.damage import COMM, records

pytestmark = pytest.mark.tools

FORK, MMAP2, LOST_SAMPLES = 7, 10, 13
#: Limit of processor time; a good recording takes a tenth of it.
SECONDS = 20


@pytest.fixture(autouse=True)
def decoder() -> None:
    if not parity.NATIVE.exists():
        skip_or_fail("decoder", "nsight-decode is not built (hint: make decoder)")


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A committed capture that a test may change."""
    return unpack.unpack("quiet", tmp_path)


def calls(capture: Path) -> dict[str, object]:
    """The contents of calls.json for it."""
    argv = [
        parity.NATIVE,
        "calls",
        capture / "capture.nsight/perf.data",
        "--symfs",
        capture / "symfs",
        "-j",
        "1",
    ]
    done = subprocess.run(
        [*map(str, argv), "--out", str(capture / "out"), "-q"],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS)),
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads((capture / "out/calls.json").read_text()))


def test_lost_records_beyond_any_number_are_counted_up_to_the_last(capture: Path) -> None:
    path = capture / "capture.nsight/perf.data/data"
    data = bytearray(path.read_bytes())
    for at in [at for at, kind, _ in records(bytes(data)) if kind == COMM][:2]:
        struct.pack_into("<I", data, at, LOST_SAMPLES)
        struct.pack_into("<Q", data, at + 8, 2**64 - 1)
    path.write_bytes(data)
    losses = calls(capture)["losses"]
    assert isinstance(losses, list)
    assert [loss["count"] for loss in losses if loss["cause"] == "perf lost records"] == [2**64 - 1]


def test_a_mapping_larger_than_its_file_takes_no_longer(capture: Path) -> None:
    path = capture / "capture.nsight/perf.data/data"
    data = bytearray(path.read_bytes())
    maps = [at for at, kind, _ in records(bytes(data)) if kind == MMAP2]
    user = [at for at in maps if struct.unpack_from("<Q", data, at + 16)[0] < 2**47]
    for at in user:
        struct.pack_into("<Q", data, at + 24, 2**62)
    assert user
    path.write_bytes(data)
    calls(capture)


#: Calls itself until its branch is taken, and from then on ``leaf``, which returns to ``BEHIND``.
DEEP = b"\x75\x05\xe8\xf9\xff\xff\xff\xe8\x14\0\0\0\xeb\xf9".ljust(32, b"\0") + b"\xc3"
WORK, BEHIND = pt.MAIN + 7, pt.MAIN + 12


@pytest.mark.parametrize(
    ("depth", "returns", "given_up"),
    [(2_200_800, 2_000, True), (100_800, 100_000, True), (8_400, 200_000, False)],
)
def test_deep_recursion_costs_no_more_than_its_calls(
    tmp_path: Path, depth: int, returns: int, given_up: bool
) -> None:
    """A return does not search all open calls, and a call does not write all open calls again."""
    down = [
        pt.psb(at) + (pt.cyc(10) + pt.tnt(*[False] * 6)) * 700
        for at in range(1000, 1000 + depth // 6 * 10, 7000)
    ]
    at = 1000 + 7000 * len(down)
    leaf = [
        pt.psb(at, WORK) + (pt.cyc(10) + pt.tip(BEHIND)) * 2000
        for at in range(at + 10, at + returns * 10, 20_000)
    ]
    functions = (("deep", pt.MAIN, WORK + 7), ("leaf", pt.LEAF, pt.LEAF + 1))
    trace = b"".join([*down, pt.psb(at) + pt.cyc(10) + pt.tnt(True), *leaf])
    pt.Recording({(0, 7): [trace]}, program=pt.elf(DEEP, functions)).write(tmp_path)
    (tmp_path / "capture.nsight").mkdir()
    (tmp_path / "perf.data").rename(tmp_path / "capture.nsight/perf.data")
    said = calls(tmp_path)
    losses = said["losses"]
    assert isinstance(losses, list)
    assert [loss["count"] > 0 for loss in losses if loss["key"] == "calls_forgotten"] == [True] * given_up
    rows = ds.dataset(tmp_path / "out/calls").to_table(columns=["symbol", "end_known"])
    left = pc.sum(pc.equal(rows["symbol"], "leaf")).as_py()
    # Each call once, and at each cut of 12,288 of them the 4096 that go on.
    assert left == returns and depth < rows.num_rows - left < depth * 1.4


#: Limit of address space; a small recording takes a third of it.
BYTES = 150 << 20


def info(data: Path, symfs: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(parity.NATIVE), "info", str(data), "--json", "--symfs", str(symfs)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES)),
    )


TRACE = pt.psb(1000) + pt.cyc(10) + pt.tip(pt.LOOP)


def test_events_that_share_their_ids_are_damage(capture: Path, tmp_path: Path) -> None:
    """80 events, and a list of 1 MiB that is the ids of each."""
    data = pt.Recording({(0, 7): [TRACE]}).write(tmp_path)
    content = bytearray(data.read_bytes())
    (at,) = struct.unpack_from("<Q", content, 24)
    begin, n, size = len(content), 80, 1 << 20
    content += (content[at : at + 128] + struct.pack("<QQ", begin + n * 144, size)) * n + bytes(size)
    struct.pack_into("<QQ", content, 24, begin, n * 144)
    data.write_bytes(content)
    done = info(data, tmp_path / "symfs")
    assert done.returncode == 3 and "its list of events is damaged" in done.stderr


def test_children_share_what_they_inherit(capture: Path, tmp_path: Path) -> None:
    """A process of 400 mappings has 8000 children."""

    def ids(time: int) -> bytes:
        return struct.pack("<IIQIIQ", pt.PID, pt.PID, time, 0, 0, 1)

    def mapping(n: int) -> bytes:
        at = (pt.PID, pt.PID, 0x500000 + n * 0x2000, 0x1000, 0, 0, 0, 0, 0, 5, 2)
        return pt.record(MMAP2, 2, struct.pack("<IIQQQIIQQII", *at) + b"/x".ljust(8, b"\0") + ids(2))

    def fork(child: int) -> bytes:
        return pt.record(FORK, 0, struct.pack("<IIIIQ", child, pt.PID, child, pt.PID, 0) + ids(3))

    extra = [*map(mapping, range(400)), *map(fork, range(1000, 9000))]
    data = pt.Recording({(0, 7): [TRACE]}, extra=extra).write(tmp_path)
    done = info(data, tmp_path / "symfs")
    assert done.returncode == 0, done.stderr
