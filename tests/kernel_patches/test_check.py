# SPDX-License-Identifier: GPL-2.0-only
"""The series of the newest base against its pristine sources: git am, checkpatch, recipients, compiled; perf and its tests.

What ``make kernel-check BASE=...`` does, but perf is built once, after the last patch. Downloads one source package (150 MB).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import skip_or_fail

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parents[2] / "kernel-patches"
NEEDED = ("bison", "flex", "bc", "ccache", "dpkg-deb", "git", "cpio", "perl")
#: sources.py, when the archive has a newer version than the one that the series is based on.
DROPPED = "the archive has no "


@pytest.fixture(scope="module")
def newest() -> str:
    if os.geteuid() != 0:
        skip_or_fail("kernel-sources", "downloading with apt needs root")
    if missing := [name for name in NEEDED if not shutil.which(name)]:
        skip_or_fail(
            "kernel-sources", f"{', '.join(missing)} missing (hint: make -C kernel-patches deps-check)"
        )
    sys.path.insert(0, str(HERE))
    import sources

    return next(iter(sources.bases()))


def checked(*argv: str) -> str:
    """What a check prints; the system's Python has what the kernel's own scripts import."""
    done = subprocess.run(["/usr/bin/python3", *argv], cwd=HERE, capture_output=True, text=True, timeout=3000)
    if DROPPED in done.stderr:
        skip_or_fail("archive", done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kernel_series_apply_pass_checkpatch_and_compile(newest: str) -> None:
    said = checked("check.py", newest)
    for series in ("timekeeping", "net"):
        n = len(list((HERE / series / newest).glob("0*.patch"))) - 1
        assert f"{newest} {series}: {n} patches apply" in said
    assert f"{newest} test-only: 1 patches apply" in said
    assert " 0 objects and programs compile" not in said


def test_perf_series_applies_builds_and_passes_its_tests(newest: str) -> None:
    said = checked("perf/check", "--fast", newest)
    assert "perf test 'Clock map': 3 passed" in said
    assert "perf test 'Record and convert times of the system clocks': 1 passed" in said
