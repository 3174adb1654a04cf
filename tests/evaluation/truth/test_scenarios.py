# SPDX-License-Identifier: GPL-2.0-only
"""Which scenarios a run of the tests records."""

from __future__ import annotations

from evaluation.truth.draw import KINDS, drawn
from evaluation.truth.scenarios import ALWAYS, SCENARIOS, label, sample


def test_a_sample_is_that_of_its_seed_with_one_control_and_what_is_always_in_it() -> None:
    drawn = [[label(s) for s in sample(6, seed)] for seed in range(60)]
    assert drawn[7] == [label(s) for s in sample(6, 7)]
    for names in drawn:
        assert len(set(names)) == 6
        assert set(ALWAYS) <= set(names)
        assert sum(name.startswith("none") for name in names) == 1
    # None is left out for good.
    assert {name for names in drawn for name in names} == {label(s) for s in SCENARIOS}


def test_a_sample_of_all_but_the_other_controls_is_everything() -> None:
    n = sum(bool(s.causes) for s in SCENARIOS) + 1
    assert len(sample(n, 1)) == n


def test_what_is_drawn_is_that_of_its_seed_and_of_every_kind() -> None:
    first, again, other = drawn(9, 4), drawn(9, 4), drawn(9, 5)
    assert [(label(s), s.load, s.causes) for s in first] == [(label(s), s.load, s.causes) for s in again]
    assert not {s.load for s in first} & {s.load for s in other}
    many = [s for seed in range(30) for s in drawn(9, seed)]
    assert len({s.name.split(": ")[0] for s in many}) == len(many)
    programs = [cause for s in many for cause in s.causes if "core" in s.name]
    assert len(set(programs)) == len(programs) > 40  # no name twice, and none that a table has
    assert {s.injection().name for s in many} == {"none", "hog", "stop", "neighbour", "flood", "late accept"}
    assert sum(s.truth == "bursts" for s in many) > 5
    assert len(KINDS) == 8


def test_every_control_is_compared_with_the_clients_log() -> None:
    assert all(s.live for s in SCENARIOS if not s.causes)
