# SPDX-License-Identifier: GPL-2.0-only
"""Of a recording's system calls only those near the requested times are sorted and searched; what is found is the same."""

from __future__ import annotations

import numpy as np
from nsight_report.timeline import entered
from nsight_report.timeline.occupancy import Asked

WORDS = {"user code": 0, "epoll_wait": 1, "read": 2, "poll": 3, "measured": 4, "inferred": 5}
NO_IDS = np.zeros(0, np.int64)


def calls(start: list[int], took: list[int], symbol: list[str], known: list[str]) -> dict[str, np.ndarray]:
    """System calls of one thread, in order."""
    of_words = {"symbol": symbol, "end_known": known}
    return {
        "tid": np.full(len(start), 7),
        "start_ns": np.array(start, np.int64),
        "dur_ns": np.array(took, np.int64),
        **{name: np.array([WORDS[word] for word in of], np.int32) for name, of in of_words.items()},
    }


def looked_for(of: dict[str, np.ndarray], asked: Asked, times: np.ndarray) -> list[list[int]]:
    found = entered._looked_for(entered._of_syscalls(of, WORDS), WORDS, asked, times)
    return [values.tolist() for values in found]


def test_few_calls_are_near_few_times() -> None:
    """1000 reads, one each 10 ns; requested are [5000, 5005) and [9003, 9030)."""
    of = calls(list(range(0, 10_000, 10)), [4] * 1000, ["read"] * 1000, ["measured"] * 1000)
    near = entered._near(of, WORDS, Asked(NO_IDS, np.array([5000, 9003]), np.array([5005, 9030])), NO_IDS)
    assert near is not None
    # What begins at 4980, 4990 and 5000; and from 8990 to 9020.
    assert near.tolist() == [498, 499, 500, 899, 900, 901, 902]


def test_calls_of_several_threads_or_out_of_order_are_all_looked_at() -> None:
    asked = Asked(NO_IDS, np.array([3]), np.array([4]))
    several = calls([0, 10], [4, 4], ["read"] * 2, ["measured"] * 2)
    several["tid"] = np.array([7, 8])
    assert entered._near(several, WORDS, asked, NO_IDS) is None
    overlapping = calls([0, 10], [11, 4], ["read"] * 2, ["measured"] * 2)
    assert entered._near(overlapping, WORDS, asked, NO_IDS) is None


def test_the_same_is_found_among_near_calls_as_among_all() -> None:
    """Drawn calls with equal times, without length, without a known end; drawn times before, between and after them."""
    n_near = n_all = 0
    for seed in range(500):
        draw = np.random.default_rng(seed)
        n = int(draw.integers(1, 60))
        gap, took = draw.integers(0, draw.choice([1, 2, 40]), n), draw.integers(0, draw.choice([1, 3, 30]), n)
        start = 20 + np.cumsum(gap + np.append(0, took[:-1]))
        names = draw.choice(["epoll_wait", "read", "read", "poll"], n).tolist()
        known = draw.choice(["measured", "measured", "inferred"], n).tolist()
        of = calls(start.tolist(), took.tolist(), names, known)
        span = int(start[-1]) + 40
        low = np.sort(draw.choice(span, 2 * int(draw.integers(0, 5)), replace=False)).astype(np.int64)
        asked, times = (
            Asked(NO_IDS, low[::2], low[1::2]),
            np.sort(draw.integers(0, span, int(draw.integers(0, 5)))),
        )
        near = entered._near(of, WORDS, asked, times)
        assert near is not None
        few = {name: values[near] for name, values in of.items()}
        assert looked_for(few, asked, times) == looked_for(of, asked, times), seed
        n_near, n_all = n_near + len(near), n_all + n
    assert n_near < 0.7 * n_all
