# SPDX-License-Identifier: GPL-2.0-only
"""Requests of the committed emulated captures: their causes are named from arrival to reply, and controls are silent."""

from __future__ import annotations

from pathlib import Path

import pytest
from machinery.pt_emulation.fixtures import decoded

from conftest import ROOT, skip_or_fail
from evaluation.requests import emulated
from evaluation.truth import table

pytestmark = pytest.mark.tools


def score(name: str, work: Path) -> table.Row:
    if not (ROOT / "build/cargo/release/nsight-decode").exists():
        skip_or_fail("decoder", "nsight-decode is not built: make decoder")
    row = emulated.score(decoded.decoded(name, work), work / "tables")
    print("\n".join(table.lines([row])))
    assert row.coverage_min is not None and row.coverage_min >= 0.9
    return row


@pytest.mark.parametrize("name", ["logged-hog", "logged-lock", "logged-slow-function"])
def test_cause_that_the_log_shows_is_named(name: str, tmp_path: Path) -> None:
    """A lock that is waited for after the read, and a function that is slow after it, among them."""
    row = score(name, tmp_path)
    assert row.n_top >= 4
    assert row.top == 1.0, row.wrong


@pytest.mark.parametrize("name", ["quiet", "overflow"])
def test_control_is_silent(name: str, tmp_path: Path) -> None:
    assert score(name, tmp_path).alarms == []
