# SPDX-License-Identifier: GPL-2.0-only
"""Each fuzz target runs the committed inputs and a fixed number of new ones; and a finding is recognized."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import skip_or_fail
from fuzz import session, targets
from fuzz.targets import Target

pytestmark = pytest.mark.tools

#: Number of new inputs for each target, from one seed, the same on every machine: some seconds each.
N_RUNS = {"native": 2_000, "decode": 500, "readers": 100}
#: Of a target that only refuses its inputs: some ten.
LEAST_EDGES = 50
#: A corpus is a starting point, not a store for the results of a long run.
MOST_FILES, MOST_BYTES = 24, 64 * 1024


def _program(target: Target) -> Target:
    if not target.program.exists():
        skip_or_fail(f"fuzz-{target.group}", f"{target.label} is not built: make fuzzers")
    return target


@pytest.mark.parametrize("target", targets.every(), ids=lambda t: t.label)
def test_corpora_and_new_inputs_are_read_or_refused(target: Target, tmp_path: Path) -> None:
    n_runs = N_RUNS[target.group]
    result = session.fuzz(_program(target), tmp_path, [f"-runs={n_runs}", "-seed=1"], 300)
    assert result.passed, result.log[-4000:]
    assert result.executions >= n_runs
    assert result.edges > LEAST_EDGES, "it reads nothing"


@pytest.mark.parametrize("target", targets.every(), ids=lambda t: t.label)
def test_corpora_are_small(target: Target) -> None:
    sizes = [path.stat().st_size for path in target.corpus.iterdir()]
    assert 1 <= len(sizes) <= MOST_FILES
    assert sum(sizes) <= MOST_BYTES
    assert max(sizes) <= target.max_len


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], Target]:
    """A target that is this shell program; with its limit in s."""
    monkeypatch.setattr(targets, "BIN", tmp_path)

    def made(text: str, timeout: int) -> Target:
        target = Target("native", "fake", 10, 100, timeout, "nothing")
        target.program.write_text(f"#!/bin/sh\n{text}\n")
        target.program.chmod(0o755)
        return target

    return made


def test_what_a_target_stops_at_is_a_finding(fake: Callable[[str, int], Target], tmp_path: Path) -> None:
    """A program that speaks as libFuzzer does when an input crashes it."""
    stops = (
        'for o; do case $o in -artifact_prefix=*) echo bad > "${o#*=}crash-1";; esac; done\n'
        'printf "#12\\tNEW    cov: 34 ft: 5\\nstat::peak_rss_mb:  7\\n"; exit 77'
    )
    found = session._run(fake(stops, 1), [], 10, tmp_path)
    assert not found.passed
    assert [p.name for p in found.findings] == ["crash-1"]
    assert (found.executions, found.edges, found.peak_mb) == (12, 34, 7)


def test_a_target_that_hangs_is_ended_and_told(
    fake: Callable[[str, int], Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "GRACE_S", 1)
    assert not session._run(fake("exec sleep 100", 0), [], 0, tmp_path).passed


def test_memory_of_who_starts_a_target_is_not_the_targets(tmp_path: Path) -> None:
    target = _program(next(t for t in targets.of_group("native") if t.name == "contexts"))
    touched = b"x" * ((target.memory + 100) << 20)
    del touched
    result = session.fuzz(target, tmp_path, ["-runs=10", "-seed=1"], 60)
    assert result.passed, result.log[-2000:]
    assert result.peak_mb < target.memory
