# SPDX-License-Identifier: GPL-2.0-only
"""nsight-monitor on stock Debian kernels in guests: its programs load, and every stage that the kernel has is counted."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from machinery.guest.retried import GuestUnavailable, run_guest
from nsight_monitor import loader
from nsight_record.errors import Missing

from conftest import ROOT, skip_or_fail

pytestmark = [pytest.mark.guest, pytest.mark.slow]

#: Loopback has no NIC and no device queue; nobody retransmits.
SINCE_6_1 = {"ip-start", "tcp-start", "udp-start", "tcp-driver"}
SINCE_6_12 = SINCE_6_1 | {"tcp-socket-enqueued", "udp-socket-enqueued", "tcp-socket-read", "udp-socket-read"}


@pytest.mark.parametrize(
    ("kernel", "expected"), [("6.1", SINCE_6_1), ("6.12", SINCE_6_12), ("newest", SINCE_6_12)]
)
def test_stages_of_another_kernel_are_measured(kernel: str, expected: set[str], tmp_path: Path) -> None:
    for program in ("qemu-system-x86_64", "busybox"):
        if not shutil.which(program):
            skip_or_fail("guest", f"{program} is not installed")
    try:
        loader.find()
    except Missing as e:
        skip_or_fail("bpf", str(e))
    out = tmp_path / "lines"
    options = ["--kernel", kernel, "--rw", str(tmp_path), "--timeout", "600", "--take-turns"]
    try:
        done = run_guest([*options, "--", sys.executable, str(ROOT / "tests/monitor/in_guest.py"), str(out)])
    except GuestUnavailable as e:
        skip_or_fail("guest", str(e))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    head, *_, last = map(json.loads, out.read_text().splitlines())
    missing = {stage["name"]: stage["missing"] for stage in head["stages"]}
    assert not any(missing[name] for name in expected)
    if kernel == "6.1":
        assert {missing[name] for name in SINCE_6_12 - SINCE_6_1} == {"tracepoint sk_data_ready"}
    counted = {h["stage"]: sum(h["n"].values()) for h in last["histograms"]}
    assert all(counted[name] >= 100 for name in expected), counted
    assert last["counts"]["end_before_begin"] == last["counts"]["arrival_too_old"] == 0
    assert all(h["sum_ns"] > 0 for h in last["histograms"])
    assert last["counts"]["udp_start_without_arrival"] == 0
    # Without function probes, a program of the root control group serves instead, if the kernel has bpf_cast_to_kern_ctx().
    lines = out.with_name(out.name + ".no-probes").read_text().splitlines()
    if kernel == "6.1":
        assert lines == []
        return
    stage = next(stage for stage in json.loads(lines[0])["stages"] if stage["name"] == "udp-start")
    assert (stage["missing"], stage["measured"]) == ("", True)
    assert sum(json.loads(lines[-1])["histograms"][0]["n"].values()) >= 50
