# SPDX-License-Identifier: GPL-2.0-only
"""The lines of nsight-histograms: how they are read, and what is rejected."""

from __future__ import annotations

import json

import lines
import pytest
from nsight_monitor import snapshots
from nsight_monitor.snapshots import BadLine


def test_a_line_says_what_it_said() -> None:
    text = [
        lines.header("port"),
        lines.snapshot(1, lines.histogram("ip-start", 2, 700, b8=2, b9=1), groups={"2": 80}, missed=3),
    ]
    header, found = snapshots.read(text)
    assert header.group_by == "port"
    assert [s.name for s in header.stages if s.measured] == list(lines.STAGES)
    (snapshot,) = found
    histogram = snapshot.histograms["ip-start", 2]
    assert (histogram.n[8], histogram.n[9], histogram.count, histogram.sum_ns) == (2, 1, 3, 700)
    assert (snapshot.groups, snapshot.missed, snapshot.last) == ({2: 80}, 3, False)
    assert snapshot.ended == {}


def test_a_line_that_was_cut_ends_the_input() -> None:
    whole = lines.snapshot(1)
    _, found = snapshots.read([lines.header(), whole, whole[:30]])
    assert len(list(found)) == 1


@pytest.mark.parametrize(
    "first", ["", "x\n", "[]\n", "{}\n", lines.header(format=2), lines.header(n_buckets=39), lines.header(stages=3),
              lines.header(stages=[1]), lines.header(group_by=[]), "[" * 100_000]
)  # fmt: skip
def test_another_first_line_is_refused(first: str) -> None:
    with pytest.raises(BadLine) as error:
        snapshots.read([first] if first else [])
    assert error.value.hint


@pytest.mark.parametrize(
    "row",
    [
        {"slow": {"stage": "ip-start", "group": 0, "ns": -1, "monotonic_ns": 1, "realtime_ns": 1}},
        {"slow": {"stage": 3, "group": 0, "ns": 1, "monotonic_ns": 1, "realtime_ns": 1}},
        {"slow": []},
        {"slow": None},
        {"window": {"name": "w"}},
        {"window": {"name": "w" * 65, "slow": []}},
        {"window": {"name": "w", "slow": [1]}},
        {"window": {"name": "w", "slow": [], "n": -1}},
        {"window": 1},
        {"names": []},
        {"names": {"x": "y"}},
        {"names": {"1": 2}},
    ],
    ids=json.dumps,
)
def test_a_line_of_another_kind_with_something_else_is_refused(row: dict[str, object]) -> None:
    with pytest.raises(BadLine):
        snapshots.other(json.dumps(row) + "\n")


@pytest.mark.parametrize(
    "changed",
    [
        {"monotonic_ns": -1},
        {"monotonic_ns": 1.5},
        {"missed": True},
        {"counts": {"peek": 1 << 64}},
        {"counts": []},
        {"groups": {"x": 1}},
        {"groups": {"1": "y" * 300}},
        {"groups": {"1": None}},
        {"histograms": [{"stage": "ip-start"}]},
        {"histograms": [lines.histogram("ip-start", 0, 1, b40=1)]},
        {"histograms": [lines.histogram("ip-start", 0, 1, **{"b-1": 1})]},
        {"histograms": [lines.histogram("ip-start", 0, -1, b1=1)]},
        {"group_began_ns": {"2": -1}},
        {"group_began_ns": []},
        {"ended": 1},
        {"ended": [3]},
        {"ended": [{"stage": "ip-start"}]},
    ],
    ids=json.dumps,
)
def test_a_line_with_something_else_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(BadLine):
        snapshots.snapshot(lines.snapshot(1, **changed))
