# SPDX-License-Identifier: GPL-2.0-only
"""Scores on small synthetic streams; tests/evaluation/truth/synthetic_scores.py has larger ones."""

from __future__ import annotations

import numpy as np
import pytest
from machinery.made_up.stream import CAUSES, World, world

from evaluation.truth import ablation
from evaluation.truth.synthetic_scores import score


@pytest.fixture(scope="module")
def injected() -> World:
    return world(3000, seed=7, share=0.04, tracks=2, fan=2)


def test_every_cause_was_injected_and_calls_tile_their_cores(injected: World) -> None:
    assert set(injected.cause) == {-1, *range(len(CAUSES))}
    contexts = injected.tables["contexts"].to_pandas()
    for _, core in contexts.groupby("cpu"):
        assert (core["start_ns"].to_numpy()[1:] == core["end_ns"].to_numpy()[:-1]).all()
    calls = injected.tables["calls"].to_pandas()
    start, end = calls["start_ns"].to_numpy(), (calls["start_ns"] + calls["dur_ns"]).to_numpy()
    parent = calls["parent_id"].to_numpy()
    inside = parent >= 0
    assert (start[inside] >= start[parent[inside]]).all() and (end[inside] <= end[parent[inside]]).all()
    # Own times of a core are all of its time.
    assert calls.groupby("cpu")["self_ns"].sum().tolist() == [
        int(core["end_ns"].max() - core["start_ns"].min()) for _, core in contexts.groupby("cpu")
    ]


@pytest.mark.parametrize("mode", ["intel-pt", "tracepoints"])
def test_injected_causes_are_named_with_their_ns(injected: World, mode: str) -> None:
    s = score(injected, mode)
    assert s.n_injected >= 100
    assert s.top >= 0.95, s.wrong
    assert s.precision >= 0.95
    assert s.recall >= 0.95
    assert s.within >= 0.95
    assert s.coverage_median >= 0.99
    assert s.coverage_min >= 0.9


@pytest.mark.parametrize("mode", ["intel-pt", "tracepoints"])
def test_causes_are_named_against_another_capture(injected: World, mode: str) -> None:
    # Another seed and fewer messages: no message ID, call or path is the same.
    s = score(injected, mode, world(1000, seed=11, share=0.0, tracks=2, fan=2))
    assert s.top >= 0.95, s.wrong
    assert s.within >= 0.95
    assert s.coverage_median >= 0.99


@pytest.mark.parametrize("mode", ["intel-pt", "tracepoints"])
def test_nothing_of_weight_is_found_where_nothing_was_injected(mode: str) -> None:
    s = score(world(3000, seed=8, share=0.0, tracks=2, fan=2), mode)
    assert s.n_slow >= 60
    assert s.weighty == []
    assert np.isnan(s.top)


@pytest.fixture(scope="module")
def broken() -> list[ablation.Row]:
    return list(ablation.rows(4000, seed=5))


def test_of_several_causes_at_once_each_has_its_ns(broken: list[ablation.Row]) -> None:
    whole = {(row.stream, row.mode): row.score for row in broken if not row.broken}
    assert len(whole) == 6
    for (stream, _), s in whole.items():
        small = stream == "1 to 20 us"
        assert s.top >= 0.95, whole
        assert s.precision >= (0.85 if small else 0.93), whole
        assert s.recall >= 0.95, whole


def test_what_is_broken_on_purpose_shows_in_the_scores(broken: list[ablation.Row]) -> None:
    assert {row.broken for row in broken} == {"", *ablation.BROKEN}
    assert ablation.unnoticed(broken) == []


def test_the_80_percent_rule_is_missed_where_slow_functions_slow_their_callers(
    broken: list[ablation.Row],
) -> None:
    by = {(row.stream, row.broken): row.score for row in broken if row.mode == "intel-pt"}
    whole, without = by["slower callers", ""], by["slower callers", "no 80 % rule"]
    # Two of twelve causes have a caller that is named beside them without the rule.
    assert whole.named - without.named > 0.05
    assert whole.precision - without.precision > 0.01


def test_a_break_that_changes_nothing_is_told() -> None:
    same = ablation.Score(0.9, 0.9, 0.9, 0.9)
    rows = [
        ablation.Row("no overlaps", "intel-pt", stream, same, lost)
        for stream, lost in (("a", 0.0), ("b", 0.009))
    ]
    assert ablation.unnoticed(rows) == [("no overlaps", "intel-pt")]
    assert ablation.unnoticed([*rows, ablation.Row("no overlaps", "intel-pt", "c", same, 0.02)]) == []
    assert same.lost(ablation.Score(0.95, 0.8, 0.9, 0.9)) == pytest.approx(0.1)
