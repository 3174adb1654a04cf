# SPDX-License-Identifier: GPL-2.0-only
"""perf lists, reports and records with the wrappers when PERF_EXEC_PATH names perf-scripts/."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from perf_scripts import runs

pytestmark = pytest.mark.tools

ENV = {**os.environ, "PERF_EXEC_PATH": str(runs.SCRIPTS)}
DEVICE = Path("/sys/bus/event_source/devices/intel_pt")


def test_perf_lists_the_script():
    done = runs.perf("script", "--list", env=ENV)
    (line,) = [line for line in done.stdout.splitlines() if line.split()[:1] == ["nsight"]]
    assert "calls and returns of Intel PT" in line


def test_report_asks_for_everything_itself(captures, tmp_path):
    # No --itrace here: errors and the frequency come along, in one pass.
    arguments = [*runs.inputs(captures["overflow"]), "--", "-o", str(tmp_path / "out")]
    done = runs.perf("script", "report", "nsight", *arguments, env=ENV)
    assert done.returncode == 0, done.stderr
    stream = runs.read_stream(tmp_path / "out")
    assert len(stream.codes(runs.OVERFLOW)) == 1
    assert stream.codes(runs.CBR)
    assert done.stdout.splitlines()[:-2] == runs.by_script(captures["overflow"]).stdout.splitlines()


def test_report_takes_options_of_perf_and_its_own(captures):
    arguments = [*runs.inputs(captures["lock"]), "--itrace=cr", "--", "--top", "1"]
    done = runs.perf("script", "report", "nsight", *arguments, env=ENV)
    assert done.stdout == runs.by_script(captures["lock"], "--top", "1").stdout


def test_record_asks_perf_for_the_right_things(tmp_path):
    # A perf that only prints how it was called, and a wrapper that finds Intel PT in a test directory.
    (tmp_path / "perf").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "perf").chmod(0o755)
    (tmp_path / "pt/caps").mkdir(parents=True)
    (tmp_path / "pt/caps/psb_cyc").write_text("1\n")
    text = (runs.SCRIPTS / "bin/nsight-record").read_text()
    assert text.count(str(DEVICE)) == 1
    (tmp_path / "record").write_text(text.replace(str(DEVICE), str(tmp_path / "pt")))

    def called(*arguments: str) -> str:
        argv = ["sh", str(tmp_path / "record"), *arguments]
        env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.strip()

    assert called("-a", "sleep", "1") == "record --kcore --switch-events -e intel_pt/cyc=1/ -a sleep 1"
    # As in live mode, in which perf passes its data through a pipe.
    assert called("-a", "-q", "-o", "-") == "record --switch-events -e intel_pt/cyc=1/ -a -q -o -"
    (tmp_path / "pt/caps/psb_cyc").write_text("0\n")
    assert called("-a") == "record --kcore --switch-events -e intel_pt// -a"


def test_record_names_the_fix_where_there_is_no_intel_pt(tmp_path):
    text = (runs.SCRIPTS / "bin/nsight-record").read_text()
    (tmp_path / "record").write_text(text.replace(str(DEVICE), str(tmp_path / "none")))
    done = subprocess.run(["sh", str(tmp_path / "record"), "true"], capture_output=True, text=True)
    assert done.returncode == 3
    assert "error: this machine has no Intel PT" in done.stderr
    assert "hint: " in done.stderr
