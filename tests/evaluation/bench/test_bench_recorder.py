# SPDX-License-Identifier: GPL-2.0-only
"""The arithmetic of bench_recorder.py, and its use of a manifest; nothing is measured."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from conftest import skip_or_fail

sys.path.insert(0, str(Path(__file__).resolve().parent))

import recorders
import soak
from machinery.made_up import record_files as rf
from record_counts import RAWDATA, RecordCounts
from recorder_figures import Goal, figures, latencies_us, median, percentile, ratio, shown
from recorder_servers import CLOSED, OPEN, Servers, Sizes
from recorders import NOTHING, Outcome


def log_of(*rows: tuple[int, int, int, bool]) -> pd.DataFrame:
    """Rows of when a request was due, sent and answered, in us, and whether it counts."""
    frame = pd.DataFrame(rows, columns=["intended_ns", "send_ns", "recv_ns", "counted"])
    frame[["intended_ns", "send_ns", "recv_ns"]] *= 1000
    return frame


def test_latency_begins_when_a_request_was_due_not_when_it_was_sent() -> None:
    log = log_of((0, 0, 90, True), (10, 90, 100, True))
    assert latencies_us(log).tolist() == [90, 90]


def test_warm_up_is_in_no_figure() -> None:
    log = log_of((0, 0, 500, False), (1000, 1000, 1010, True), (1090, 1090, 1100, True))
    found = figures(log)
    assert (found["n"], found["p50"]) == (2, 10)
    assert found["rate"] == pytest.approx(2 / 100e-6)


def test_request_without_an_answer_has_waited_until_the_end_of_the_log() -> None:
    log = log_of((0, 0, 10, True), (20, 20, 0, True), (290, 290, 300, True))
    assert latencies_us(log).tolist() == [10, 10, 280]
    found = figures(log)
    assert found["unanswered"] == 1
    assert found["rate"] == pytest.approx(2 / 300e-6)


def test_percentile_is_the_nearest_rank() -> None:
    # Of 1..1000: half do not exceed 500, 99 % not 990, 99.9 % not 999.
    ordered = np.arange(1.0, 1001)
    assert [percentile(ordered, p) for p in (0.5, 0.99, 0.999)] == [500, 990, 999]


def test_percentile_that_no_request_exceeds_is_none() -> None:
    assert percentile(np.arange(1.0, 1000), 0.999) is None
    assert percentile(np.array([]), 0.5) is None


def test_log_without_a_counted_request_has_no_figures() -> None:
    found = figures(log_of((0, 0, 10, False)))
    assert (found["n"], found["rate"], found["p50"]) == (0, None, None)


def test_ratio_compares_within_a_round() -> None:
    # The machine was half as fast in the second round: the ratios are 0.9, 0.8 and 1.0, although the medians are 80 / 100.
    assert ratio([90, 40, 120], [100, 50, 120]) == 0.9


def test_round_in_which_one_of_two_has_no_figure_is_left_out() -> None:
    assert ratio([90, None, 80], [100, 100, None]) == 0.9
    assert ratio([None], [100]) is None


def test_median_and_range_are_of_rounds_with_a_figure() -> None:
    assert median([3, None, 1]) == 2
    assert shown([1200, None, 800, 900]) == "900 (800-1,200)"
    assert shown([7.5], 1) == "7.5"
    assert shown([None]) == "-"


@pytest.mark.parametrize(
    ("found", "limit", "at_most", "met", "words"),
    [
        (0.93, 0.9, False, True, "at least 0.9; 0.93: met by 0.03"),
        (0.85, 0.9, False, False, "at least 0.9; 0.85: MISSED by 0.05"),
        (1.03, 1.03, True, True, "at most 1.03; 1.03: met by 0"),
        (1.10, 1.05, True, False, "at most 1.05; 1.1: MISSED by 0.05"),
        (None, 1.05, True, False, "at most 1.05; not measured: MISSED"),
    ],
)
def test_goal_says_by_how_much(
    found: float | None, limit: float, at_most: bool, met: bool, words: str
) -> None:
    goal = Goal("it", found, limit, at_most)
    assert (goal.met, str(goal)) == (met, f"it: {words}")


def servers_with(**rates: float) -> Servers:
    """One round of redis in which every load gave each recorder this many requests/s, and its inverse as latency."""
    servers = Servers(Sizes(1, 1, 1), 1, [])
    servers.capacities["redis"] = 1000
    for load in (*CLOSED, *OPEN):
        for name, rate in rates.items():
            row = {"server": "redis", "load": str(load), "round": 1, "recorder": name, "rate": rate}
            servers.rows.append(row | {"p50": 1e6 / rate, "p99.9": 1e7 / rate, "start_s": 0.5, "stop_s": 2.0})
    return servers


def test_goals_are_the_ratios_to_nothing() -> None:
    # 88 of 100: below 0.90 and not below 0.85; latency times 100 / 88, more than 1.03 and 1.05.
    goals = list(servers_with(**{NOTHING: 100, "ours": 88}).goals("redis", "ours"))
    assert [goal.met for goal in goals] == [False, True] * 2 + [False, False] * 3 + [True, False]
    assert goals[0].found == pytest.approx(0.88)


def test_recorder_that_failed_misses_its_goals_and_has_a_row_with_the_reason() -> None:
    servers = servers_with(**{NOTHING: 100})
    servers._recorders["ours"] = None
    servers.failed["ours"] = "no such tracepoint"
    assert not any(goal.met for goal in servers.goals("redis", "ours"))
    rows = [line for line in servers.lines("redis") if line.strip().startswith("ours")]
    assert len(rows) == len(CLOSED + OPEN)
    assert all(line.endswith("no figures: no such tracepoint") for line in rows)


def test_open_loop_lasts_until_it_has_its_requests() -> None:
    sizes = Sizes(5, 3, 10_000)
    # 2 % of 50,000/s are 1,000/s: 10 s. 60 % are 30,000/s: 3 s, the minimum for a load.
    for load, rate, seconds in ((OPEN[0], "1000", "10.00"), (OPEN[2], "30000", "3.00")):
        options = load.options(sizes, 50_000, 7)
        assert options[options.index("-r") + 1] == rate
        assert options[options.index("-d") + 1] == seconds
    assert "-r" not in CLOSED[0].options(sizes, 50_000, 7)


@pytest.mark.parametrize(
    ("manifest", "lost"),
    [
        ({"events": {"produced": {"R": 5, "S": 3}, "written": {"R": 5, "S": 3}}, "losses": []}, 0),
        ({"events": {"produced": {"R": 5, "S": 3}, "written": {"R": 5}}, "losses": []}, 3),
        ({"events": {"produced": 9, "written": 9}, "losses": [{"tool": "perf", "what": "x", "count": 4}]}, 4),
        ({}, 0),
    ],
)
def test_lost_is_what_the_counts_or_the_losses_say(manifest: dict[str, object], lost: int) -> None:
    assert Outcome(0.1, 0.1, manifest).lost == lost


def test_without_the_option_bpftrace_and_perf_are_the_default() -> None:
    new, old = recorders.nsight(chooses=False)
    assert new.missing and not old.missing
    assert "--recorder" not in old.argv(Path("x"), 1, 0)
    new, old = recorders.nsight(chooses=True)
    assert not new.missing and "--recorder" not in new.argv(Path("x"), 1, 0)
    assert old.argv(Path("x"), 1, 0)[-2:] == ["--recorder", "bpftrace"]


def test_tcppktlat_that_is_not_installed_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "find", lambda program: None)
    assert "libbpf-tools" in recorders.others()[0].missing
    assert not recorders.others("/opt/tcppktlat")[0].missing


def test_soak_runs_a_generator_that_is_built() -> None:
    assert soak.BATCH.parents[1].joinpath("batch.c").exists()


@pytest.fixture
def counted(tmp_path: Path) -> RecordCounts:
    """Two switches and a send are in the file of core 0. Programs produced three switches, lost one, and produced two sends."""
    if not RAWDATA.exists():
        skip_or_fail("tools", "nsight-rawdata is not built")
    switches = rf.switch(1000, 1, 2) + rf.switch(2000, 2, 1)
    send = rf.message("S", 3000)
    content = rf.header(0) + rf.block(switches + send, 1_000_000)
    content += rf.counts(1_000_000, {rf.TYPE["SWITCH"]: (3, 1), send[0]: (2, 0)})
    counts = RecordCounts(rf.write(tmp_path, cpu0=content))
    counts.read()
    return counts


def test_soak_names_the_core_and_type_whose_records_are_neither_written_nor_lost(
    counted: RecordCounts, tmp_path: Path
) -> None:
    assert (counted.produced(), counted.lost()) == (5, 1)
    wrong = list(counted.wrong(tmp_path / "decoded"))
    assert wrong[0] == "core 0, message S: 1 neither written nor counted as lost"
    assert "nsight-rawdata: missing_records is 1, not 0" in wrong


def test_soak_compares_the_sends_with_those_of_the_generator(counted: RecordCounts) -> None:
    assert list(counted.wrong_sends(2)) == []
    assert list(counted.wrong_sends(3)) == ["2 sends were produced, the generator sent 3"]


def test_soak_follows_files_while_they_grow_and_says_which_have_no_end(tmp_path: Path) -> None:
    records = rf.write(tmp_path, cpu0=rf.header(0) + rf.block(rf.switch(1000, 1, 2), 1_000_000))
    counts = RecordCounts(records)
    counts.read()
    assert counts.produced() == 0
    with open(records / "cpu-0.records", "ab") as file:
        file.write(rf.counts(1_000_000, {rf.TYPE["SWITCH"]: (1, 0)}, kind=rf.COUNTS))
    counts.read()
    assert counts.produced() == 1
    assert next(counts.wrong(tmp_path / "decoded")) == "cpu-0.records: no counts at the end"
