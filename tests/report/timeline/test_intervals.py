# SPDX-License-Identifier: GPL-2.0-only
"""Interval joins compared with the plain double loop."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from nsight_report.interval_joins import distinct, keys, overlaps, tile

GAPS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(1, 9)), max_size=20)
QUERIES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 40)), max_size=10)


def columns(rows, n):
    return [np.array([r[i] for r in rows], np.int64) for i in range(n)]


@given(GAPS, QUERIES)
def test_overlaps_equal_the_double_loop(gaps, queries):
    at = {0: 0, 1: 0, 2: 0}
    rows = []
    for group, gap, length in gaps:
        rows.append((group, at[group] + gap, at[group] + gap + length))
        at[group] += gap + length
    q = [(g, s, s + n) for g, s, n in queries]
    expected = sorted(
        (i, j, max(a, c), min(b, d))
        for i, (g, a, b) in enumerate(q)
        for j, (h, c, d) in enumerate(rows)
        if g == h and max(a, c) < min(b, d)
    )
    found = overlaps(*columns(q, 3), *columns(rows, 3))
    assert sorted(zip(*(x.tolist() for x in found))) == expected


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 30)), min_size=1, max_size=20)
)
def test_tile_covers_all_time_once_and_gives_it_to_the_latest_start(rows):
    group, start, length = columns(rows, 3)
    g, low, high, owner = tile(group, start, start + length)
    for value in set(group.tolist()):
        at = np.flatnonzero(g == value)
        at = at[np.argsort(low[at])]
        assert low[at][0] == np.iinfo(np.int64).min
        assert high[at][-1] == np.iinfo(np.int64).max
        assert (low[at][1:] == high[at][:-1]).all()
        for i in at:
            if owner[i] < 0:
                continue
            row = owner[i]
            assert start[row] <= low[i] < high[i] <= start[row] + length[row]
            later = (group == value) & (start > start[row]) & (start < high[i])
            assert not later.any()


_VALUE = st.one_of(st.integers(-3, 3), st.integers(-(1 << 63), (1 << 63) - 1))
_PAIRS = st.lists(st.tuples(_VALUE, _VALUE), max_size=8)


@given(_PAIRS, _PAIRS)
def test_keys_sort_like_their_pairs_however_far_apart(one, other):
    given_ = [np.array(of, np.int64).reshape(-1, 2).T for of in (one, other)]
    made = [int(key) for of in keys(*((group, time) for group, time in given_)) for key in of]
    pairs = [*one, *other]
    assert [[a < b for b in made] for a in made] == [[a < b for b in pairs] for a in pairs]


@given(st.lists(_VALUE))
def test_distinct_values_ascend(values):
    assert distinct(np.array(values, np.int64)).tolist() == sorted(set(values))
