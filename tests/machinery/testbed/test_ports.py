# SPDX-License-Identifier: GPL-2.0-only
"""Ports are unique among all runs on a machine, and are released however their holder ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nsight_demo.processes import BedError

from machinery.testbed import locks, ports

TESTS = Path(__file__).resolve().parents[2]
HOLD = f"""
import subprocess, sys, time
from pathlib import Path
sys.path.insert(0, {str(TESTS)!r})
from machinery.testbed import ports
ports.run_dir = lambda: Path(sys.argv[1])
print(ports.Port().number, flush=True)
if len(sys.argv) > 2:
    child = subprocess.Popen(["sleep", "600"], close_fds=False)
    print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Private locks for this test: other runs on the machine hold some, too."""
    monkeypatch.setattr(ports, "run_dir", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """There are only three ports, and nothing listens on them."""
    monkeypatch.setattr(ports, "LOW", 10_000)
    monkeypatch.setattr(ports, "HIGH", 10_003)
    monkeypatch.setattr(ports, "_is_free_here", lambda number: True)
    yield [10_000, 10_001, 10_002]


def holder(directory: Path, *more: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A process that holds a port; the port, and the pid of its child if it has one."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory), *more], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout
    return child, [int(child.stdout.readline()) for _ in range(1 + len(more))]


def test_no_port_is_given_twice_until_it_is_released(three: list[int]) -> None:
    with ports.reserved(2) as numbers, ports.reserved() as more:
        assert sorted([*numbers, *more]) == three
        with pytest.raises(BedError, match="no port from 10000 to 10002 is free"):
            ports.Port()
    with ports.reserved(3) as numbers:
        assert sorted(numbers) == three


def test_port_of_another_process_is_taken_until_it_is_killed(own: Path) -> None:
    process, (number,) = holder(own)
    try:
        lock = locks.LockFile(own / "ports")
        assert lock.is_held(number) and not lock.take(number)
    finally:
        process.kill()
        process.wait()
    assert not lock.is_held(number) and lock.take(number)
    lock.close()


def test_child_of_a_killed_holder_does_not_keep_the_port(own: Path) -> None:
    process, (number, child) = holder(own, "with a child")
    try:
        process.kill()
        process.wait()
        assert Path(f"/proc/{child}").exists()
        lock = locks.LockFile(own / "ports")
        assert lock.take(number)
        lock.close()
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_port_on_which_somebody_listens_is_left_out(
    monkeypatch: pytest.MonkeyPatch, kind: socket.SocketKind, address: str
) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, kind) as sock:
        if ":" in address:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address, 0))
        number = sock.getsockname()[1]
        monkeypatch.setattr(ports, "LOW", number)
        monkeypatch.setattr(ports, "HIGH", number + 1)
        with pytest.raises(BedError):
            ports.Port()


def test_lock_file_is_no_link(own: Path) -> None:
    (own / "ports").symlink_to(own / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        ports.Port()
    assert not (own / "elsewhere").exists()


def test_locks_hold_across_mount_and_network_namespaces(own: Path) -> None:
    if os.geteuid():
        pytest.skip("root: namespaces need it")
    look = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(TESTS)!r})
from machinery.testbed.locks import LockFile
print(LockFile(Path(sys.argv[1])).is_held(int(sys.argv[2])))
"""
    with ports.reserved() as (number,):
        argv = ["unshare", "--mount", "--net", sys.executable, "-c", look, str(own / "ports"), str(number)]
        assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "True\n"
