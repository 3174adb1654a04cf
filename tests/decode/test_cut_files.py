# SPDX-License-Identifier: GPL-2.0-only
"""A perf.data file that ends anywhere, and one that names, or is said to be of, another CPU."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from conftest import skip_or_fail
from decode import edges, parity
from decode import packets as pt
from decode.damage import AUXTRACE, records
from decode.test_memory import dense
from decode.test_nsight_decode import run

pytestmark = pytest.mark.tools


@pytest.fixture(autouse=True)
def decoder() -> None:
    if not parity.NATIVE.exists():
        skip_or_fail("decoder", "nsight-decode is not built (hint: make decoder)")


#: Two buffers, one of them in two pieces, each with calls of ``leaf`` that take 30 ns of every 40.
CALLS = (pt.cyc(10) + pt.tnt(False) + pt.cyc(20) + pt.tip(pt.LOOP) + pt.cyc(10) + pt.tnt(True)) * 20
TRACES = {
    (0, 7): [pt.psb(1000, pt.LOOP) + CALLS, pt.psb(3000, pt.LOOP) + CALLS],
    (1, 8): [pt.psb(2000, pt.LOOP) + CALLS],
}


def ends(data: bytes) -> list[int]:
    """Where a file can be cut: around each section, each record, and the data behind it."""
    attrs, n_attrs, begin, size = struct.unpack_from("<QQQQ", data, 24)
    places = {0, 8, 16, 104, attrs, attrs + n_attrs, begin, begin + size, len(data)}
    for at, kind, length in records(data):
        places |= {at, at + 8, at + length}
        if kind == AUXTRACE:
            n = struct.unpack_from("<Q", data, at + 8)[0]
            places |= {at + length + n // 2, at + length + n}
    n_features = int.from_bytes(data[72:104], "little").bit_count()
    for table in range(begin + size, begin + size + 16 * n_features, 16):
        places |= {table, sum(struct.unpack_from("<QQ", data, table))}
    return sorted({near for at in places for near in (at - 1, at, at + 1) if 0 <= near < len(data)})


def written(
    directory: Path, data: Path, *options: str
) -> tuple[subprocess.CompletedProcess[str], np.ndarray]:
    """The edges of a file, by core."""
    out = directory / "edges"
    out.unlink(missing_ok=True)
    done = run("edges", data, "--symfs", directory / "symfs", "-o", out, *options)
    rows = edges.read(out).edges if done.returncode == 0 else np.zeros(0)
    return done, rows


def test_a_file_that_ends_anywhere_is_decoded_up_to_there_or_refused(tmp_path: Path) -> None:
    data = pt.Recording(TRACES).write(tmp_path)
    content = data.read_bytes()
    done, whole = written(tmp_path, data)
    assert done.returncode == 0 and len(whole) > 100, done.stderr
    of_core = {cpu: whole[whole["cpu"] == cpu] for cpu in (0, 1)}
    seen = set()
    for end in ends(content):
        data.write_bytes(content[:end])
        done, rows = written(tmp_path, data)
        seen.add(done.returncode)
        assert done.returncode in (0, 3, 4), (end, done.stderr)
        if done.returncode:
            assert "\nhint: " in done.stderr and done.stderr.startswith("error: "), (end, done.stderr)
            continue
        assert "perf.data is cut" in done.stderr, (end, done.stderr)
        for cpu, expected in of_core.items():
            own = rows[rows["cpu"] == cpu]
            key = ["time", "from", "to", "kind"]
            # The last edge leads to where the trace ends, if packets do not tell more.
            assert (own[key] == expected[: len(own)][key]).all(), (end, cpu)
    assert seen == {0, 3, 4}


@pytest.mark.parametrize(
    "cpuid", ["GenuineIntel,6,61,4", "AuthenticAMD,25,33,0", "GenuineIntel,6", "", "x,-1,\x80"]
)
def test_another_cpu_in_the_file_changes_at_most_the_errata(tmp_path: Path, cpuid: str) -> None:
    """The trace has none of the packets that errata concern, so every CPU gives the same edges."""
    _, whole = written(tmp_path, pt.Recording(TRACES).write(tmp_path))
    done, rows = written(tmp_path, pt.Recording(TRACES, cpuid=cpuid).write(tmp_path))
    assert done.returncode == 0, done.stderr
    assert rows.tobytes() == whole.tobytes()


@pytest.mark.parametrize("cpu", ["6/61/4", "0/0/0", "65535/255/255", "15/6/1"])
def test_a_wrong_cpu_is_taken_and_harms_nothing(tmp_path: Path, cpu: str) -> None:
    data = pt.Recording(TRACES).write(tmp_path)
    _, whole = written(tmp_path, data)
    done, rows = written(tmp_path, data, "--cpu", cpu)
    assert done.returncode == 0, done.stderr
    assert rows.tobytes() == whole.tobytes()


@pytest.mark.parametrize(
    "cpu", ["", "6", "6/85", "6/85/7/1", "6/256/1", "65536/1/1", "-6/85/7", "a/b/c", "6,85,7"]
)
def test_what_is_no_cpu_is_refused_with_the_form(tmp_path: Path, cpu: str) -> None:
    data = pt.Recording(TRACES).write(tmp_path)
    done, _ = written(tmp_path, data, f"--cpu={cpu}")
    assert done.returncode == 2 and "three numbers, such as 6/85/7" in done.stderr, done.stderr


def test_calls_and_info_of_a_cut_file_say_that_it_is_cut(tmp_path: Path) -> None:
    data = pt.Recording(TRACES).write(tmp_path)
    content = data.read_bytes()
    last = max(at for at, kind, _ in records(content) if kind == AUXTRACE)
    data.write_bytes(content[: last + 60])
    done = run("calls", data, "--symfs", tmp_path / "symfs", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    losses = json.loads((tmp_path / "out/calls.json").read_text())["losses"]
    assert "file_cut" in [loss["key"] for loss in losses]
    done = run("info", data, "--symfs", tmp_path / "symfs")
    assert done.returncode == 0 and "cut" in done.stdout, done.stdout


def test_a_file_that_becomes_shorter_while_it_is_read_is_told(tmp_path: Path) -> None:
    """It is mapped, so reading on would end the program with SIGBUS."""
    data = dense(1, tmp_path)
    argv = [parity.NATIVE, "edges", data, "--symfs", tmp_path / "symfs", "-o", tmp_path / "edges"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as running:
        until = time.monotonic() + 60
        while str(data) not in Path(f"/proc/{running.pid}/maps").read_text():
            assert running.poll() is None and time.monotonic() < until
        os.truncate(data, 4096)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 3, said
    assert said.startswith("error: a file became shorter while it was read\nhint: "), said
