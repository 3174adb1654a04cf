# SPDX-License-Identifier: GPL-2.0-only
"""The object of --json, key by key, from a capture whose numbers are known (machinery/made_up/capture.py)."""

import json
from pathlib import Path

import nsight_report
import pandas as pd
import pyarrow as pa
from machinery.made_up.capture import World, blocking_of, write_capture
from machinery.made_up.tables import table
from nsight_report.coverage import worst_covered
from nsight_report.export.json import summary_object
from nsight_report.tables.data_frames import to_pandas

from ..conftest import Run

US = 1_000

LOSS_KEYS = ["key", "stage", "cause", "severity", "count", "detail", "remedy"]
CAUSE_KEYS = [
    "cause", "core", "category", "subject", "n_messages", "median_deviation_ns", "max_deviation_ns", "total_deviation_ns", "located_ns",
    "advice", "command", "check", "chain",
]  # fmt: skip


def test_json_is_exactly_the_documented_object(run: Run, capture: Path) -> None:
    done = run(capture, "--json")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)  # nothing else on standard output
    assert list(value) == [
        "capture", "mode", "messages", "requests", "slow", "baseline", "coverage", "latency", "causes", "blocking", "drops", "counters",
        "own_cost", "losses",
    ]  # fmt: skip
    assert value["counters"] == []
    assert list(value["messages"]) == ["n", "p50_ns", "p99_ns", "p999_ns", "max_ns"]
    assert list(value["coverage"]) == [
        "explained", "located", "unexplained", "median", "min", "located_median", "worst",
    ]  # fmt: skip
    assert all(list(row) == CAUSE_KEYS for row in value["causes"])
    assert all(list(row) == LOSS_KEYS for row in value["losses"])


def test_counters_of_slow_and_baseline_messages_are_told(run: Run, tmp_path: Path) -> None:
    class Counting(World):
        def tables(self) -> dict[str, pa.Table]:
            every = super().tables()
            rows = [
                {"message_id": row["message_id"], "role": row["role"], "counter": name, "count": count}
                for row in every["compared"].to_pylist()
                for name, count in (
                    ("cycles", 4000.0),
                    ("instructions", 1000.0 if row["role"] == "slow" else 8000.0),
                )
            ]
            return every | {"message_counters": table("message_counters", rows)}

    path = write_capture(tmp_path / "counted.nsight", Counting())
    assert json.loads(run(path, "--json").stdout)["counters"] == [
        {"name": "cycles per message", "slow": 4000, "baseline": 4000},
        {"name": "instructions per message", "slow": 1000, "baseline": 8000},
        {"name": "instructions per cycle", "slow": 0.25, "baseline": 2},
    ]
    lines = [line.split() for line in run(path).stdout.splitlines()]
    assert ["instructions", "per", "cycle", "0.25", "2"] in lines


def test_json_numbers_are_those_of_the_capture(run: Run, capture: Path) -> None:
    value = json.loads(run(capture, "--json").stdout)
    # Nine hogs (at message 200, 400, ... 1800): nine messages each of 1010, 920, 830, ... us. The
    # slowest 1 % are 20 messages: 9 of 1010, 9 of 920 and 2 of 830 us.
    assert value["mode"] == "tracepoints"
    assert value["messages"] == {
        "n": 2000,
        "p50_ns": 10 * US,
        "p99_ns": 830 * US,  # rank 1980 of 2000 is the 21st slowest: one of 830
        "p999_ns": None,  # only 2 of 2000 messages are beyond it
        "max_ns": 1010 * US,
    }
    assert (value["slow"], value["baseline"]) == ("p99-100", "p25-75")
    assert [c["cause"] for c in value["causes"]] == ["hog (A)", "Head-of-line blocking (A)"]
    hog = value["causes"][0]
    # Messages wait for the hog from their hand-off (+5 us): 995, 895, 795 us; 9 + 9 + 2 messages.
    assert hog["n_messages"] == 20
    assert hog["max_deviation_ns"] == 995 * US
    assert hog["total_deviation_ns"] == (9 * 995 + 9 * 895 + 2 * 795) * US
    assert (hog["core"], hog["category"]) == ("A", "hog")


def test_what_head_of_line_blocking_consists_of_is_told(capture: Path) -> None:
    c = nsight_report.open(capture)
    assert summary_object(c)["blocking"] == []
    c._frames["hol"] = to_pandas(blocking_of(201, TCP=(6000, 6000), Locks=(9000, 500)))
    name = "Head-of-line blocking: {} (A)".format
    callers = "main > loop > serve > lookup > do {}".format
    assert json.loads(json.dumps(summary_object(c)["blocking"])) == [
        {"cause": name("Locks"), "subject": "of Locks", "callers": callers("Locks"), "n_messages": 1, "total_deviation_ns": 9000, "observed_ns": 9000, "fastest_ns": 500,
         "beyond_ns": 8500},
        {"cause": name("TCP"), "subject": "of TCP", "callers": callers("TCP"), "n_messages": 1, "total_deviation_ns": 6000, "observed_ns": 6000, "fastest_ns": 6000,
         "beyond_ns": 0},
    ]  # fmt: skip


def test_causes_are_sorted_by_total_deviation(run: Run, capture: Path) -> None:
    totals = [c["total_deviation_ns"] for c in json.loads(run(capture, "--json").stdout)["causes"]]
    assert len(totals) == 2
    assert totals == sorted(totals, reverse=True)


def test_losses_come_worst_first_with_their_remedy(run: Run, capture: Path) -> None:
    losses = json.loads(run(capture, "--json").stdout)["losses"]
    assert [(row["severity"], row["cause"], row["count"]) for row in losses] == [
        ("warning", "read without arrival", 3),
        ("info", "keep-alive probes", 2),
    ]
    assert losses[0]["remedy"].startswith("narrow the filter of the probes")


def test_percentiles_that_n_does_not_support_are_null(run: Run, tmp_path: Path) -> None:
    few = write_capture(tmp_path / "few.nsight", World(n=300))
    messages = json.loads(run(few, "--json").stdout)["messages"]
    # 300 messages: 150 beyond p50, 3 beyond p99.
    assert messages["n"] == 300
    assert messages["p50_ns"] == 10 * US
    assert messages["p99_ns"] is None
    text = run(few).stdout
    assert "p50" in text
    assert "p99 " not in text.split("too few")[0].split("latency:")[1]
    assert "too few messages for p99, p99.9, p99.99" in text


def test_messages_that_are_explained_least_are_listed_worst_first() -> None:
    coverage = pd.DataFrame(
        {
            "message_id": range(9),
            "coverage": [1.0, 0.5, 0.86, 0.87, 0.2, 0.5, 0.3, 0.4, 0.45],
            "deviation_ns": 1000,
        }
    )
    assert worst_covered(coverage)["message_id"].tolist() == [4, 6, 7, 8, 1]
