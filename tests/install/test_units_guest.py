# SPDX-License-Identifier: GPL-2.0-only
"""The installed systemd units, run by a real systemd: in a guest with a stock kernel, which boots it as PID 1.

units_in_guest.py does the steps and says what it saw; the tests judge that.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from machinery.guest.retried import GuestUnavailable, run_guest
from nsight_monitor import loader
from nsight_record.errors import Missing

from conftest import ROOT, skip_or_fail

pytestmark = [pytest.mark.guest, pytest.mark.slow, pytest.mark.explicit]

UNITS = ("nsight-monitor", "nsight-monitor-exporter", "nsight-flight")
IN_GUEST = ROOT / "tests/install/units_in_guest.py"
#: /proc/PID/status: a filter of system calls.
SECCOMP_FILTER = "2"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What make install writes to /usr/local, without the packages that only the report needs."""
    place = tmp_path_factory.mktemp("units")
    words = ["install", f"DESTDIR={place}", "PYTHON=/usr/bin/python3", "WHEELS=no"]
    done = subprocess.run(["make", "-s", "-C", ROOT, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return place / "usr/local"


@pytest.fixture(scope="module")
def seen(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script saw in the guest. It has only the programs of Debian, and prometheus_client of the virtual environment."""
    for program in ("qemu-system-x86_64", "busybox", "systemctl", "bpftool"):
        if not shutil.which(program):
            skip_or_fail("guest", f"{program} is not installed")
    if not Path("/lib/systemd/systemd").exists():
        skip_or_fail("guest", "systemd is not installed")
    if os.geteuid():
        skip_or_fail("root", "only root's files are all readable in a guest")
    library = importlib.util.find_spec("prometheus_client")
    if library is None or not library.origin:
        skip_or_fail("prometheus", "prometheus_client is not installed")
    try:
        loader.find()
    except Missing as e:
        skip_or_fail("bpf", str(e))
    results = tmp_path_factory.mktemp("results")
    out = results / "facts.json"
    # On a busy machine the check finds that the timer's interrupt is late, and the boot hangs.
    options = [
        "--append",
        "no_timer_check",
        "--systemd",
        "--kernel",
        "6.12",
        "--take-turns",
        "--rw",
        str(results),
        "--timeout",
        "800",
    ]
    command = [
        "/usr/bin/python3",
        str(IN_GUEST),
        str(installed),
        str(Path(library.origin).parents[1]),
        str(out),
    ]
    try:
        done = run_guest([*options, "--", *command])
    except GuestUnavailable as e:
        skip_or_fail("guest", str(e))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    facts = json.loads(out.read_text())
    sys.stdout.write(json.dumps(facts, indent=1))
    assert not [name for name in facts if name.startswith("failed ")]
    return facts


def test_systemd_finds_nothing_wrong_with_the_installed_units(installed: Path) -> None:
    """Where they are installed, so that it also looks for the programs and pages. How much of the system each can reach is printed."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd is not installed")
    if os.geteuid():
        skip_or_fail("root", "only root can mount")
    script = """mount --bind "$1" /usr/local && cd /usr/local/lib/systemd/system && systemd-analyze verify ./nsight-*.service && exec >&2 &&
        for unit in nsight-*.service; do systemd-analyze security --offline=true --no-pager "$unit" | tail -n 1; done"""
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", str(installed)]
    done = subprocess.run(argv, capture_output=True, text=True)
    print(done.stderr)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("Overall exposure level") == len(done.stderr.strip().splitlines()) == len(UNITS)


def test_units_have_started_when_their_programs_are_attached(seen: dict[str, Any]) -> None:
    """Enabled, and started in one transaction as at boot: the monitor needs the running flight recorder (--flight)."""
    assert (seen["before"], seen["start"]["code"]) == ({}, 0)
    assert seen["programs at start"]["nsight-histogra"] >= 5
    assert seen["programs at start"]["nsight-collect"] >= 20
    assert all(state == {"ActiveState": "active", "NRestarts": "0"} for state in seen["states"].values())


def test_the_exporter_serves_counts_with_its_sandbox_on(seen: dict[str, Any]) -> None:
    assert seen["counted"][0] == 1000
    process = seen["exporter"]
    assert 61184 <= int(process["Uid"].split()[0]) <= 65519  # systemd's dynamic users
    assert (process["NoNewPrivs"], process["Seccomp"]) == ("1", SECCOMP_FILTER)
    assert {int(process[key], 16) for key in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {0}
    assert seen["exporter sees"] == {"captures": [], "writable": []}


def test_the_flight_recorder_writes_windows_for_its_trigger_and_on_request(seen: dict[str, Any]) -> None:
    slow = [t for t in seen["triggers"] if t["reason"] == "latency" and t["local_port"] == seen["port"]]
    assert any(t["latency_ns"] >= 3_000_000_000 and t["state"] == "complete" for t in slow)
    assert any(t["reason"] == "asked" for t in seen["triggers"])
    assert {t["mode"] for t in seen["triggers"]} == {"0o700"}


def test_a_killed_monitor_leaves_no_program_and_counts_again_from_zero(seen: dict[str, Any]) -> None:
    assert set(seen["left after kill"]) == {"nsight-collect"}
    (n_before, since_before), (n_after, since_after) = seen["counts around kill"]
    assert n_before > 1000
    assert since_after > since_before
    assert 500 <= n_after <= 510  # some of the ten between may come after the restart
    assert set(seen["states after kill"].values()) == {"active"}


def test_stopped_units_leave_no_program_and_no_process(seen: dict[str, Any]) -> None:
    assert seen["stop"]["code"] == 0
    assert seen["left after stop"] == [{}, []]
    assert all(r == {"Result": "success", "ActiveState": "inactive"} for r in seen["results"].values())
    assert seen["runtime"] == []


@pytest.mark.parametrize("unit", ["nsight-monitor", "nsight-flight"])
def test_a_kernel_without_types_is_refused_once_with_the_reason_in_the_journal(
    seen: dict[str, Any], unit: str
) -> None:
    refused = seen[f"refused {unit}"]
    assert refused["code"] != 0
    text = "\n".join(refused["journal"])
    assert "error: " in text
    assert "CONFIG_DEBUG_INFO_BTF" in text
    assert (refused["ActiveState"], refused["ExecMainStatus"]) == ("failed", "4")
