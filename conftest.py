# SPDX-License-Identifier: GPL-2.0-only
"""Paths for every test, a directory for the run's notes, and the only way to skip; the rest: tests/machinery/harness/plugin.py."""

import os
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import hypothesis
import pytest

ROOT = Path(__file__).parent
for part in (
    "tools/nsight-report",
    "tools/nsight-record",
    "tools/nsight-capsule",
    "tools/nsight-monitor",
    "tools/nsight-demo",
    "tests",
    "tests/machinery/guest",
):
    sys.path.insert(0, str(ROOT / part))

from machinery.harness import capabilities, notes, private  # noqa: E402

pytest_plugins = ["machinery.harness.plugin"]
_OWN = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def skip_or_fail(capability: str, why: str) -> NoReturn:
    """Skip because ``capability`` is absent; harness/plugin.py turns this into a failure if NSIGHT_REQUIRE names the capability."""
    pytest.skip(f"{capabilities.known(capability)}: {why}")


def pytest_configure(config: pytest.Config) -> None:
    """Make private mounts, and a directory for notes if tests/run has not made one. No drawn case is refused for its time."""
    private.mounts()
    # With CI in the environment, hypothesis would draw the same cases whatever the seed.
    hypothesis.settings.register_profile("nsight", deadline=None, derandomize=False)
    hypothesis.settings.load_profile("nsight")
    if notes.DIRECTORY not in os.environ:
        config.stash[_OWN] = tempfile.TemporaryDirectory(prefix="nsight-tests-")
        os.environ[notes.DIRECTORY] = config.stash[_OWN].name


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the directory for notes."""
    if own := config.stash.get(_OWN, None):
        own.cleanup()
        del os.environ[notes.DIRECTORY]
