# SPDX-License-Identifier: GPL-2.0-only
"""A disk that becomes read-only while it is recorded to, as after an error of the device."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorder_run import END_S, EchoServer, Running, manifest, require_live, tool_pids, wait_gone
from test_collect_live import MESSAGE, read

from conftest import ROOT, skip_or_fail

pytestmark = pytest.mark.live

#: mkfs.ext4 is in a directory of the administrator, which need not be on PATH.
_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 file system in a file."""
    require_live("bpf")
    mkfs = shutil.which("mkfs.ext4", path=_PATH)
    if mkfs is None:
        skip_or_fail("bpf", "mkfs.ext4 is not installed")
    image, mounted = tmp_path / "image", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(300 << 20)
    subprocess.run([mkfs, "-q", "-F", "-m", "0", image], check=True)
    mounted.mkdir()
    done = subprocess.run(["mount", "-o", "loop", image, mounted], capture_output=True, text=True)
    if done.returncode:
        skip_or_fail("bpf", f"no loop device: {done.stderr}")
    yield mounted
    subprocess.run(["umount", mounted], check=True)


def n_answers(directory: Path) -> int:
    """Answers of the server that are recorded so far."""
    found = [read(path, killed=True) for path in directory.glob("records/cpu-*.records")]
    return sum(file.present[MESSAGE | 3 << 2] for file in found)


def test_disk_that_becomes_read_only_ends_the_recording_and_keeps_what_is_there(disk: Path) -> None:
    echo = EchoServer()
    running = Running(disk / "a.nsight", "-d", "600", "--port", str(echo.port))
    m = running.wait_recording()
    echo.requests(200)
    running.wait_for(lambda: n_answers(running.directory) >= 200, "write what was recorded")
    subprocess.run(["mount", "-o", "remount,abort", disk], check=True)
    _, err = running.end()
    echo.close()
    assert running.process.returncode == 5, err
    assert wait_gone(tool_pids(m)) == []
    assert (
        f"ended early (exit code 5): {disk}/a.nsight: Read-only file system; the kernel's log (dmesg) says why"
        in err
    )
    assert "manifest.json: Read-only file system; the capture still says that it was cut" in err
    assert f"next:    nsight-report {disk}/a.nsight" in err
    assert manifest(running.directory)["state"] == "recording"
    report = ROOT / "tools/nsight-report/nsight-report"
    argv = [report, running.directory, "--direction", "rx"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=END_S)
    assert done.returncode == 0, done.stderr
    assert "capture was cut" in done.stdout + done.stderr
