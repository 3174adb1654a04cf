# SPDX-License-Identifier: GPL-2.0-only
"""Paths for every test, and NSIGHT_REQUIRE: preconditions whose absence is a failure, not a skip."""

import os
import sys
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
