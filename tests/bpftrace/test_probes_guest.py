# SPDX-License-Identifier: GPL-2.0-only
"""Scripts that need function probes, on a stock kernel 6.1 in a guest: one boot for all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from bpftrace.probe_run import ROOT, parse
from machinery.guest.retried import GuestUnavailable, run_guest
from nsight_report import clocks
from nsight_report.clocks import clock_readings

from conftest import skip_or_fail

pytestmark = [pytest.mark.guest, pytest.mark.slow]


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the output of tests/bpftrace/in_guest.py."""
    for program in ("qemu-system-x86_64", "busybox", "bpftrace"):
        if not shutil.which(program):
            skip_or_fail("guest", f"{program} is not installed")
    directory = tmp_path_factory.mktemp("guest")
    options = ["--kernel", "6.1", "--rw", str(directory), "--timeout", "1800", "--take-turns"]
    try:
        done = run_guest(
            [*options, "--", "python3", str(ROOT / "tests/bpftrace/in_guest.py"), str(directory)],
            timeout=1900,
        )
    except GuestUnavailable as e:
        skip_or_fail("guest", str(e))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    return directory


def test_legacy_script_sees_every_stamp_to_the_byte(guest):
    counts = json.loads((guest / "legacy.json").read_text())  # checked against the traffic inside the guest
    # TCP: 2 families x 3 requests and replies; UDP: client reads 6, server reads 6.
    assert counts["R"] >= 24
    assert {"A", "R", "S", "O"} <= set(counts)


def test_transmit_stamps_name_the_bytes_they_are_for(guest):
    output = parse((guest / "tx.txt").read_text())
    # Three requests of 10 bytes: SCHED (1), SND (0), ACK (2) each.
    assert output.lines()["T"] == output.counts["T"] == 9
    first = min(e["seq"] for e in output.events)
    for kind in (0, 1, 2):
        stamps = output.of("T", aux=kind)
        assert [(e["seq"] - first, e["len"]) for e in stamps] == [(0, 10), (10, 10), (20, 10)]
    assert all(a["ts"] <= b["ts"] for a, b in zip(output.of("T", aux=1), output.of("T", aux=0)))


def test_probed_timekeeper_agrees_with_the_polled_one(guest, tmp_path):
    polled = (guest / "clock.tsv").read_text().splitlines()
    probed = [line for line in (guest / "timekeeper.txt").read_text().splitlines() if line.startswith("K\t")]
    assert len(probed) > 100
    both = tmp_path / "probed.tsv"
    # The header and the paired readings stay: both maps are checked against them.
    both.write_text("\n".join([polled[0], *probed, *(x for x in polled[1:] if x[0] in "BE")]) + "\n")
    maps = {}
    for name, path in (("polled", guest / "clock.tsv"), ("probed", both)):
        table, losses = clocks.build(clock_readings.load(path))
        assert [row for row in losses.to_pylist() if row["severity"] == "error"] == []
        maps[name] = clocks.ClockMap(table)
    low = max(m.range_tsc("monotonic")[0] for m in maps.values())
    high = min(m.range_tsc("monotonic")[1] for m in maps.values())
    tsc = np.linspace(low, high - 1, 100_001).astype(np.int64)
    for domain in ("realtime", "monotonic"):
        results = {name: m.convert_masked(tsc, "tsc", domain) for name, m in maps.items()}
        good = results["polled"][2] & results["probed"][2]
        assert good.mean() > 0.9
        apart = np.abs(results["polled"][0] - results["probed"][0])[good]
        bound = (results["polled"][1] + results["probed"][1])[good]
        assert (apart <= bound + 1).all()
