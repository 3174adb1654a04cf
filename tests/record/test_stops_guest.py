# SPDX-License-Identifier: GPL-2.0-only
"""A whole guest is stopped from outside, and nothing in it counts that as steal time: the report says that the host took the core."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nsight_report
import pytest
from machinery.guest.retried import GuestUnavailable, run_guest
from nsight_record import collect
from nsight_report.api import Capture
from recorder_run import manifest

from conftest import ROOT, skip_or_fail

pytestmark = [pytest.mark.guest, pytest.mark.slow]

STOP_NS, TICK_NS = 20_000_000, 4_000_000  # Debian's kernels have HZ=250
MISSED = "missed timer ticks"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """The slowest 4 % of 400 steps, which last for some 6 s: the guest was stopped in about 20 of all. The recorder has the same only core."""
    for program in ("qemu-system-x86_64", "busybox"):
        if not shutil.which(program):
            skip_or_fail("guest", f"{program} is not installed")
    if collect.find() is None:
        skip_or_fail("bpf", "nsight-collect is not built")
    directory = tmp_path_factory.mktemp("guest")
    options = ["--kernel", "6.12", "--rw", str(directory), "--timeout", "560", "--smp", "1", "--stops", "20"]
    inside = str(ROOT / "tests/record/in_guest.py")
    try:
        done = run_guest([*options, "--", sys.executable, inside, str(directory), "stops"])
    except GuestUnavailable as e:
        skip_or_fail("guest", str(e))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    return nsight_report.open(
        directory / "stops.nsight",
        intervals=str(directory / "stops.csv"),
        direction="interval",
        slow="p96-100",
        baseline="p25-75",
    )


def test_the_stops_are_found_with_their_length(stopped: Capture) -> None:
    contexts = stopped.frame("contexts")
    away = contexts[contexts["kind"] == "absent"]
    took = away["end_ns"] - away["start_ns"]
    # All but what passed before the next tick was due. A busy machine takes the guest's core at other times, too.
    assert (took >= STOP_NS - TICK_NS).sum() >= 10


def test_a_stop_is_named_with_its_length(stopped: Capture) -> None:
    rows = stopped.frame("anomalies")
    of = rows[rows["subject"].astype(str) == MISSED]
    assert len(of) >= 5
    assert set(of["category"].astype(str)) == {"Host took the core"}
    # Beside a stop, a busy machine makes the guest's own code slower, too: how much is not known here.
    assert (of["deviation_ns"] >= STOP_NS - 2 * TICK_NS).sum() >= 3


def test_the_rest_of_a_stop_is_a_bound(stopped: Capture) -> None:
    rows = stopped.frame("anomalies")
    of = rows["message_id"][rows["subject"].astype(str) == MISSED]
    bound = stopped.coverage.set_index("message_id")["host_at_most_ns"].reindex(of)
    assert (bound > 0).all()


def test_the_manifest_says_how_often_cores_tick(stopped: Capture) -> None:
    told = manifest(Path(stopped.path))["host"]
    assert told["tick_ns"] == TICK_NS and told["hypervisor"] is True
