# SPDX-License-Identifier: GPL-2.0-only
"""Windows of the stored table compared with the whole table, and calls as events for any times."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from machinery.made_up.tables import table
from nsight_report.export.call_events import Nesting
from nsight_report.tables.intervals import IntervalTable


def random_calls(rng: random.Random, cores: int, n: int) -> pa.Table:
    """Properly nested calls, many with equal times: each a random part of its caller."""
    rows: list[tuple[int, int, int, int, int]] = []  # parent, depth, cpu, start, dur
    for cpu in range(cores):
        at = rng.randrange(20)
        open_: list[tuple[int, int]] = []  # row, end
        for _ in range(n):
            while open_ and (at >= open_[-1][1] or rng.random() < 0.3):
                at = max(at, open_.pop()[1])
            limit = open_[-1][1] if open_ else at + 60
            end = rng.randint(at, limit)
            rows.append((open_[-1][0] if open_ else -1, len(open_), cpu, at, end - at))
            open_.append((len(rows) - 1, end))
            at = rng.randint(at, end)
    columns = dict(zip(("parent_id", "depth", "cpu", "start_ns", "dur_ns"), zip(*rows)))
    columns["call_id"] = tuple(range(len(rows)))
    return table("calls", columns)


@pytest.mark.parametrize("seed", range(20))
def test_windows_hold_what_overlaps_them_and_nothing_else(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    calls = random_calls(rng, 3, 80)
    pq.write_table(calls, tmp_path / "calls.parquet", row_group_size=rng.choice([3, 17, 1000]))
    stored = IntervalTable(tmp_path / "calls.parquet")
    cpu, begin, dur = (calls[c].to_numpy() for c in ("cpu", "start_ns", "dur_ns"))
    for _ in range(30):
        low = rng.randrange(int(begin.max()) + 40)
        windows = np.array(
            [(rng.randrange(4), low, low + rng.randint(1, 50)) for _ in range(rng.randint(1, 3))]
        )
        expected = np.zeros(len(cpu), bool)
        for of, since, until in windows:
            expected |= (cpu == of) & (begin < until) & (begin + dur > since)
        found = stored.overlapping(*windows.T, ["call_id"])
        assert found["call_id"].to_pylist() == np.flatnonzero(expected).tolist()


def replay(events: list[tuple[int, int, bool]], depth: list[int]) -> list[int]:
    """Depth at which each call would be drawn: the number of open calls when it begins."""
    open_, drawn = 0, [-1] * len(depth)
    for row, _ns, begin in events:
        if begin:
            drawn[row] = open_
        open_ += 1 if begin else -1
        assert open_ >= 0
    assert open_ == 0
    return drawn


@pytest.mark.parametrize("seed", range(20))
def test_events_nest_as_the_table_does_however_it_is_cut(seed: int) -> None:
    rng = random.Random(seed)
    calls = random_calls(rng, 1, 60)
    depth, start, dur = (calls[c].to_numpy().astype(np.int64) for c in ("depth", "start_ns", "dur_ns"))
    cuts = sorted({0, len(depth), *(rng.randrange(len(depth)) for _ in range(rng.randint(0, 6)))})
    nesting, events = Nesting(), []
    for low, high in itertools.pairwise(cuts):
        piece = nesting.piece(depth[low:high], start[low:high], dur[low:high])
        events += [(int(r) + low, int(t), bool(b)) for r, t, b in zip(piece.row, piece.ns, piece.is_begin)]
    rest = nesting.rest()
    events += [(-1, int(t), False) for t in rest.ns]
    assert replay(events, depth.tolist()) == depth.tolist()
    times = [t for _r, t, _b in events]
    assert times == sorted(times)
    assert sorted(t for _r, t, b in events if not b) == sorted((start + dur).tolist())


def test_call_that_takes_no_time_ends_within_its_caller() -> None:
    """a [0, 10] calls b [10, 10], then c [10, 12] follows a: b and a end before c begins, although all these times are 10."""
    events = Nesting()
    piece = events.piece(np.array([0, 1, 0]), np.array([0, 10, 10]), np.array([10, 0, 2]))
    assert list(zip(piece.row.tolist(), piece.ns.tolist(), piece.is_begin.tolist())) == [
        (0, 0, True), (1, 10, True), (1, 10, False), (0, 10, False), (2, 10, True),
    ]  # fmt: skip
    assert events.rest().ns.tolist() == [12]
