# SPDX-License-Identifier: GPL-2.0-only
"""The worked examples of Documentation/api.md, run as written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from machinery.made_up.capture import World, write_capture

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "Documentation/examples/slow_messages.py"
CASE_STUDY = ROOT / "Documentation/examples/case_study.py"


def test_example_prints_causes_cores_and_connections_and_draws(tmp_path: Path) -> None:
    capture = write_capture(tmp_path / "small.nsight")
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(capture), str(tmp_path / "lifetime.png")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tools/nsight-report")},
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert done.stdout.startswith("2000 messages, 20 among the slow messages")
    # 20 messages, (9 * 995 + 9 * 895 + 2 * 795) / 20 = 930 us each, at most 995.
    at = words.index("hog")
    assert words[at : at + 5] == ["hog", "(A)", "20", "930.0", "995.0"]
    assert "message 1800:" in done.stdout or "message 200:" in done.stdout
    assert "985.0" in words  # of the hog's 995 us, less its timer interrupt
    assert (tmp_path / "lifetime.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_case_study_script_draws_every_iteration_and_prints_what_the_reports_say(tmp_path: Path) -> None:
    story, out = tmp_path / "story", tmp_path / "figures"
    story.mkdir()
    write_capture(story / "1-initial.nsight")
    write_capture(story / "2-renamed.nsight", World(hog="other"))
    done = subprocess.run(
        [sys.executable, str(CASE_STUDY), str(story), str(out)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tools/nsight-report")},
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    # 2,000 messages of 10 us; 10 of every 200, except the first 200, wait for the hog: the shares are the report's.
    assert [row[:4] for row in rows] == [
        ["1-initial", "2000", "10.0", "10.0"],
        ["2-renamed", "2000", "10.0", "10.0"],
    ]
    assert "hog (A) 99%" in " ".join(rows[0])
    assert "other (A) 99%" in " ".join(rows[1])
    names = {"tails"} | {
        f"{i}-{what}" for i in ("1-initial", "2-renamed") for what in ("balloons", "causes", "slowest")
    }
    assert {p.name for p in out.iterdir()} == {f"{name}.{kind}" for name in names for kind in ("png", "csv")}
    assert set(pd.read_csv(out / "tails.csv")["capture"]) == {"1-initial", "2-renamed"}


def test_case_study_script_says_what_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(CASE_STUDY), str(tmp_path), str(tmp_path / "x")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tools/nsight-report")},
    )
    assert done.returncode == 1
    assert "make case-study" in done.stderr
