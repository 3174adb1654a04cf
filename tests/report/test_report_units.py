# SPDX-License-Identifier: GPL-2.0-only
"""Percentiles and durations as they are printed."""

import numpy as np
import pytest
from nsight_report.names import printable
from nsight_report.units import duration, percentile, supported


@pytest.mark.parametrize(
    ("n", "percent", "shown"),
    [
        (20, 50, True),  # 20 * 0.5 = 10 beyond
        (19, 50, False),
        (1_000, 99, True),  # 1000 * 0.01 = 10
        (999, 99, False),
        (10_000, 99.9, True),  # 10000 * 0.001 = 10, in floating point 9.99999...
        (9_999, 99.9, False),
        (0, 50, False),
    ],
)
def test_percentile_needs_ten_messages_beyond_it(n: int, percent: float, shown: bool) -> None:
    assert supported(n, percent) is shown
    assert (percentile(np.arange(n, dtype=np.int64), percent) is not None) is shown


def test_percentile_is_the_nearest_rank_and_one_of_the_values() -> None:
    # 1000 values 1..1000: p50 is the 500th, p99 the 990th.
    values = np.random.default_rng(1).permutation(np.arange(1, 1001, dtype=np.int64))
    assert percentile(values, 50) == 500
    assert percentile(values, 99) == 990


def test_percentile_keeps_every_ns_of_a_large_value() -> None:
    big = 2**53 + 1  # a float64 cannot hold it
    assert percentile(np.full(1000, big, dtype=np.int64), 50) == big


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.00 us"),
        (12_340, "12.3 us"),
        (999_000, "999 us"),
        (1_500_000, "1.50 ms"),
        (2_000_000_000, "2.00 s"),
        (-1_500, "-1.50 us"),
        (None, "-"),
    ],
)
def test_duration_uses_the_unit_a_person_would(ns: int | None, text: str) -> None:
    assert duration(ns) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mc-worker", "mc-worker"),
        ("a\x1b[31mb", "a\\x1b[31mb"),  # terminal escape
        ("a\u202eb", "a\\u202eb"),  # right-to-left override
        ("a\nb", "a\\nb"),
        ("\ud800", "\\ud800"),  # lone surrogate: cannot be encoded
        ("naïve", "naïve"),
    ],
)
def test_unprintable_characters_of_a_name_are_spelled_out(name: str, text: str) -> None:
    assert printable(name) == text


def test_long_names_are_cut_and_say_so() -> None:
    assert printable("x" * 100, 10) == "x" * 9 + "…"
    assert printable("x" * 10, 10) == "x" * 10
