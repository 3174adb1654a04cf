# SPDX-License-Identifier: GPL-2.0-only
"""Recordings made to do harm: what fuzzing found that a perf.data file can do to nsight-decode (tests/fuzz/decode)."""

from __future__ import annotations

import json
import resource
import struct
import subprocess
from pathlib import Path

import pytest
from machinery.pt_emulation.fixtures import unpack

from conftest import skip_or_fail
from decode import parity
from decode.damage import COMM, records

pytestmark = pytest.mark.tools

MMAP2, LOST_SAMPLES = 10, 13
#: Processor time; a good one takes a tenth of it.
SECONDS = 20


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A committed capture that a test may change."""
    if not parity.NATIVE.exists():
        skip_or_fail("decoder", "nsight-decode is not built (hint: make decoder)")
    return unpack.unpack("quiet", tmp_path)


def calls(capture: Path) -> dict[str, object]:
    """What calls.json says of it."""
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
