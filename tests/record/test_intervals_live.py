# SPDX-License-Identifier: GPL-2.0-only
"""Intervals between a program's marks on the running kernel: each is recorded once, at the times of the program's own clock."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import nsight_report
import numpy as np
import pandas as pd
import pytest
from recorder_run import END_S, RECORDER, manifest, require_live

from conftest import ROOT, skip_or_fail

pytestmark = pytest.mark.live

N_STEPS = 400
SLEEP_NS = 3_000_000


def compiled(source: str, directory: Path) -> Path:
    if not shutil.which("gcc"):
        skip_or_fail("compiler", "gcc is not installed")
    path = directory / source.removeprefix("interval_").removesuffix(".c")
    include = ROOT / "tools/nsight-interval"
    file = Path(__file__).with_name(source)
    subprocess.run(
        ["gcc", "-D_GNU_SOURCE", "-O2", "-Wall", "-Werror", "-I", include, file, "-o", path, "-pthread"],
        check=True,
    )
    return path


def record(capture: Path, intervals: list[str], *command: str | Path) -> list[list[int]]:
    """Record a program's intervals; the lines of numbers that it printed."""
    require_live()
    options = [word for interval in intervals for word in ("--interval", interval)]
    done = subprocess.run(
        [RECORDER, "--recorder", "bpf", "--mode", "tracepoints", "-o", capture, *options, "--", *command],
        capture_output=True, text=True, timeout=END_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return [[int(word) for word in line] for line in lines if line and all(word.isdecimal() for word in line)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("interval_steps.c", tmp_path_factory.mktemp("steps"))


@pytest.fixture(scope="module")
def recorded(program: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A capture of the program's steps by marks and by functions, and what the program printed about them."""
    capture = tmp_path_factory.mktemp("recorded") / "steps.nsight"
    marks = [
        f"usdt:{program}:nsight:step_begin..step_end",
        f"work=uprobe:{program}:work_begins..work_ends",
    ]
    said = record(capture, marks, program, str(N_STEPS))
    return capture, np.array([line for line in said if len(line) == 6], np.int64)


def rows(capture: Path, name: str, **options: str) -> np.ndarray:
    """tid, first_ns, last_ns of every interval with one name, sorted by these columns."""
    opened = nsight_report.open(capture, direction="interval", slow="2ms-", baseline="p0-50", **options)
    frame = opened.messages
    frame = frame[(frame["request_type"] == name).to_numpy(bool)]
    assert (frame["comm"] == "steps").all()
    assert (frame["app_cpu"] >= 0).all()
    return frame[["tid", "first_ns", "last_ns"]].sort_values(["tid", "first_ns"]).to_numpy(np.int64)


def intervals(capture: Path) -> pd.DataFrame:
    """The messages that are intervals; the capture also has messages of other programs on the machine."""
    frame = nsight_report.open(capture, direction="interval").messages
    return frame[(frame["direction"] == "interval").to_numpy(bool)]


def losses(capture: Path) -> dict[str, int]:
    """The loss counts, once the messages were computed."""
    opened = nsight_report.open(capture, direction="interval")
    assert len(opened.messages)
    return {row["key"]: row["count"] for row in opened.pipeline.losses().to_pylist()}


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
    counted = losses(capture)
    assert manifest(capture)["records"]["lost"] == 0
    keys = ("interval_begun_again", "interval_end_alone", "interval_not_ended")
    assert [counted[key] for key in keys] == [1, 1, 1]


def test_a_step_that_slept_is_explained_by_its_sleep(recorded: tuple[Path, np.ndarray]) -> None:
    """The length of the sleep is certain: nanosleep never returns early. Other causes may add to it."""
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


N_ORDERS = 2000


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """Orders that one thread begins and another one ends, four at a time, and what the program printed about them."""
    directory = tmp_path_factory.mktemp("orders")
    program = compiled("interval_orders.c", directory)
    marks = [
        f"usdt:{program}:nsight:order_begin..order_queued..order_end,arg0",
        f"f=uprobe:{program}:order_made..order_done,arg1..arg0",
        f"by_thread=usdt:{program}:nsight:order_begin..order_end",
    ]
    said = record(directory / "orders.nsight", marks, program, str(N_ORDERS))
    return directory / "orders.nsight", np.array([line for line in said if len(line) == 9], np.int64)


def test_a_key_pairs_what_overlaps_and_is_ended_by_another_thread(orders: tuple[Path, np.ndarray]) -> None:
    capture, said = orders
    frame = intervals(capture)
    frame = frame[["request_type", "tid", "begin_tid", "first_ns", "handoff_ns", "last_ns", "recv_cpu"]]
    by_mark = frame[(frame["request_type"] == "order").to_numpy(bool)].sort_values("first_ns")
    assert by_mark["begin_tid"].tolist() == said[:, 1].tolist()
    assert by_mark["tid"].tolist() == said[:, 2].tolist()
    assert (by_mark["recv_cpu"] >= 0).all()
    # Alternately before and after begin, hand-over and end.
    for of, before in (("first_ns", 3), ("handoff_ns", 5), ("last_ns", 7)):
        at = by_mark[of].to_numpy(np.int64)
        assert ((said[:, before] <= at) & (at <= said[:, before + 1])).all(), of
    by_function = frame[(frame["request_type"] == "f").to_numpy(bool)].sort_values("first_ns")
    assert len(by_function) == N_ORDERS
    assert ((said[:, 4] <= by_function["first_ns"]) & (by_function["first_ns"] <= said[:, 5])).all()
    assert by_function["handoff_ns"].isna().all()
    # Only the first thread both begins and ends orders, with two keys; no other thread that begins an order ends one.
    assert (frame["request_type"] == "by_thread").sum() == 1


def test_keys_without_a_partner_are_counted(orders: tuple[Path, np.ndarray]) -> None:
    capture, _ = orders
    counts = [
        [of[what] for what in ("begun", "again", "alone", "unpaired")]
        for of in manifest(capture)["intervals"]
    ]
    assert counts[:2] == [[N_ORDERS + 2, 1, 1, 0], [N_ORDERS, 0, 0, 0]]
    assert [counts[2][0], counts[2][3]] == [N_ORDERS + 2, 0]
    counted = losses(capture)
    assert counted["interval_handover_unknown"] == N_ORDERS  # the intervals between functions


def test_a_key_that_its_mark_does_not_have_pairs_nothing_and_is_counted(
    program: Path, tmp_path: Path
) -> None:
    record(tmp_path / "x.nsight", [f"usdt:{program}:nsight:step_begin..step_end,arg3"], program, "10")
    (counts,) = manifest(tmp_path / "x.nsight")["intervals"]
    assert (counts["begun"], counts["unpaired"]) == (0, 2 * 2 * 10 + 3)


def test_a_timer_s_interval_is_from_when_it_was_due_to_when_its_thread_ran(tmp_path: Path) -> None:
    """As in cyclictest: the program prints when each of its wake-ups was due, and its clock after the wake-up."""
    # No other program has threads of this name, and the name is not a PID.
    program = compiled("interval_wakes.c", tmp_path).rename(tmp_path / f"3wakes{os.getpid()}")
    said = record(tmp_path / "x.nsight", [f"timer:{program.name}"], program, "300")
    assert len(said) == 300
    frame = intervals(tmp_path / "x.nsight")
    frame = frame.sort_values("first_ns")
    due, after = np.array(said, np.int64).T
    # Every wake-up by a timer; a wake-up needs no timer if its time had passed when it was requested.
    assert np.isin(frame["first_ns"], due).all()
    place = np.searchsorted(due, frame["first_ns"])
    assert len(np.unique(place)) == len(frame)
    assert (frame["last_ns"] <= after[place]).all()
    (counts,) = manifest(tmp_path / "x.nsight")["intervals"]
    assert counts["begun"] - counts["again"] == len(frame)
    late = np.setdiff1d(np.arange(300), place)
    assert (after[late] - due[late] > 0).all()
    assert len(late) < 150
