# SPDX-License-Identifier: GPL-2.0-only
"""A host's absence is measured, and a test that failed meanwhile is run again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from testbed import host

ROOT = Path(__file__).resolve().parents[2]

TEST = """
import pytest
from testbed import host
host.Absence.matters = lambda self: {absent}
pytestmark = pytest.mark.{mark}
runs = []
def test_third_run_passes(tmp_path):
    assert not list(tmp_path.iterdir())
    (tmp_path / "left").touch()
    runs.append(1)
    assert len(runs) == 3
def test_passes():
    assert len(runs) == {runs}
"""


@pytest.mark.parametrize(
    ("mark", "absent", "runs", "failed"),
    [("alone", True, 3, 0), ("alone", False, 1, 1), ("live", True, 3, 0), ("slow", True, 1, 1)],
)
def test_failed_measurement_is_made_again_if_the_host_was_absent(
    tmp_path: Path, mark: str, absent: bool, runs: int, failed: int
) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(TEST.format(mark=mark, absent=absent, runs=runs))
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert f"{2 - failed} passed" in done.stdout, done.stdout + done.stderr
    assert ("1 failed" in done.stdout) == bool(failed)
    assert done.stderr.count("once more, the host was absent") == runs - 1


def test_absence_is_what_the_kernel_counted_since(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([1_000, 1_015, 1_015, 1_900, 1_900])
    monkeypatch.setattr(host, "stolen_ms", lambda: next(now))
    monkeypatch.setattr(host.time, "monotonic", lambda: 0.0)
    absence = host.Absence()
    assert absence.ms() == 15
    assert not absence.matters()  # less than two ticks of the kernel's count
    assert absence.matters()
    monkeypatch.setattr(host.time, "monotonic", lambda: 100.0 * 3600)
    assert not absence.matters()  # of a hundred hours a second is nothing


def test_stolen_time_is_the_eighth_figure_of_the_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: "cpu  1 2 3 4 5 6 7 88 9 10\ncpu0 0 0 0 0 0 0 0 0 0 0\n")
    monkeypatch.setattr(host.os, "sysconf", lambda _: 100)
    assert host.stolen_ms() == 880
