# SPDX-License-Identifier: GPL-2.0-only
"""Recordings of real processors, which are not part of this tree: all routes give the same result, with the same times."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import pytest

from conftest import skip_or_fail
from decode import edges, parity, real
from decode import packets as pt
from decode.test_nsight_decode import run

pytestmark = pytest.mark.tools


@pytest.fixture
def decoders() -> None:
    if not parity.NATIVE.exists():
        skip_or_fail("decoder", "nsight-decode is not built (hint: make decoder)")
    if not shutil.which("perf"):
        skip_or_fail("perf", "perf is not installed")


@pytest.fixture
def recordings(decoders: None, tmp_path: Path) -> list[Path]:
    """Those of the directory that the environment names."""
    place = os.environ.get(real.VARIABLE)
    if not place:
        skip_or_fail("pt-real", f"{real.VARIABLE} names no directory")
    found = real.recordings(Path(place), tmp_path)
    assert found, f"{real.VARIABLE}={place}: no recording there"
    return found


def test_every_route_tells_the_same_of_real_processors(recordings: list[Path]) -> None:
    rows = [row for data in recordings for row in real.compare(data)]
    assert not [row.line() for row in rows if row.differs]


def test_rows_of_real_recordings_take_time_and_follow_each_other(
    recordings: list[Path], tmp_path: Path
) -> None:
    for data in recordings:
        done = run("calls", data, "--symfs", "/", "--out", tmp_path / "out")
        assert done.returncode == 0, done.stderr
        rows = ds.dataset(tmp_path / "out/calls").to_table()
        assert rows.num_rows > 0
        assert (rows["dur_ns"].to_numpy() >= 0).all() and (rows["self_ns"].to_numpy() >= 0).all()
        top = rows.filter(ds.field("parent_id") == -1)
        for key in {*zip(top["cpu"].to_pylist(), top["tid"].to_pylist(), strict=True)}:
            cpu, tid = key
            part = top.filter((ds.field("cpu") == cpu) & ((ds.field("tid") == tid) | (cpu >= 0)))
            part = part.sort_by("start_ns")
            begin, dur = part["start_ns"].to_numpy(), part["dur_ns"].to_numpy()
            assert (begin[1:] >= (begin + dur)[:-1]).all(), (data, key)


def test_the_script_compares_what_it_is_given(decoders: None, tmp_path: Path) -> None:
    """Also what a program ``wrap`` makes; without any it says so."""
    # Tracing is off at the PSB, and starts right after it.
    trace = pt.psb(1000).replace(pt.fup(pt.MAIN), b"") + pt.enable(pt.MAIN) + pt.cyc(10) + pt.tip(pt.LOOP)
    trace += pt.cyc(10) + pt.tnt(False) + pt.cyc(20) + pt.tip(pt.LOOP) + pt.loop(3, 10)
    pt.Recording({(-1, 7): [trace]}).write(tmp_path / "made")
    (tmp_path / "given").mkdir()
    argv = [sys.executable, parity.TOP / "tests/decode/real.py"]
    env = {**os.environ, real.VARIABLE: str(tmp_path / "given")}
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and "no recording there\nhint: " in done.stderr
    wrap = tmp_path / "given/wrap"
    wrap.write_text(f'#!/bin/sh\ncp -r {tmp_path}/made "$1"\n')
    wrap.chmod(0o755)
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal") == 5 and "native = nsight.py" in done.stdout


def test_what_differs_is_found() -> None:
    rows = np.zeros(4, np.dtype(list(edges.EDGE)))
    rows["time"], rows["from"] = [10, 20, 30, 40], [1, 2, 3, 4]
    later = rows.copy()
    later["time"][2:] += np.uint64(60)
    assert real.same_times(rows, later, 50) == "2 times differ by more than 50 ns, by up to 60"
    assert not real.same_times(rows, later, 60)
    assert real.kept(rows[[0, 2]], rows) == (2, "")
    assert real.kept(rows[[2, 0]], rows) == (1, "row 1 of perf is not in ours")
    assert not real.ordered(rows)
    assert real.ordered(rows[[0, 2, 1, 3]]) == "1 times are before the one before"
    # Threads with buffers of their own have an order of their own.
    rows["cpu"], rows["tid"] = -1, [1, 1, 2, 2]
    assert not real.ordered(rows[[2, 0, 3, 1]])
