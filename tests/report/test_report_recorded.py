# SPDX-License-Identifier: GPL-2.0-only
"""Comparing two recorded captures with every stage run, because stored tables would hide errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from machinery.pt_emulation.fixtures import decoded

from conftest import skip_or_fail

from .conftest import Run

pytestmark = pytest.mark.tools

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A capture in which one message waited 1.4 ms for a lock, a capture in which no message took 1 ms, and symbols."""
    if not (ROOT / "build/cargo/release/nsight-decode").exists():
        skip_or_fail("decoder", "nsight-decode is not built: make decoder")
    directory = tmp_path_factory.mktemp("recorded")
    lock, quiet = (decoded.decoded(name, directory) for name in ("lock", "quiet"))
    for name, of in (("lock", lock), ("quiet", quiet)):
        (directory / f"{name}.nsight").symlink_to(of / "capture.nsight")
    return directory / "lock.nsight", directory / "quiet.nsight", (lock / "symfs").resolve()


def compared(run: Run, *args: object) -> dict[str, Any]:
    done = run("compare", *args, "--json")
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


@pytest.mark.parametrize("decode", ["all", "chosen"])
def test_a_capture_compared_with_itself_has_not_changed(run: Run, captures: Any, decode: str) -> None:
    # Slow and baseline messages overlap: diagnosed alone, the capture would exclude the messages of one group from the other.
    lock, _, symfs = captures
    slices = ("--slow", "p50-100", "--baseline", "p0-75", "--symfs", symfs, "--decode", decode)
    value = compared(run, lock, lock, *slices)
    assert value["before"]["n_slow"] == value["after"]["n_slow"] > 1
    assert value["causes"]
    assert all(c["before_ns"] == c["after_ns"] for c in value["causes"])


def test_slow_messages_that_only_one_capture_has_says_what_went(run: Run, captures: Any) -> None:
    lock, quiet, symfs = captures
    value = compared(run, lock, quiet, "--slow", "1ms-", "--symfs", symfs)
    assert (value["before"]["n_slow"], value["after"]["n_slow"]) == (1, 0)
    assert value["after"]["n_messages"] > 100
    assert [c["cause"] for c in value["causes"] if c["change"] == "went"] == ["Lock wait (A)"]
    back = compared(run, quiet, lock, "--slow", "1ms-", "--symfs", symfs)
    assert [c["cause"] for c in back["causes"] if c["change"] == "came"] == ["Lock wait (A)"]


def test_slow_messages_that_neither_capture_has_is_an_error(run: Run, captures: Any) -> None:
    lock, quiet, symfs = captures
    done = run("compare", lock, quiet, "--slow", "1s-", "--symfs", symfs)
    assert done.returncode == 3
    error, hint = done.stderr.splitlines()
    assert error == "error: no message of either capture is selected by --slow 1s-"
    assert "--slow" in hint


@pytest.mark.parametrize("decode", ["all", "chosen"])
@pytest.mark.parametrize(
    ("slices", "why"),
    [
        # Section 7.4 of the paper: the same percentiles of both.
        (("--slow", "p25-75", "--baseline", "p25-75"), "the baseline slice p25-75 holds none"),
        (("--slow", "1ms-"), "the slow slice 1ms- holds none"),
    ],
)
def test_page_of_a_comparison_needs_no_diagnosis_of_the_other(
    run: Run, captures: Any, tmp_path: Path, slices: tuple[str, ...], why: str, decode: str
) -> None:
    lock, quiet, symfs = captures
    out = tmp_path / "report"
    done = run(lock, *slices, "--against", quiet, "--symfs", symfs, "--decode", decode, "-o", out)
    assert done.returncode == 0, done.stderr
    page = (out / "report.html").read_text()
    assert '<h2 id="compare">Compare with quiet.nsight</h2>' in page
    assert f"Its own causes are unknown: {why}" in page


def test_a_comparison_made_again_reads_what_is_stored(run: Run, captures: Any) -> None:
    lock, quiet, symfs = captures
    args = ("compare", lock, quiet, "--slow", "p50-100", "--baseline", "p0-75", "--symfs", symfs)
    assert run(*args, "--decode", "chosen").returncode == 0
    tables = [path / "tables" / "stages.json" for path in (lock, quiet)]
    before = [path.read_text() for path in tables]
    assert run(*args, "--decode", "chosen").returncode == 0
    assert [path.read_text() for path in tables] == before
