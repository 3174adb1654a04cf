# SPDX-License-Identifier: GPL-2.0-only
"""Shared tables are fresh in every copy, but only for the code that made them."""

from __future__ import annotations

import json
from pathlib import Path

import nsight_report
import pytest

from conftest import ROOT, skip_or_fail
from machinery.pt_emulation.fixtures import decoded

pytestmark = pytest.mark.tools


@pytest.fixture(autouse=True)
def decoder() -> None:
    if not (ROOT / "build/cargo/release/nsight-decode").exists():
        skip_or_fail("decoder", "nsight-decode is not built: make decoder")


def runs(capture: Path) -> dict[str, str]:
    """By stage: the run that its tables are from."""
    stages = json.loads((capture / "tables/stages.json").read_text())
    return {name: stage["run"] for name, stage in stages.items()}


def test_a_copy_has_tables_of_one_decoding_that_count_as_fresh(tmp_path: Path) -> None:
    copies = [decoded.decoded("quiet", tmp_path / name) for name in "ab"]
    first, second = (runs(copy / "capture.nsight") for copy in copies)
    assert first == second
    assert "contexts" in first
    symfs = (copies[1] / "symfs").resolve()
    assert nsight_report.open(copies[1] / "capture.nsight", symfs=str(symfs)).pipeline.run() == []
    (copies[0] / "capture.nsight/tables/calls.parquet").write_bytes(b"changed")
    assert (copies[1] / "capture.nsight/tables/calls.parquet").stat().st_size > 1000


def test_other_code_is_not_given_tables_of_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded, "CACHE", tmp_path / "cache")
    before = runs(decoded.decoded("quiet", tmp_path / "a") / "capture.nsight")
    monkeypatch.setattr(decoded, "_code", lambda: "another")
    after = runs(decoded.decoded("quiet", tmp_path / "b") / "capture.nsight")
    assert not set(before.values()) & set(after.values())
    assert len(list((tmp_path / "cache").iterdir())) == 1
