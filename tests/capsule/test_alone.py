# SPDX-License-Identifier: GPL-2.0-only
"""The machine's lock of nsight-capsule."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from nsight_capsule import alone
from nsight_record.errors import Missing


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """A lock that another process has for three seconds: longer than one that ends takes to unlock."""
    path = tmp_path / "lock"
    path.touch()
    with subprocess.Popen(["flock", path, "sleep", "3"]):
        while subprocess.run(["flock", "-n", path, "true"], check=False).returncode == 0:
            pass
        yield path


def test_the_lock_of_one_that_was_killed_is_waited_for(held: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    held.write_text(f"{ended.pid}\n")
    with alone.taken(held):
        assert subprocess.run(["flock", "-n", held, "true"], check=False).returncode == 1


def test_the_lock_of_one_that_lives_is_refused(held: Path) -> None:
    with subprocess.Popen(["sleep", "100"]) as living:
        held.write_text(f"{living.pid}\n")
        with pytest.raises(Missing, match=f"process {living.pid}"):
            alone.taken(held)
        living.kill()
