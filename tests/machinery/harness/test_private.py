# SPDX-License-Identifier: GPL-2.0-only
"""Mounts of a test run are private to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import skip_or_fail
from machinery.harness import private

TESTS = Path(__file__).resolve().parents[2]
SCRIPT = """
import subprocess, sys
from machinery.harness import private
private.mounts()
subprocess.run(["mount", "-t", "tmpfs", "nsight-test", sys.argv[1]], check=True)
print(open("/proc/self/mounts").read())
private.mounts()  # children of a run stay in it
print(open("/proc/self/mounts").read())
"""


def test_nobody_else_sees_what_a_run_mounts(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        skip_or_fail("root", "mount namespaces need root")
    env = {k: v for k, v in os.environ.items() if k != private.INSIDE}
    argv = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(argv, cwd=TESTS, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"nsight-test {tmp_path} ") == 2
    assert "tracefs" in done.stdout
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
