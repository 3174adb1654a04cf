# SPDX-License-Identifier: GPL-2.0-only
"""The order of readings on stock kernels whose clock is slewed and stepped all the time.

Both kernels matter: each has a different layout of the vvar page (newer kernels have a third one).
"""

import shutil
import subprocess
import sys
from pathlib import Path

import clock_lines as cl
import ordering
import pytest
from nsight_report import clocks

from conftest import skip_or_fail

pytestmark = [pytest.mark.guest, pytest.mark.slow]


def record(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run ordering.py with a short recording in a guest, kept in ``directory``."""
    if not shutil.which("qemu-system-x86_64"):
        skip_or_fail("guest", "qemu-system-x86_64 is not installed")
    command = [sys.executable, str(Path(ordering.__file__)), "--keep", str(directory), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("kernel", ["6.1", "6.12"])
def test_a_disturbed_clock_is_kept_in_order_and_a_stale_map_is_not(kernel: str, tmp_path: Path) -> None:
    options = ["--guest", kernel, "--disturb", "--pairs", "500000", "--seconds", "6", "--poll-us", "300"]
    done = record(tmp_path, *options)
    assert done.returncode == 0 and done.stdout.endswith("PASS\n"), done.stdout + done.stderr
    assert "using paired readings" not in done.stderr

    pairs, readings = ordering.load(tmp_path)
    assert len(pairs) >= 500_000 and readings.clocksource == "tsc"
    assert len(readings.polled) > 300
    table, losses = clocks.build(readings)
    updates, bent = ordering.changes(table)
    assert updates > 300 and bent > 100
    result = ordering.compare(pairs, table, ordering.missed(readings))
    # On a loaded host, the poller misses some updates; clocks are stepped by up to a second there, and back.
    assert result.violations == 0 and result.undone < len(pairs) // 50, result
    assert "error" not in [severity for severity, _ in cl.losses(losses).values()]
    # the first state alone is soon wrong by far more than the distance of the readings
    assert ordering.compare(pairs, ordering.stale(table)).violations > len(pairs) // 10


def test_another_clocksource_is_served_by_paired_readings(tmp_path: Path) -> None:
    # the kernel keeps time with the ACPI timer: the vvar page says nothing about TSC
    options = [
        "--guest",
        "6.12",
        "--guest-append",
        "clocksource=acpi_pm",
        "--pairs",
        "50000",
        "--seconds",
        "2",
    ]
    done = record(tmp_path, *options)
    assert done.returncode == 0 and done.stdout.endswith("PASS\n"), done.stdout + done.stderr
    assert "using paired readings: the clocksource is not the raw TSC" in done.stderr
    pairs, readings = ordering.load(tmp_path)
    assert readings.clocksource == "acpi_pm" and not len(readings.polled)
    table, _ = clocks.build(readings)
    rows = [r for r in table.to_pylist() if r["domain"] != "perf"]
    assert rows and all(r["source"] == "bracket" for r in rows)
    assert ordering.compare(pairs, table).strict == 0  # no reading without a bound
