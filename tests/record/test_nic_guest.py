# SPDX-License-Identifier: GPL-2.0-only
"""Timestamps of a NIC with a clock of its own: QEMU's igb, in a guest. Every second datagram has one; nic_in_guest.py says how."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import nic_in_guest
import nsight_report
import pandas as pd
import pytest
from machinery.guest.retried import GuestUnavailable, run_guest
from nsight_record import collect
from recorder_run import manifest

from conftest import ROOT, skip_or_fail

pytestmark = [pytest.mark.guest, pytest.mark.trixie, pytest.mark.slow]

N_WITH = nic_in_guest.N // 2


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with what nic_in_guest.py wrote."""
    for program in ("qemu-system-x86_64", "busybox"):
        if not shutil.which(program):
            skip_or_fail("guest", f"{program} is not installed")
    if collect.find() is None:
        skip_or_fail("bpf", "nsight-collect is not built")
    if not (ROOT / "build/trixie/.done").exists():
        skip_or_fail("trixie", "tests/machinery/guest/trixie --prepare has not been run")
    out = tmp_path_factory.mktemp("nic")
    # The driver has the registers, too. On a busy machine the check finds that the timer's interrupt is late, and the boot hangs.
    options = [
        "--kernel",
        "6.12",
        "--igb",
        "--append",
        "iomem=relaxed no_timer_check",
        "--take-turns",
        "--rw",
        str(out),
        "--timeout",
        "600",
    ]
    try:
        done = run_guest(
            [*options, "--", sys.executable, str(ROOT / "tests/record/nic_in_guest.py"), str(out)]
        )
    except GuestUnavailable as e:
        skip_or_fail("guest", str(e))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    return out


@pytest.fixture(scope="module")
def messages(seen: Path) -> pd.DataFrame:
    found = nsight_report.open(str(seen / "nic.nsight")).messages
    found = found[(found["direction"] == "rx") & (found["lport"] == nic_in_guest.PORT)]
    return found[found["nbytes"].isin([nic_in_guest.WITH, nic_in_guest.WITHOUT])]


def stamps(seen: Path) -> list[tuple[int, int]]:
    """Bytes and the NIC's timestamp of each datagram, as the kernel gave them to the receiver."""
    return [(size, stamp) for size, stamp in json.loads((seen / "stamps.json").read_text())]


def test_the_nic_timestamps_every_second_datagram(seen: Path) -> None:
    """What the other tests stand on."""
    assert all((stamp > 0) == (size == nic_in_guest.WITH) for size, stamp in stamps(seen))
    (device,) = [n for n in manifest(seen / "nic.nsight")["nics"] if n["driver"] == "igb"]
    assert device["timestamping"]["hardware_rx"]
    assert device["phc"] == 0


def test_recorded_timestamps_are_the_kernels_to_the_nanosecond(seen: Path) -> None:
    events = nsight_report.open(str(seen / "nic.nsight")).frame("events")
    recorded = events.loc[events["hw_timestamp"] > 0, "hw_timestamp"]
    assert sorted(set(recorded)) == sorted(stamp for _, stamp in stamps(seen) if stamp)


def test_messages_begin_in_the_nic_where_it_timestamped_them(seen: Path, messages: pd.DataFrame) -> None:
    assert len(messages) == nic_in_guest.N
    source = messages["nic_source"].astype(str)
    assert (source[messages["nbytes"] == nic_in_guest.WITH] == "hw").all()
    # The sender is on the same machine, so that its end of the wire is known.
    assert (source[messages["nbytes"] == nic_in_guest.WITHOUT] == "peer_xmit").all()


def test_the_nics_clock_which_is_1000_s_ahead_is_converted(seen: Path, messages: pd.DataFrame) -> None:
    """The NIC had each datagram before the kernel had it, by less than the second that a datagram can take here."""
    found = messages[messages["nic_source"].astype(str) == "hw"]
    before = found["arrival_ns"].astype("int64") - found["nic_ns"].astype("int64")
    error = found["nic_error_ns"].astype("int64")
    assert len(found) == N_WITH
    assert (before >= -error).all()
    assert (before < 1_000_000_000).all()
    print(
        f"NIC to kernel: median {before.median() / 1e3:.0f} us; error bound: median {error.median() / 1e3:.1f} us, at most {error.max() / 1e3:.1f} us"
    )


def test_the_monitor_does_not_take_the_nics_clock_for_its_own(seen: Path) -> None:
    """It counts from the kernel's timestamp of each datagram, which every one has."""
    last = json.loads((seen / "lines").read_text().splitlines()[-1])
    assert last["last"]
    assert last["counts"]["stamp_kernel"] == nic_in_guest.N
    assert not any(n for name, n in last["counts"].items() if name.startswith("no_stamp"))
    read = next(h for h in last["histograms"] if h["stage"] == "udp-socket-read")
    assert sum(read["n"].values()) == nic_in_guest.N
    assert read["sum_ns"] < nic_in_guest.N * 1_000_000_000
