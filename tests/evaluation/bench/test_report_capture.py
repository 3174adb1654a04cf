# SPDX-License-Identifier: GPL-2.0-only
"""The capture that bench_report.py measures is diagnosed from the tables that come with it."""

from __future__ import annotations

from pathlib import Path

import nsight_report
from evaluation.bench.report_capture import make


def test_a_made_capture_is_diagnosed_without_decoding_its_stand_in_of_perf_data(tmp_path: Path) -> None:
    made = make(tmp_path / "made.nsight", 400, 3, seed=1)
    capture = nsight_report.open(made.path)
    ran = capture.analyse()
    assert "anomalies" in ran
    assert "contexts" not in ran
    assert len(capture.causes)
    assert len(capture.calls) == made.n_calls


def test_a_made_capture_of_requests_has_a_reply_and_fifty_rows_of_activity_for_each(tmp_path: Path) -> None:
    made = make(tmp_path / "made.nsight", 400, 0, seed=1, answered=True)
    capture = nsight_report.open(made.path, direction="request")
    assert "contexts" not in capture.analyse()
    assert len(capture.requests) == made.n_messages
    assert 48 <= made.n_activity / made.n_messages <= 52
    assert len(capture.causes)
