# SPDX-License-Identifier: GPL-2.0-only
"""Parts of the runner: what is measured, what is quoted from the report, how the page is built."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from evaluation.case_study import measure, page, run, stories

REPORT = """\
x.nsight   host 6.1

Of 8,353 messages, the 83 of p99-100 were compared. What delayed them most: nginx (A).
Confidence: Nothing was lost that changes it.
What to do:
  - nginx (A): CPU contention with this program.

Mode: tracepoints
Limitations of this recording:
  - Functions

Data quality
  - Nothing that changes the result.

Messages: 8,353
  latency: p50 36.7 us, p99 1.47 ms, max 2.51 ms

Causes of the slow messages, by total delay
  cause                       share
  nginx (A)                     99%

Slowest messages (of those delayed together, the slowest)
  message 17: 2.51 ms

Figures and the whole report: nsight-report x.nsight -o DIR
"""


def iteration(name: str, *p99_us: float) -> page.Iteration:
    setup = stories.Setup(name, "a change", lambda bed, port: None)  # type: ignore[arg-type, return-value]
    tails = [{p: value if p == 99 else 10.0 for p in measure.PERCENTILES} for value in p99_us]
    return page.Iteration(setup, "5.0 s", measure.Diagnosis(f"nsight-report {name}", REPORT, {}), tails)


def test_latency_counts_from_when_the_request_was_due() -> None:
    # Row 0: due 1 us, answered 51 us, though sent at 41 us. Rows 1 and 2: no answer, warm-up.
    load = pd.DataFrame(
        {
            "intended_ns": [1_000, 2_000, 3_000],
            "send_ns": [41_000, 2_000, 3_000],
            "recv_ns": [51_000, 0, 9_000],
            "counted": [True, True, False],
        }
    )
    assert measure.latencies_us(load).tolist() == [50.0]


def test_words_are_the_answer_and_the_causes_without_losses_and_single_messages() -> None:
    words = page.words(REPORT)
    assert words.startswith("Of 8,353 messages")
    assert "CPU contention with this program.\n\nMessages: 8,353\n" in words
    assert words.endswith("nginx (A)                     99%")


def test_words_of_a_report_without_slow_messages_end_before_the_hint() -> None:
    without = REPORT.replace(REPORT[REPORT.index("Slowest") : REPORT.index("Figures")], "")
    assert page.words(without).endswith("nginx (A)                     99%")


def test_tail_is_the_median_of_the_rounds_with_the_spread() -> None:
    rows = page.tail_table([iteration("initial", 3000.0, 1000.0, 90_000.0)]).splitlines()
    assert rows[0] == "| setup | p50 | p90 | p99 | p99.9 |"
    assert rows[2] == (
        "| initial | 10 us (10 us - 10 us) | 10 us (10 us - 10 us) | 3.0 ms (1.0 ms - 90 ms) "
        "| 10 us (10 us - 10 us) |"
    )


def test_effect_compares_the_medians() -> None:
    before, after = iteration("initial", 3000.0, 2000.0, 9000.0), iteration("split", 100.0, 5000.0, 200.0)
    assert page.effect(before, after) == "p50 10 us -> 10 us, p99 3.0 ms -> 200 us, p99.9 10 us -> 10 us"


def test_page_says_for_each_iteration_what_was_changed_and_what_the_report_said() -> None:
    text = page.story_page(stories.MEMCACHED, [iteration("initial", 9.0), iteration("split", 3.0)], [], 1, 4)
    first, _, second = text.partition("### Iteration 2: split")
    assert "Changed:" not in first
    assert "Changed: a change." in second
    assert "before and after the change: p50 10 us -> 10 us, p99 9 us -> 3 us" in second
    assert text.count("    Messages: 8,353\n") == 2
    assert "| split |" in second


@pytest.mark.parametrize("story", stories.STORIES.values(), ids=lambda s: s.name)
def test_every_story_has_three_setups_and_says_what_changed(story: stories.Story) -> None:
    assert len(story.setups) >= 3
    assert not story.setups[0].change
    assert all(s.change for s in story.setups[1:])
    assert len({s.name for s in story.setups}) == len(story.setups)


def test_unknown_story_is_wrong_usage() -> None:
    script = Path(__file__).with_name("run.py")
    done = subprocess.run(
        [sys.executable, str(script), "no-such"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "user-stack" in done.stderr


def test_tails_are_taken_in_turns_and_kept_ones_are_not_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []

    def tail(story: stories.Story, setup: stories.Setup, port: int, seconds: float) -> dict[float, float]:
        taken.append(setup.name)
        return dict.fromkeys(measure.PERCENTILES, float(len(taken)))

    monkeypatch.setattr(measure, "tail", tail)
    (tmp_path / "memcached").mkdir()
    args = argparse.Namespace(output=tmp_path, rounds=2, tail_seconds=1, reuse=True, port=None)
    for rounds, expected in ((2, ["a", "b", "a", "b"]), (3, ["a", "b"])):
        args.rounds = rounds
        taken.clear()
        iterations = [iteration("a"), iteration("b")]
        run.measure_tails(stories.MEMCACHED, iterations, args, run.Progress())
        assert taken == expected
        assert [len(it.tails) for it in iterations] == [rounds, rounds]
    # a was taken first and third in the first call, and first in the second.
    assert [t[99.0] for t in iterations[0].tails] == [1.0, 3.0, 1.0]
