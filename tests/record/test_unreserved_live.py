# SPDX-License-Identifier: GPL-2.0-only
"""A recorder that gets no disk space for the last counts says so, and works otherwise."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from nsight_report import manifest as of_capture
from recorder_run import EchoServer, manifest, record, require_live
from test_collect_live import Collector
from test_flight_live import Begin, flying, whole

from conftest import skip_or_fail

__all__ = ["flying"]
pytestmark = pytest.mark.live

WHY = "Disk quota exceeded"


@pytest.fixture
def no_reserve(tmp_path: Path) -> tuple[str, ...]:
    """A command's prefix: there is no room for the reserve."""
    require_live("bpf")
    if not shutil.which("gcc"):
        skip_or_fail("compiler", "gcc is not installed")
    library = tmp_path / "no_reserve.so"
    source = Path(__file__).with_name("no_reserve.c")
    subprocess.run(["gcc", "-D_GNU_SOURCE", "-shared", "-fPIC", source, "-o", library], check=True)
    return "env", f"LD_PRELOAD={library}"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """One page for each core's file, the machine's file and one more; the reserve needs two for each."""
    require_live("bpf")
    disk = tmp_path / "disk"
    disk.mkdir()
    n_pages = (os.cpu_count() or 1) + 2
    options = f"size={n_pages * os.sysconf('SC_PAGE_SIZE')}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "nodev", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_collector_on_a_disk_that_is_full_from_the_beginning_says_so(tiny_disk: Path) -> None:
    run = Collector(tiny_disk / "records", "--port", "1", "--messages")
    _, out = run.end()
    assert out.splitlines().count("unreserved: No space left on device") == 1


def test_recording_without_reserve_says_so_once_and_the_report_knows(
    tmp_path: Path, no_reserve: tuple[str, ...]
) -> None:
    echo = EchoServer()
    directory = tmp_path / "a.nsight"
    code, said = record(directory, "--port", str(echo.port), "--", *echo.client(100), prefix=no_reserve)
    echo.close()
    assert code == 0, said
    m = manifest(directory)
    assert (m["unreserved"], m["state"], m["losses"]) == (WHY, "complete", [])
    assert (
        said.count(
            f"no disk space was reserved for the last counts: if the disk fills up, they may be missing ({WHY})"
        )
        == 1
    )
    losses = of_capture.load(directory).losses().table()
    assert losses["key"].to_pylist() == ["last_counts_not_reserved"]


def test_ordinary_recording_has_a_reserve(tmp_path: Path) -> None:
    require_live("bpf")
    code, said = record(tmp_path / "a.nsight", "--port", "1", "--", "true")
    assert code == 0, said
    assert "unreserved" not in manifest(tmp_path / "a.nsight")
    assert "was reserved" not in said


def test_flight_recorder_without_reserve_says_so_once_and_in_each_window(
    tmp_path: Path, no_reserve: tuple[str, ...], flying: Begin
) -> None:
    run = flying(tmp_path / "f", 1, "--memory", "8M", "--after", "0.1", prefix=no_reserve)
    for n in (1, 2):
        run.process.send_signal(signal.SIGUSR1)
        run.wait_for_windows(n)
    windows = run.windows()
    said = run.end()
    assert [m["unreserved"] for _, m in windows] == [WHY, WHY]
    assert all(whole(path) for path, _ in windows)
    assert said.count("no disk space was reserved") == 1
