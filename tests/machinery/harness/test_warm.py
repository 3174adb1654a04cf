# SPDX-License-Identifier: GPL-2.0-only
"""For a test, a warm process behaves like a freshly started one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from conftest import ROOT
from machinery.harness import warm

REPORT = ROOT / "tools/nsight-report/nsight-report"


@pytest.mark.parametrize("args", [["--version"], ["no-such.nsight"], ["--no-such-option"], ["top", "--help"]])
def test_it_says_and_returns_what_the_launcher_does(args: list[str]) -> None:
    started = subprocess.run([REPORT, *args], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    for _ in range(2):
        done = warm.run(args)
        assert (done.returncode, done.stdout, done.stderr) == (
            started.returncode,
            started.stdout,
            started.stderr,
        )


def test_it_is_where_the_test_is_and_has_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm.run(["--version"])
    (tmp_path / "here.nsight").mkdir()
    (tmp_path / "here.nsight/manifest.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert "here.nsight" in warm.run(["here.nsight"]).stderr
    monkeypatch.chdir("/")
    assert "no such" in warm.run(["here.nsight"]).stderr.lower()


def test_what_takes_too_long_is_ended_and_the_next_one_runs() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        warm.run(["--version"], timeout=0)
    assert warm.run(["--version"]).returncode == 0
