# SPDX-License-Identifier: GPL-2.0-only
"""A stored table is stale if any code that made it has changed, and only then."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from nsight_report import code, stages

PACKAGE = Path(code.__file__).parent


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package that may be edited."""
    copy = tmp_path / "nsight_report"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "bin"))
    monkeypatch.setattr(code, "_PACKAGE", copy)
    return copy


def stale(package: Path, edited: str) -> set[str]:
    """Directories of the stages whose identity changes with that file."""
    found = set()
    for path in sorted(package.glob("*/stage.py")):
        code._content.cache_clear()
        before = code.identity(path)
        text = (package / edited).read_bytes()
        (package / edited).write_bytes(text + b"\n")
        code._content.cache_clear()
        if code.identity(path) != before:
            found.add(path.parent.name)
        (package / edited).write_bytes(text)
    code._content.cache_clear()
    return found


EVERY = {
    "clocks",
    "capture",
    "lifetimes",
    "requests",
    "calls",
    "anomalies",
    "attribution",
    "queuing",
    "cores",
}


@pytest.mark.parametrize(
    ("edited", "expected"),
    [
        ("stage.py", EVERY),
        ("tables/store.py", EVERY),
        ("losses.py", EVERY),
        ("clocks/convert.py", {"clocks", "capture", "lifetimes", "calls", "anomalies", "queuing", "cores"}),
        ("capture/check.py", {"anomalies"}),
        ("attribution/categories.csv", {"attribution", "queuing", "cores"}),
        ("queuing/depth.py", {"queuing"}),
        ("requests/exchanges.py", {"requests"}),
        # Not the stage for what cores did, which takes longest to run.
        ("timeline/exposure.py", {"anomalies", "queuing"}),
        ("anomalies/find.py", {"anomalies"}),
        ("plots/cdf.py", set()),
        ("summary.py", set()),
        ("cli.py", set()),
    ],
)
def test_an_edit_makes_stale_what_it_changes_and_nothing_else(
    package: Path, edited: str, expected: set[str]
) -> None:
    assert stale(package, edited) == expected


def test_a_native_program_is_part_of_its_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "_NATIVE", tmp_path)
    module = PACKAGE / "lifetimes/stage.py"
    missing = code.identity(module, ["nsight-framing"])
    (tmp_path / "nsight-framing").write_bytes(b"built")
    code._content.cache_clear()
    assert code.identity(module, ["nsight-framing"]) != missing
    code._content.cache_clear()


def test_every_stage_of_a_package_is_registered() -> None:
    modules = {f"nsight_report.{path.parent.name}.stage" for path in PACKAGE.glob("*/stage.py")}
    assert {stage.run.__module__ for stage in stages.STAGES} == modules


def test_every_stage_comes_behind_those_that_it_needs() -> None:
    seen: set[str] = set()
    for stage in stages.STAGES:
        assert seen.issuperset(stage.needs)
        seen.add(stage.name)
