# SPDX-License-Identifier: GPL-2.0-only
"""The live truth suite under pytest: some scenarios, drawn by the run's seed, each recorded once.

The tests assert what is certain: every scenario is recorded and diagnosed, and messages are exactly the client's requests.
Which cause is named is measured on a live machine: those answers go to harness/judged.py. ``make truth`` runs all
scenarios and checks the goals.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from machinery.harness.judged import judge

from conftest import skip_or_fail

pytestmark = [pytest.mark.live, pytest.mark.alone, pytest.mark.slow]
FAMILY = "truth"
N_SCENARIOS = 6
#: Means over the injections of affected messages, as they were checked before answers were judged one by one.
FLOORS = {"precision": 0.75, "recall": 0.85}


@pytest.fixture(scope="module")
def truth(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """score.json of one run of a sample."""
    if os.geteuid() != 0:
        skip_or_fail("root", "recording needs root")
    out = tmp_path_factory.mktemp("truth")
    seed = request.config.getoption("randomly_seed", 0)
    argv = [sys.executable, str(Path(__file__).with_name("run.py")), "-o", str(out)]
    argv += ["--sample", str(N_SCENARIOS), "--seed", str(seed)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True)
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\n" + done.stdout, flush=True)
    return dict(json.loads((out / "score.json").read_text()))


def label(score: dict[str, Any]) -> str:
    return f"{score['scenario']} / {score['server']}"


def never_acted(truth: dict[str, Any]) -> list[dict[str, Any]]:
    """Controls because the kernel counted no throttled period of their group."""
    return [s for s in truth["scores"] if not s["expected"] and s["witness"].get("nr_throttled") == 0]


def test_every_scenario_ran(truth: dict[str, Any]) -> None:
    assert truth["failed"] == {}
    assert len(truth["scores"]) + len(truth["unanswered"]) == truth["planned"] == N_SCENARIOS
    # A busy host may keep one server off its core; a recorder that stops servers is not chance.
    assert len(truth["unanswered"]) <= 1
    for name, why in truth["unanswered"].items():
        judge(FAMILY, name, False, why)


def test_injected_causes_are_judged(truth: dict[str, Any]) -> None:
    injected = [s for s in truth["scores"] if s["expected"]]
    assert len(injected) >= N_SCENARIOS - 1 - len(truth["unanswered"]) - len(never_acted(truth))
    for s in injected:
        met = f"{s['n_affected']} of {s['n_slow']} met by the injection, host absent for {s['stolen_ms']} ms"
        judge(FAMILY, label(s), s["right_of_affected"], f"{s['top_cause']} ({s['top_share']:.0%}); {met}")
        judge(f"{FAMILY}, as read", label(s), s["right"], s["as_read"]["figures"])
    for what, floor in FLOORS.items():
        # Waiting behind messages that the host delayed is blamed rightly, but is not in the injection's log.
        mean = sum(s[what] or 0.0 for s in injected) / len(injected)
        judge(FAMILY, f"mean {what}", mean > floor, f"{mean:.2f}, floor {floor}")


def test_the_control_is_judged(truth: dict[str, Any]) -> None:
    controls = [s for s in truth["scores"] if not s["expected"]]
    planned = 1 - sum(name.startswith("none") for name in truth["unanswered"])
    assert len(controls) == planned + len(never_acted(truth))
    for s in controls:
        _judge_control(s)


def _judge_control(s: dict[str, Any]) -> None:
    told = f"largest: {s['top_cause']} ({s['top_share']:.0%}); host absent for {s['stolen_ms']} ms"
    judge(FAMILY, label(s), s["right"], told)


def test_messages_are_exactly_the_requests_of_the_client(truth: dict[str, Any]) -> None:
    assert len(truth["live"]) >= 2
    # If the recorder reports losses, the number need not be exact.
    assert [a for a in truth["live"] if not a["exact"] and not a["n_lost"]] == []


def test_slow_messages_are_slow_for_the_client_too(truth: dict[str, Any]) -> None:
    hog = next(a for a in truth["live"] if a["injection"] != "none")
    share = hog["slow_share"] or 0.0
    judge(FAMILY, "slow messages are slow for the client", hog["n_slow"] >= 5 and share > 0.8,
          f"{share:.0%} of the client's time of {hog['n_slow']} requests over 1 ms")  # fmt: skip


def test_framed_messages_are_exactly_the_requests_of_the_client(truth: dict[str, Any]) -> None:
    name = "20 requests at once, 1 connection"
    framed = next((s for s in truth["scores"] if s["scenario"].startswith(name)), None)
    if framed is None:
        assert any(label.startswith(name) for label in truth["unanswered"])
        return
    assert framed["n_messages"] == framed["n_requests"] or framed["n_lost"]
