# SPDX-License-Identifier: GPL-2.0-only
"""Clocks that several kernels have in common: options, KVM's files in debugfs, readings, the manifest."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nsight_capsule import clocks
from nsight_record.errors import Missing
from nsight_report.hops import references

from capsule.stamping import TOOL
from conftest import skip_or_fail


def cpu(root: Path, name: str, offset: int, **parts: int) -> None:
    """A virtual CPU as KVM shows it."""
    (root / name).mkdir(parents=True)
    (root / name / "tsc-offset").write_text(f"{offset}\n")
    for part, value in parts.items():
        (root / name / f"tsc-{part.replace('_', '-')}").write_text(f"{value}\n")


def test_examples_of_clocks_hold() -> None:
    assert doctest.testmod(clocks).failed == doctest.testmod(references).failed == 0


@pytest.mark.parametrize("text", ["realtime", "realtime,5", "utc,1us", "/dev/ptp0,-1us", "tai,1s", ""])
def test_a_clock_without_a_bound_or_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        clocks.common(text)


@pytest.mark.parametrize("text", ["web", "web=", "=7", "web=x", "web=-1"])
def test_a_guest_without_name_or_process_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        clocks.guest(text)


def test_a_guest_s_tsc_is_what_kvm_says_of_all_of_its_cpus(tmp_path: Path) -> None:
    """Process 71 is another one than 7, and has another machine with one more CPU."""
    scaling = {"scaling_ratio": 3 << 47, "scaling_ratio_frac_bits": 48}
    for name in ("7-12/vcpu0", "7-12/vcpu1"):
        cpu(tmp_path, name, -5_000, **scaling)
    cpu(tmp_path, "71-12/vcpu0", 9)
    assert clocks.guest_tsc("web", 7, tmp_path) == {"offset": -5_000, "ratio": 3 << 47, "ratio_bits": 48}
    assert clocks.guest_tsc("db", 71, tmp_path) == {"offset": 9, "ratio": 1, "ratio_bits": 0}
    cpu(tmp_path, "7-12/vcpu2", -5_001, **scaling)
    with pytest.raises(Missing, match="virtual CPUs have different TSCs"):
        clocks.guest_tsc("web", 7, tmp_path)
    with pytest.raises(Missing, match="no virtual machine of that process") as error:
        clocks.guest_tsc("web", 8, tmp_path)
    assert error.value.hint


def test_a_guest_whose_tsc_changed_is_named_and_left_out(tmp_path: Path) -> None:
    """It was restored from a snapshot, for example. A guest that has ended is as it was."""
    cpu(tmp_path, "7-12/vcpu0", 1)
    cpu(tmp_path, "8-12/vcpu0", 2)
    known = clocks.Clocks(None, [("web", 7), ("db", 8)], tmp_path)
    (tmp_path / "7-12/vcpu0/tsc-offset").write_text("3\n")
    (tmp_path / "8-12/vcpu0/tsc-offset").unlink()
    (tmp_path / "8-12/vcpu0").rmdir()
    assert known.end() == ["web"]
    assert known.manifest()["guests"] == {"db": {"offset": 2, "ratio": 1, "ratio_bits": 0}}


def test_of_some_tries_the_reading_with_the_closest_bracket_is_kept() -> None:
    """Brackets of 50, 20, 30, ... ns."""
    times = iter([0, 50, 100, 120, 200, 230, *range(1_000, 2_200, 100)])
    values = iter(range(100))
    assert clocks.bracketed(lambda: next(values), lambda: next(times)) == [100, 1, 120]


def test_a_long_run_keeps_readings_of_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for four, the fifth reading drops the second and fourth; then half as many are taken."""
    monkeypatch.setattr(clocks, "MOST_READINGS", 4)
    values = iter(range(0, 1_000, 1))
    taken = clocks.Readings(lambda: next(values))
    for _ in range(5):
        taken.take(always=True)
    numbers = [reading[1] // 9 for reading in taken.taken]  # nine tries each
    assert numbers == [0, 2, 4]
    taken.take()
    assert len(taken.taken) == 3


def test_a_device_that_is_no_clock_is_told_with_its_fix() -> None:
    for path in ("/dev/null", "/dev/no-such-clock"):
        with pytest.raises(Missing, match=path) as error:
            clocks.reader(clocks.Common(path, 0))
        assert error.value.hint


def test_a_process_in_a_time_namespace_takes_no_readings(tmp_path: Path) -> None:
    """Its CLOCK_MONOTONIC is not the one of the kernel's timestamps."""
    if os.geteuid():
        skip_or_fail("root", "a time namespace is made by root")
    program = "import sys; sys.path[:0] = sys.argv[1].split(':')\nfrom nsight_capsule import clocks\nprint(clocks.in_time_namespace(), clocks.Clocks(None, []).manifest()['readings'])"  # fmt: skip
    words = [sys.executable, "-c", program, ":".join(sys.path)]
    away = ["unshare", "--time", "--monotonic", "1000", "--fork"]
    said = [
        subprocess.run([*of, *words], capture_output=True, text=True, check=True).stdout for of in ([], away)
    ]
    assert said[0].startswith("False")
    assert said[1] == "True {}\n"


@pytest.mark.live
@pytest.mark.alone
def test_a_run_has_readings_of_its_clocks_in_its_manifest(tmp_path: Path) -> None:
    """In a network namespace of its own, where no packet passes."""
    if os.geteuid():
        skip_or_fail("root", "packets are stamped by root")
    out = tmp_path / "out"
    words = [sys.executable, str(TOOL), "--match", "--point", "lo", "--clock", "realtime,7us", "-d", "0.5", "-o", str(out), "-q"]  # fmt: skip
    subprocess.run(
        ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *words], check=True
    )
    import json

    made = json.loads((out / "manifest.json").read_text())["common"]
    assert made["clock"] == {"name": "realtime", "bound_ns": 7_000}
    found = references.of(made)
    assert found.bound_ns == 7_000
    assert {"common", "tsc"} == set(found.readings)
    for name, rows in found.readings.items():
        assert len(rows) == len(made["readings"][name]) >= 3
        assert rows == sorted(rows)
