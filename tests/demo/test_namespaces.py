# SPDX-License-Identifier: GPL-2.0-only
"""The next run removes what a killed run left, whatever mounts either has; namespaces of living runs are left alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nsight_demo import namespaces
from nsight_demo.namespaces import NETNS_DIR
from nsight_demo.processes import BedError, run

from conftest import skip_or_fail

TOOL = Path(__file__).resolve().parents[2] / "tools/nsight-demo"
#: A run with a named namespace.
RUN = f"""
import sys
sys.path.insert(0, {str(TOOL)!r})
from nsight_demo.namespaces import run_name
from nsight_demo.processes import run
name = run_name() + "-srv"
run(["ip", "netns", "add", name])
print(name, flush=True)
sys.stdin.readline()
run(["ip", "-n", name, "link", "show", "lo"])
run(["ip", "netns", "del", name])
print("gone", flush=True)
"""


@pytest.fixture(autouse=True)
def root() -> None:
    """Only root can create namespaces."""
    if os.geteuid():
        skip_or_fail("root", "network namespaces need root")


def start(*prefix: str) -> tuple[subprocess.Popen[str], Path]:
    """A run, and the file of its namespace."""
    child = subprocess.Popen(
        [*prefix, sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout
    return child, NETNS_DIR / child.stdout.readline().strip()


PREFIXES = pytest.mark.parametrize(
    "prefix", [(), ("unshare", "--mount")], ids=["same mounts", "mounts of its own"]
)


@PREFIXES
def test_namespace_of_a_living_run_is_left_alone(prefix: tuple[str, ...]) -> None:
    child, path = start(*prefix)
    assert path.name not in namespaces.clean_stale()
    assert path.exists()
    out, _ = child.communicate("\n", timeout=120)
    assert (child.returncode, out) == (0, "gone\n")
    assert not path.exists()


@PREFIXES
def test_namespace_of_a_killed_run_is_removed(prefix: tuple[str, ...]) -> None:
    child, path = start(*prefix)
    child.kill()
    # Still a zombie: nobody has waited for it, and its pid is not free.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    namespaces.clean_stale()
    assert not path.exists()
    child.wait()


def test_leftover_that_another_run_removes_at_the_same_time_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = NETNS_DIR / f"nsight-tb-1-{time.monotonic_ns()}-srv"

    def somebody_else_was_faster(argv: list[str]) -> str:
        path.unlink()
        return run(argv)

    NETNS_DIR.mkdir(exist_ok=True)
    path.touch()
    monkeypatch.setattr(namespaces, "run", somebody_else_was_faster)
    namespaces.delete_netns(path.name)
    assert not path.exists()


def test_namespace_that_cannot_be_removed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not the name of a leftover: another run on this machine would remove it.
    path = NETNS_DIR / f"not-of-the-testbed-{os.getpid()}"

    def refused(argv: list[str]) -> str:
        raise BedError("refused")

    NETNS_DIR.mkdir(exist_ok=True)
    path.touch()
    try:
        with monkeypatch.context() as patch, pytest.raises(BedError, match="refused"):
            patch.setattr(namespaces, "run", refused)
            namespaces.delete_netns(path.name)
    finally:
        namespaces.delete_netns(path.name)
    assert not path.exists()


def test_name_is_stale_when_its_process_is_gone_or_is_another() -> None:
    assert not namespaces._is_stale(namespaces.run_name())
    assert not namespaces._is_stale(namespaces.run_name() + "-srv")
    assert namespaces._is_stale("nsight-tb-1-0-srv")  # process 1 lives, but started at another time
    assert not namespaces._is_stale("someone-elses")
