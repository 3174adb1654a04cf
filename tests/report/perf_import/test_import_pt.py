# SPDX-License-Identifier: GPL-2.0-only
"""Mode intel-pt: emulated Intel PT with message events and clocks from tracepoints in the same file, compared with BPF's."""

from __future__ import annotations

import shutil
from pathlib import Path

import nsight_report
import numpy as np
import pytest
from machinery.pt_emulation.fixtures import decoded
from nsight_report.perf_import import import_perf_data
from with_trace import add_events

from conftest import skip_or_fail

pytestmark = pytest.mark.tools

ROOT = Path(__file__).resolve().parents[3]


def test_import_of_intel_pt_finds_what_the_recording_with_bpf_does(tmp_path: Path) -> None:
    if not (ROOT / "build/cargo/release/nsight-decode").exists():
        skip_or_fail("decoder", "nsight-decode is not built (hint: make decoder)")
    fixture = decoded.decoded("hog", tmp_path)
    with_bpf = fixture / "capture.nsight"
    alone = tmp_path / "perf.data"
    shutil.copytree(with_bpf / "perf.data", alone)
    add_events(with_bpf / "perf.data/data", with_bpf, alone / "data")
    result = import_perf_data(alone)
    assert result.mode == "intel-pt"
    symfs = str((fixture / "symfs").resolve())
    ours = nsight_report.open(result.capture, symfs=symfs)
    theirs = nsight_report.open(with_bpf, symfs=symfs)

    key = ["lport", "rport", "handoff_ns"]
    rx = theirs.messages[theirs.messages["direction"] == "rx"].sort_values(key)
    mine = ours.messages.sort_values(key)
    assert len(mine) == len(rx) > 300
    for name in ("nbytes", "tid", "app_cpu", "recv_cpu", "fd"):
        assert mine[name].tolist() == rx[name].tolist(), name
    assert mine["comm"].astype(str).tolist() == rx["comm"].astype(str).tolist()
    for name in ("arrival_ns", "handoff_ns", "call_ns", "app_ns"):
        apart = mine[name].to_numpy(np.int64) - rx[name].to_numpy(np.int64)
        assert np.abs(apart).max() <= 2, name
    assert len(ours.calls) == len(theirs.calls) > 10_000

    causes = [
        dict(zip(c["cause"].astype(str), c["total_deviation_ns"], strict=True))
        for c in (ours.causes, theirs.causes)
    ]
    # The perf.data alone does not show that the bpftrace in it was also recording.
    for mine_of, theirs_of in (("bpftrace (A)", "NSight's own cost (A)"), ("hog (A)", "hog (A)")):
        assert causes[0][mine_of] == pytest.approx(causes[1][theirs_of], rel=0.05)
