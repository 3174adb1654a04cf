# SPDX-License-Identifier: GPL-2.0-only
"""Steal time without a place is not a cause, but bounds what the host may have taken of each slow message."""

from __future__ import annotations

from pathlib import Path

import nsight_report
import pytest
from machinery.made_up import record_files as rf
from nsight_report.api import Capture

from .emulated import CAUSES, US, Step, write
from .score import EVERY, SLOW, Cause

N = 20


def in_pieces(step: Step) -> None:
    """The host takes its core three times for 100 us, and each time an interrupt shows that the core is there again: the scheduler then says
    300 us, and no time without a record is as long."""
    step.longer_ns = 300 * US
    ticks = [step.t + n * 110 * US for n in (1, 2, 3)]
    step.more += [rf.pair("VECTOR", at, at + US, 0) for at in ticks]
    step.more += [rf.steal(step.t + 360 * US, 300 * US, 1)]


def reported(tmp_path: Path, cause: Cause) -> Capture:
    capture, file = write(tmp_path, cause, N * EVERY)
    return nsight_report.open(
        capture, intervals=str(file), direction="interval", slow=SLOW, baseline="p25-75"
    )


def told(found: Capture) -> dict[str, tuple[int, str]]:
    return {row.key: (row.count, row.detail) for row in found.losses.itertuples()}


def test_steal_time_in_pieces_bounds_what_the_host_may_have_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = Cause("steal in pieces", r"Application processing \(A\)")
    monkeypatch.setitem(CAUSES, cause, in_pieces)
    found = reported(tmp_path, cause)
    coverage = found.coverage
    # 300 us of each slow step: no more than it took longer, and no less.
    assert coverage["deviation_ns"].tolist() == [300 * US] * N
    assert coverage["host_at_most_ns"].tolist() == [300 * US] * N
    assert not any("Host took the core" in name for name in found.causes["cause"])
    losses = told(found)
    assert losses["records_steal_without_place"][0] == N * 300 * US
    count, detail = losses["host_may_have_taken"]
    assert count == N and "up to 6.00 ms of their 6.00 ms of delay" in detail


def test_steal_time_with_a_place_is_not_counted_twice(tmp_path: Path) -> None:
    found = reported(tmp_path, next(c for c in CAUSES if c.name == "steal"))
    assert found.causes["cause"].tolist() == ["Host took the core (A)"]
    assert found.coverage["host_at_most_ns"].tolist() == [0] * N
    assert "host_may_have_taken" not in told(found)
