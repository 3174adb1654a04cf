# SPDX-License-Identifier: GPL-2.0-only
"""What is reported about a recording before it is diagnosed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from machinery.testbed.injections import NO_INTERVALS, Injection, Quota
from machinery.testbed.quota import Group

from evaluation.truth import measure
from evaluation.truth.measure import Recording, Run
from evaluation.truth.scenarios import SCENARIOS, Scenario
from evaluation.truth.score import Score, score

HEAD = (
    "#nsight-load 1 clock=monotonic proto=http server=198.18.77.1 port=80\n"
    "number\tconn\tlport\tintended_ns\tsend_ns\trecv_ns\tbyte_start\tnbytes\tresponse_bytes\tkind\tcounted\n"
)


def recording(directory: Path, received: list[int]) -> Recording:
    rows = "".join(f"{n}\t0\t40000\t{n}\t{n}\t{at}\t0\t58\t0\tGET\t1\n" for n, at in enumerate(received))
    (directory / "load.tsv").write_text(f"{HEAD}{rows}#end\n")
    return Recording(SCENARIOS[0], directory, 80, NO_INTERVALS, None, 5.3, 0)


def test_a_server_that_answered_nothing_is_told_by_the_clients_log(tmp_path: Path) -> None:
    said = "the server answered none of the client's 3 requests in 5.3 s"
    assert recording(tmp_path, [0, 0, 0]).unanswered() == said
    assert recording(tmp_path, [0, 12, 0]).unanswered() == ""


QUOTA = next(s for s in SCENARIOS if s.name == "CPU quota used up")


def ran(directory: Path, n_throttled: int) -> Recording:
    """A run in which the kernel throttled the control group so many times."""
    injection = Injection()
    injection.witness = {"nr_throttled": n_throttled, "throttled_usec": 9_000 * n_throttled}
    injection.acted = n_throttled > 0
    return measure.with_truth(QUOTA, injection, directory, 80, 3.0, 0)


def scored(scenario: Scenario, *causes: tuple[str, str]) -> Score:
    """Score of a report that names these causes, for one slow message."""
    named: list[dict[str, Any]] = [
        {
            "cause": f"{category} ({side})",
            "category": category,
            "total_deviation_ns": 10**9,
            "n_messages": 20,
            "median_deviation_ns": 10**7,
        }
        for category, side in causes
    ]
    messages = pd.DataFrame(
        {"message_id": [1], "rport": [2], "first_ns": [0], "handoff_ns": [0], "last_ns": [10**7]}
    )
    anomalies = pd.DataFrame(
        {
            "message_id": [1] * len(causes),
            "category": [c for c, _ in causes],
            "side": [s for _, s in causes],
            "deviation_ns": [10**7] * len(causes),
            "took_ns": [10**7] * len(causes),
        }
    )
    coverage = pd.DataFrame({"message_id": [1], "deviation_ns": [10**7]})
    summary = {"causes": named, "coverage": {"median": 1.0, "min": 1.0}}
    load = pd.DataFrame({"kind": ["get"]})
    return score(Run(scenario, summary, messages, anomalies, coverage, load, NO_INTERVALS, None, 3.0, 0))


@pytest.mark.parametrize(("n_throttled", "is_control"), [(0, True), (1, False)])
def test_a_quota_that_was_never_used_up_makes_a_control_before_anything_is_diagnosed(
    tmp_path: Path, n_throttled: int, is_control: bool
) -> None:
    recording = ran(tmp_path, n_throttled)
    assert (recording.scenario.causes == ()) == is_control
    # The truth lies beside the run; no report exists yet.
    told = json.loads((tmp_path / "witness.json").read_text())
    assert told == {
        "acted": not is_control,
        "nr_throttled": n_throttled,
        "throttled_usec": 9_000 * n_throttled,
    }


def test_a_control_of_the_quota_is_wrong_as_soon_as_the_quota_is_named(tmp_path: Path) -> None:
    control = ran(tmp_path, 0).scenario
    assert scored(control, ("hog", "A")).right  # it shares the core, throttled or not
    assert "as the scenario that was meant, this run is wrong" in scored(control, ("hog", "A")).note
    assert scored(control, ("python3", "A")).right
    assert not scored(control, ("hog", "A"), ("CPU quota", "A")).right
    assert not scored(control, ("Head-of-line blocking", "A")).right


def test_where_the_quota_was_used_up_another_cause_is_wrong(tmp_path: Path) -> None:
    used_up = ran(tmp_path, 3).scenario
    assert scored(used_up, ("CPU quota", "A")).right
    assert not scored(used_up, ("hog", "A")).right


@pytest.mark.parametrize(
    "stat",
    [
        "nr_periods 9\nnr_throttled 4\nthrottled_time 5000000\n",
        "usage_usec 7\nnr_periods 9\nnr_throttled 4\nthrottled_usec 5000\n",
    ],
    ids=["version 1", "version 2"],
)
def test_counts_of_both_versions_of_control_groups(tmp_path: Path, stat: str) -> None:
    (tmp_path / "cpu.stat").write_text(stat)
    assert Group(tmp_path, tmp_path).counts() == {"nr_throttled": 4, "throttled_usec": 5000}


@pytest.mark.parametrize("grows_by", [0, 2])
def test_the_injection_asks_its_own_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grows_by: int
) -> None:
    """Counts of other groups, and those before the injection, say nothing."""
    counts = [{"nr_throttled": 5, "throttled_usec": 50}, {"nr_throttled": 5 + grows_by, "throttled_usec": 90}]
    monkeypatch.setattr(Group, "counts", lambda _: counts.pop(0))
    monkeypatch.setattr(Group, "throttled_ns", lambda _: 0)
    monkeypatch.setattr(Group, "add", lambda *_: None)
    monkeypatch.setattr("machinery.testbed.quota.quota", lambda *_: own_group(tmp_path))
    process = SimpleNamespace(pid=1, check_alive=list, signal=lambda _: None, wait=list)
    bed: Any = SimpleNamespace(directory=tmp_path, start=lambda *_, **__: process)
    server: Any = SimpleNamespace(serving_pid=2)
    injection = Quota(1, [])
    with injection.active(bed, server):
        pass
    assert injection.witness == {"nr_throttled": grows_by, "throttled_usec": 40}
    assert injection.acted == bool(grows_by)


@contextlib.contextmanager
def own_group(directory: Path) -> Iterator[Group]:
    """A group that exists only here."""
    yield Group(directory, directory)
