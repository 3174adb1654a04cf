# SPDX-License-Identifier: GPL-2.0-only
"""A disk that becomes read-only while it is recorded to, as after an error of the device."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorder_run import END_S, RECORDER, EchoServer, Running, manifest, require_live, tool_pids, wait_gone
from test_collect_live import MESSAGE, read
from test_flight_live import Begin, flying, whole

from conftest import ROOT, skip_or_fail

__all__ = ["flying"]
pytestmark = pytest.mark.live

#: mkfs.ext4 is in a directory of the administrator, which need not be on PATH.
_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 file system in a file."""
    require_live("bpf")
    mkfs = shutil.which("mkfs.ext4", path=_PATH)
    if mkfs is None:
        skip_or_fail("loop", "mkfs.ext4 is not installed")
    image, mounted = tmp_path / "image", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(300 << 20)
    subprocess.run([mkfs, "-q", "-F", "-m", "0", image], check=True)
    mounted.mkdir()
    done = subprocess.run(["mount", "-o", "loop", image, mounted], capture_output=True, text=True)
    if done.returncode:
        skip_or_fail("loop", f"no loop device: {done.stderr}")
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


def test_flight_recorder_on_a_disk_that_becomes_read_only_goes_on_and_says_why_there_are_no_windows(
    disk: Path, flying: Begin
) -> None:
    run = flying(disk / "f", 1, "--memory", "8M", "--after", "0.1")
    run.process.send_signal(signal.SIGUSR1)
    run.wait_for_windows(1)
    subprocess.run(["mount", "-o", "remount,abort", disk], check=True)
    run.process.send_signal(signal.SIGUSR1)
    deadline = time.monotonic() + END_S
    while "no room for a window" not in run.said:
        assert run.process.poll() is None and time.monotonic() < deadline, run.said
        time.sleep(0.02)
    ((window, _),) = run.windows()
    said = run.end()
    assert "until this is mended (Read-only file system); the kernel's log (dmesg) says why" in said
    assert "1 triggers made no window" in said
    assert whole(window)


@pytest.mark.parametrize("options", [[], ["--flight"]], ids=["recording", "flight"])
@pytest.mark.parametrize(
    ("mount", "told"),
    [("ro,size=200m", "read-only file system"), ("size=8m", "8.4 MB free, a recording needs 134.2 MB")],
    ids=["read-only", "full"],
)
def test_disk_that_takes_no_recording_is_refused_before_anything_runs(
    tmp_path: Path, options: list[str], mount: str, told: str
) -> None:
    require_live("bpf")
    in_namespace = 'mount -t tmpfs -o "$1" none "$2"; shift 2; exec "$@"'
    argv = [RECORDER, *options, "-o", tmp_path / "a.nsight", "-d", "1"]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-ec", in_namespace, "sh", mount, tmp_path, *argv],
        capture_output=True,
        text=True,
        timeout=END_S,
    )
    assert done.returncode == 5
    error, hint = done.stderr.splitlines()
    assert error == f"error: {tmp_path}: {told}"
    assert "place with -o DIR" in hint
