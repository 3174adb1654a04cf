# SPDX-License-Identifier: GPL-2.0-only
"""Paths for every test, and NSIGHT_REQUIRE: preconditions whose absence is a failure, not a skip."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).parent
for part in ("tools/nsight-report", "tools/nsight-record", "tests"):
    sys.path.insert(0, str(ROOT / part))

from testbed.host import Absence  # noqa: E402

#: Tests of which the machine must not be taken away, and how often such a test runs at most.
MEASURING, RUNS = ("alone", "live"), 3
_TRACEFS = "/sys/kernel/tracing"
_MOUNTED = pytest.StashKey[bool]()

REQUIRED = set(filter(None, os.environ.get("NSIGHT_REQUIRE", "").split(",")))


def skip_or_fail(precondition: str, why: str) -> None:
    """Skip because ``precondition`` is absent, or fail if NSIGHT_REQUIRE names it."""
    if precondition in REQUIRED:
        pytest.fail(f"NSIGHT_REQUIRE={precondition}: {why}")
    pytest.skip(f"{precondition}: {why}")


def pytest_configure(config: pytest.Config) -> None:
    """Mount tracefs for the tests where nothing mounts it at boot (no systemd)."""
    places = ("tracing/events", "debug/tracing/events")
    mounted = any(os.access(f"/sys/kernel/{p}", os.F_OK) for p in places)
    if (
        mounted or os.geteuid() != 0 or hasattr(config, "workerinput")
    ):  # workers of xdist share their parent's
        return
    done = subprocess.run(["mount", "-t", "tracefs", "nodev", _TRACEFS], capture_output=True)
    config.stash[_MOUNTED] = done.returncode == 0


def pytest_unconfigure(config: pytest.Config) -> None:
    """Unmount what pytest_configure mounted."""
    if config.stash.get(_MOUNTED, False):
        subprocess.run(["umount", _TRACEFS], check=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A failed measurement during which the host took the machine away is made again, and says so."""
    if not any(item.get_closest_marker(name) for name in MEASURING):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for left in reversed(range(RUNS)):
        absence = Absence()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if not left or not absence.matters() or not any(report.failed for report in reports):
            break
        sys.stderr.write(f"\n{item.nodeid}: once more, the host was absent for {absence.ms()} ms\n")
        item._initrequest()  # type: ignore[attr-defined]  # what fixtures gave is gone
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
