# SPDX-License-Identifier: GPL-2.0-only
"""A real name server before a slow upstream server: every query of its clients is one request, and what the upstream did is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from machinery.testbed.bed import on_path
from nsight_record import clock, collect

from conftest import skip_or_fail
from evaluation.requests import causes, names

pytestmark = pytest.mark.live


@pytest.mark.parametrize("case", ["unbound-udp", "dnsmasq-udp", "dnsmasq-tcp"])
def test_queries_are_joined_and_the_slow_upstream_is_named(case: str) -> None:
    if os.geteuid():
        skip_or_fail("root", "recording needs root")
    if not collect.find() or not clock.find():
        skip_or_fail("bpf", "nsight-collect or nsight-clock is not built")
    if not on_path(case.partition("-")[0]):
        skip_or_fail("testbed", f"{case.partition('-')[0]} is not installed")
    done = subprocess.run(
        [sys.executable, names.__file__, "--seconds", "2", case],
        capture_output=True, text=True, timeout=causes.END_S,
    )  # fmt: skip
    found = re.search(
        rf"^{case} +(\d+) +([\d.]+)% +[\d.]+% +(\d+) .*slept in clock_nanosleep$", done.stdout, re.M
    )
    assert found, done.stdout + done.stderr
    assert int(found[1]) > 100 and float(found[2]) >= 99.9 and int(found[3]) > 0, done.stdout
