# SPDX-License-Identifier: GPL-2.0-only
"""Paths for every test, and NSIGHT_REQUIRE: preconditions whose absence is a failure, not a skip."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
for part in ("tools/nsight-report", "tools/nsight-record", "tests"):
    sys.path.insert(0, str(ROOT / part))

REQUIRED = set(filter(None, os.environ.get("NSIGHT_REQUIRE", "").split(",")))


def skip_or_fail(precondition: str, why: str) -> None:
    """Skip because ``precondition`` is absent, or fail if NSIGHT_REQUIRE names it."""
    if precondition in REQUIRED:
        pytest.fail(f"NSIGHT_REQUIRE={precondition}: {why}")
    pytest.skip(f"{precondition}: {why}")


@pytest.fixture(scope="session", autouse=True)
def tracefs() -> Iterator[None]:
    """tracefs, mounted for the tests where nothing mounts it at boot (no systemd), and unmounted again."""
    places = ("tracing/events", "debug/tracing/events")
    mounted = any(os.access(f"/sys/kernel/{p}", os.F_OK) for p in places)
    if mounted or os.geteuid() != 0:
        yield
        return
    where = "/sys/kernel/tracing"
    done = subprocess.run(["mount", "-t", "tracefs", "nodev", where], capture_output=True)
    yield
    if done.returncode == 0:
        subprocess.run(["umount", where], check=False)
