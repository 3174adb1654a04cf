# SPDX-License-Identifier: GPL-2.0-only
"""Processes that a run left behind are ended and named; processes of others stay."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from machinery.harness import leftovers, notes


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "GRACE_S", 0.2)


@pytest.mark.parametrize("trap", ["true", "trap '' TERM"], ids=["ends by SIGTERM", "ignores SIGTERM"])
def test_a_process_that_a_run_left_is_ended_and_named(tmp_path: Path, no_grace: None, trap: str) -> None:
    def shell(directory: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["sh", "-c", f"{trap}; echo ready; while :; do sleep 0.1; done", "left"],
            env={**os.environ, notes.DIRECTORY: str(directory)}, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    with shell(tmp_path / "one") as left, shell(tmp_path / "one more") as other:
        try:
            for process in (left, other):
                assert process.stdout and process.stdout.readline() == b"ready\n"
            named = leftovers.end(tmp_path / "one")
            assert left.wait(10) < 0
            assert [line for line in named if line.endswith(" left")]
            assert other.poll() is None
        finally:
            left.kill()
            other.kill()


def test_nothing_is_named_where_nothing_was_left(tmp_path: Path, no_grace: None) -> None:
    assert leftovers.end(tmp_path) == []
