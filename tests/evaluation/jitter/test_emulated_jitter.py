# SPDX-License-Identifier: GPL-2.0-only
"""Causes of jitter that need special hardware are named, from records like those that the recorder writes there."""

from __future__ import annotations

from pathlib import Path

import pytest

from .emulated import CAUSES, write
from .score import EVERY, Cause, score


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_cause_comes_first_and_has_the_extra_time(cause: Cause, tmp_path: Path) -> None:
    found = score(cause, *write(tmp_path, cause, 20 * EVERY), 0)
    assert (found.right, found.n_affected, found.n_slow) == (True, 20, 20), found
    assert found.share is not None and found.share >= 0.95


def test_without_a_cause_no_step_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Cause("nothing", r".*")
    monkeypatch.setitem(CAUSES, nothing, lambda step: None)
    write(tmp_path, nothing, EVERY)  # of another run in the same directory
    found = score(nothing, *write(tmp_path, nothing, 20 * EVERY), 0)
    assert found.first == "-" and found.usual_us == found.slow_us
