# SPDX-License-Identifier: GPL-2.0-only
"""Buckets, percentiles and differences of histograms, calculated by hand."""

from __future__ import annotations

import random

import pytest
from nsight_monitor.histogram import EMPTY, N_BUCKETS, Bounds, Histogram, bounds, bounds_text, text, total


def of(counts: dict[int, int], sum_ns: int = 0) -> Histogram:
    return Histogram(tuple(counts.get(b, 0) for b in range(N_BUCKETS)), sum_ns)


def test_bounds_are_powers_of_two_and_the_last_is_open() -> None:
    assert bounds(0) == Bounds(0, 1)
    assert bounds(1) == Bounds(1, 2)
    assert bounds(20) == Bounds(524_288, 1_048_576)
    assert bounds(N_BUCKETS - 1) == Bounds(1 << 38, None)
    assert all(bounds(b).high == bounds(b + 1).low for b in range(1, N_BUCKETS - 1))


def test_a_percentile_is_the_least_bucket_that_the_share_does_not_exceed() -> None:
    """500 latencies in bucket 5, 400 in 8, 90 in 10, 10 in 12. p50 is the 500th, p90 the 900th, p99 the 990th, p99.9 the 999th."""
    h = of({5: 500, 8: 400, 10: 90, 12: 10})
    assert [h.percentile(p) for p in (5000, 9000, 9900, 9990)] == [bounds(b) for b in (5, 8, 10, 12)]
    assert h.percentile(5001) == bounds(8)  # the 501st
    assert h.largest() == bounds(12)


def test_no_percentile_of_fewer_latencies_than_it_tells_apart() -> None:
    assert of({3: 99}).percentile(9900) is None
    assert of({3: 100}).percentile(9900) == bounds(3)
    assert of({3: 9_999}).percentile(9999) is None
    assert of({3: 10_000}).percentile(9999) == bounds(3)
    assert EMPTY.percentile(5000) is EMPTY.largest() is None


def test_percentiles_are_those_of_the_sorted_latencies() -> None:
    """The bucket of the latency at that place in the sorted 5,000, whatever their values are."""
    draw = random.Random(7)
    latencies = sorted(int(draw.lognormvariate(10, 3)) for _ in range(5000))
    buckets = [max(ns - 1, 0).bit_length() for ns in latencies]
    h = of({b: buckets.count(b) for b in set(buckets)}, sum(latencies))
    for per_10000 in (5000, 9000, 9900, 9990):
        ns, found = latencies[5000 * per_10000 // 10_000 - 1], h.percentile(per_10000)
        assert found is not None and found.high is not None
        assert found.low < ns <= found.high
    assert h.mean_ns == sum(latencies) / 5000


def test_difference_and_total_are_of_every_bucket_and_the_sum() -> None:
    early, late = of({1: 2, 7: 5}, 600), of({1: 2, 7: 8, 9: 1}, 1400)
    assert late.since(early) == of({7: 3, 9: 1}, 800)
    assert total([early, late.since(early)]) == late
    assert total([]) == EMPTY


@pytest.mark.parametrize(
    ("ns", "said"),
    [
        (0, "0ns"),
        (1, "1ns"),
        (999, "999ns"),
        (1024, "1.02us"),
        (16_777_216, "16.8ms"),
        (2**38, "275s"),
        # 1,000 us are written 1ms
        (999.4, "999ns"),
        (999.6, "1us"),
        (999_499, "999us"),
        (999_500, "1ms"),
        (999_700, "1ms"),
        (999_999_999, "1s"),
        (2e12, "2000s"),
    ],
)
def test_times_have_three_digits(ns: float, said: str) -> None:
    assert text(ns) == said


def test_bounds_name_a_common_unit_once() -> None:
    assert bounds_text(bounds(17)) == "65.5-131us"
    assert bounds_text(bounds(10)) == "512ns-1.02us"
    assert bounds_text(bounds(N_BUCKETS - 1)) == ">275s"
    assert bounds_text(None) == "-"
