# SPDX-License-Identifier: GPL-2.0-only
"""The bound on wrong answers, checked against values computed by hand."""

from __future__ import annotations

from math import comb, isclose

import pytest

from machinery.harness import gate
from machinery.harness.gate import Seen


def answers(family: str, right: int, wrong: int) -> list[dict[str, object]]:
    return [
        {"family": family, "name": f"{family} {n}", "right": n >= wrong, "figures": f"{n} ms"}
        for n in range(right + wrong)
    ]


def test_chance_of_one_wrong_answer_is_the_mean_of_its_rate() -> None:
    # 2 of 20 wrong in 10 rounds: a = 10 * 0.1 + 0.5 = 1.5, b = 9.5; the mean of Beta(a, b) is a / (a + b) = 1.5 / 11.
    assert isclose(gate.chance(0, 1, Seen(10, 20, 2)), 1.5 / 11)


def test_many_rounds_make_it_binomial() -> None:
    # A rate of 0.1 that is known exactly: P(X > 2) of n = 5 is 1 - sum of comb(5, i) 0.1^i 0.9^(5-i), i to 2.
    exactly = 1 - sum(comb(5, i) * 0.1**i * 0.9 ** (5 - i) for i in range(3))
    assert isclose(gate.chance(2, 5, Seen(10**7, 10**8, 10**7)), exactly, rel_tol=1e-4)


def test_fewer_rounds_allow_more() -> None:
    of_rounds = [gate.allowed(18, Seen(rounds, 18 * rounds, rounds)) for rounds in (1000, 100, 10)]
    assert of_rounds == sorted(of_rounds)
    assert of_rounds[0] < of_rounds[-1]


@pytest.mark.parametrize("seen", [*gate.SEEN.values(), Seen(40, 360, 36)])
def test_bounds_refuse_correct_trees_in_less_than_one_of_a_thousand_runs(seen: Seen) -> None:
    n = seen.judged // seen.rounds
    most = gate.allowed(n, seen)
    assert gate.chance(most, n, seen) <= gate.CHANCE < gate.chance(most - 1, n, seen)
    assert len(gate.SEEN) * gate.CHANCE < 1e-3


def test_forty_rounds_with_a_tenth_wrong_give_a_bound_and_one_round_gives_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert gate.allowed(9, Seen(40, 360, 36)) == 6
    assert gate.allowed(9, Seen(1, 9, 1)) == 9
    monkeypatch.setattr(gate, "SEEN", {"some": Seen(1, 9, 1)})
    lines, failed = gate.verdict(answers("some", 0, 9))
    assert failed == [] and "no bound: so few" in lines[0]


def test_more_wrong_answers_than_the_bound_fail_and_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(40, 400, 20)
    monkeypatch.setattr(gate, "SEEN", {"some": seen})
    most = gate.allowed(10, seen)
    lines, failed = gate.verdict(answers("some", 10 - most, most))
    assert failed == []
    assert lines[0].startswith(f"some: {10 - most} of 10 right; more than {most} wrong fail the run")
    assert lines[1] == "  WRONG  some 0: 0 ms"
    assert gate.verdict(answers("some", 9 - most, most + 1))[1] == ["some"]


def test_a_family_that_nobody_has_counted_fails_nothing_and_is_printed() -> None:
    lines, failed = gate.verdict(answers("new", 5, 1))
    assert failed == []
    assert lines[0] == "new: 5 of 6 right; no bound yet: nobody has counted"
    assert lines[1] == "  WRONG  new 0: 0 ms"


def test_of_few_answers_that_are_often_wrong_all_may_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """22 of 80 wrong in 16 rounds: with this rate, a correct tree has 5 of 5 wrong more often than once in 10,000 runs."""
    monkeypatch.setattr(gate, "SEEN", {"some": Seen(16, 80, 22)})
    lines, failed = gate.verdict(answers("some", 0, 5))
    assert failed == []
    assert lines[0] == "some: 0 of 5 right; no bound: so few may all be wrong (22 of 80 were in 16 rounds)"
