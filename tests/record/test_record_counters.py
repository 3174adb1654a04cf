# SPDX-License-Identifier: GPL-2.0-only
"""Names of performance counters are checked before a recording, and missing counters are reported after it."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from nsight_record import collect, plan
from nsight_record.errors import Usage
from nsight_record.host import has_pmu
from nsight_record.probes import Filters


def chosen(
    root: Path, text: str | None, recorder: str = "bpf", mode: str = "tracepoints", flight: bool = False
) -> list[str]:
    args = argparse.Namespace(counters=text, flight=flight)
    return plan._counters(args, recorder, mode, root)


@pytest.fixture
def hardware(tmp_path: Path) -> Path:
    (tmp_path / "sys/bus/event_source/devices/cpu_core").mkdir(parents=True)
    return tmp_path


def test_counters_are_taken_once_in_their_order(hardware: Path) -> None:
    assert has_pmu(hardware)
    assert chosen(hardware, None) == []
    assert chosen(hardware, collect.USUAL_COUNTERS) == collect.USUAL_COUNTERS.split(",")
    assert chosen(hardware, "cycles,page-faults,cycles") == ["cycles", "page-faults"]


@pytest.mark.parametrize(
    ("text", "changes", "said"),
    [
        ("cycles,bogus", {}, "no counter 'bogus'"),
        ("", {}, None),
        (",".join(collect.COUNTERS[:6]), {}, "more than 5"),
        ("page-faults", {"recorder": "bpftrace"}, "needs recorder bpf"),
        ("page-faults", {"mode": "intel-pt"}, "needs recorder bpf and mode tracepoints"),
        ("page-faults", {"flight": True}, "does not go with --flight"),
    ],
)
def test_what_cannot_be_counted_is_refused(
    hardware: Path, text: str, changes: dict[str, object], said: str | None
) -> None:
    if said is None:
        assert chosen(hardware, text, **changes) == []  # type: ignore[arg-type]
        return
    with pytest.raises(Usage, match=said):
        chosen(hardware, text, **changes)  # type: ignore[arg-type]


def test_without_a_pmu_only_the_kernels_own_are_there(tmp_path: Path) -> None:
    assert chosen(tmp_path, "page-faults,cpu-clock") == ["page-faults", "cpu-clock"]
    with pytest.raises(Usage, match="no performance counters"):
        chosen(tmp_path, "page-faults,instructions")


def test_counters_keep_their_numbers_where_one_is_missing(tmp_path: Path) -> None:
    log = tmp_path / "collect.log"
    log.write_text(
        "reason 2 NOT_SPECIFIED\ncounter 0 cycles\nno counter instructions: Device or resource busy\ncounter 2 page-faults\nrecording\n"
    )
    assert collect.counters(log) == (
        ["cycles", "", "page-faults"],
        {"instructions": "Device or resource busy"},
    )
    assert collect.counters(tmp_path / "none") == ([], {})


def test_the_collector_is_given_each(tmp_path: Path) -> None:
    argv = collect.argv(
        "collect",
        Filters(),
        tmp_path,
        64,
        activity=True,
        hardware_stamps=False,
        counters=["cycles", "page-faults"],
    )
    assert argv[-5:] == ["--counter", "cycles", "--counter", "page-faults", str(tmp_path)]
