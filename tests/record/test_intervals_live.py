# SPDX-License-Identifier: GPL-2.0-only
"""Intervals between marks of a program on the running kernel: each is recorded once, at the times that the program's own clock says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import nsight_report
import numpy as np
import pytest
from recorder_run import END_S, RECORDER, manifest, require_live

from conftest import ROOT, skip_or_fail

pytestmark = pytest.mark.live

N_STEPS = 400
SLEEP_NS = 3_000_000


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("gcc"):
        skip_or_fail("compiler", "gcc is not installed")
    path = tmp_path_factory.mktemp("steps") / "steps"
    source = Path(__file__).with_name("interval_steps.c")
    include = ROOT / "tools/nsight-interval"
    subprocess.run(
        ["gcc", "-O2", "-Wall", "-Werror", "-I", include, source, "-o", path, "-pthread"], check=True
    )
    return path


@pytest.fixture(scope="module")
def recorded(program: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A capture of the program's steps by marks and by functions, and what the program said of them."""
    require_live()
    capture = tmp_path_factory.mktemp("recorded") / "steps.nsight"
    marks = [
        f"usdt:{program}:nsight:step_begin..step_end",
        f"work=uprobe:{program}:work_begins..work_ends",
    ]
    options = [word for mark in marks for word in ("--interval", mark)]
    done = subprocess.run(
        [RECORDER, "--recorder", "bpf", "--mode", "tracepoints", "-o", capture, *options, "--", program, str(N_STEPS)],
        capture_output=True, text=True, timeout=END_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = [line.split() for line in done.stdout.splitlines()]
    return capture, np.array([line for line in said if len(line) == 6 and line[0].isdecimal()], np.int64)


def rows(capture: Path, name: str, **options: str) -> np.ndarray:
    """tid, first_ns, last_ns of every interval of one name, in order of these."""
    opened = nsight_report.open(capture, direction="interval", slow="2ms-", baseline="p0-50", **options)
    frame = opened.messages
    frame = frame[(frame["request_type"] == name).to_numpy(bool)]
    assert (frame["comm"] == "steps").all()
    assert (frame["app_cpu"] >= 0).all()
    return frame[["tid", "first_ns", "last_ns"]].sort_values(["tid", "first_ns"]).to_numpy(np.int64)


def test_every_interval_is_there_once_within_what_the_programs_clock_said(
    recorded: tuple[Path, np.ndarray],
) -> None:
    capture, said = recorded
    assert len(said) == 2 * N_STEPS
    said = said[np.lexsort((said[:, 2], said[:, 1]))]
    found = rows(capture, "step")
    assert found[:, 0].tolist() == said[:, 1].tolist()
    assert ((said[:, 2] <= found[:, 1]) & (found[:, 1] <= said[:, 3])).all()
    assert ((said[:, 4] <= found[:, 2]) & (found[:, 2] <= said[:, 5])).all()


def test_intervals_between_functions_lie_within_those_between_marks(
    recorded: tuple[Path, np.ndarray],
) -> None:
    capture, _ = recorded
    outer, inner = rows(capture, "step"), rows(capture, "work")
    assert inner[:, 0].tolist() == outer[:, 0].tolist()
    assert ((outer[:, 1] < inner[:, 1]) & (inner[:, 2] < outer[:, 2])).all()


def test_begins_and_ends_without_a_partner_are_counted(recorded: tuple[Path, np.ndarray]) -> None:
    capture, _ = recorded
    step, work = manifest(capture)["intervals"]
    assert [step[what] for what in ("name", "begun", "again", "alone")] == ["step", 2 * N_STEPS + 2, 1, 1]
    assert [work[what] for what in ("name", "begun", "again", "alone")] == ["work", 2 * N_STEPS, 0, 0]
    losses = nsight_report.open(capture, direction="interval").losses
    counted = dict(zip(losses["key"].astype(str), losses["count"], strict=True))
    assert manifest(capture)["records"]["lost"] == 0
    keys = ("interval_begun_again", "interval_end_alone", "interval_not_ended")
    assert [counted[key] for key in keys] == [1, 1, 1]


def test_a_step_that_slept_is_explained_by_its_sleep(recorded: tuple[Path, np.ndarray]) -> None:
    """That it slept so long is certain: nanosleep never returns early. Other causes may come on top."""
    capture, said = recorded
    opened = nsight_report.open(capture, direction="interval", slow="2ms-", baseline="p0-50")
    rested = opened.anomalies
    rested = rested[(rested["subject"].astype(str) == "sleeping in clock_nanosleep").to_numpy(bool)]
    slept = opened.messages.set_index("message_id").loc[rested["message_id"].to_numpy(np.int64)]
    steps = slept[(slept["request_type"] == "step").to_numpy(bool)]
    assert len(steps) == np.count_nonzero(said[:, 0] % 8 == 7)
    assert (rested["took_ns"] > SLEEP_NS * 0.9).all()


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        ("usdt:{}:nsight:step_begin..step_done", "no probe at nsight:step_done: No such file or directory"),
        ("uprobe:{}:work_begins..nothing", "no probe at nothing: No such file or directory"),
        ("usdt:{}:step_begin", "not understood"),
        ("usdt:{}.gone:nsight:a..b", "no such program or library"),
        ("mark:{}:a..b", "not understood"),
    ],
)
def test_a_mark_that_is_not_there_is_an_error_that_names_it(
    program: Path, tmp_path: Path, mark: str, says: str
) -> None:
    require_live()
    done = subprocess.run(
        [RECORDER, "--recorder", "bpf", "-o", tmp_path / "x.nsight", "-d", "1", "--interval", mark.format(program)],
        capture_output=True, text=True, timeout=END_S,
    )  # fmt: skip
    assert done.returncode in (2, 5), done.stderr
    assert says in done.stderr
    assert "hint: " in done.stderr
