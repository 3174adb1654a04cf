# SPDX-License-Identifier: GPL-2.0-only
"""Interrupts of the demo that arrive where Python ignores exceptions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools/nsight-demo"

IGNORED = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from nsight_demo.interrupts import Interrupts

class Deleted:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):  # the handler runs between two of these
            pass

class Broken:
    def __del__(self):
        raise ValueError("of its own")

try:
    with Interrupts():
        deleted, broken = Deleted(), Broken()
        del broken
        del deleted
        print("went on")
        time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_that_python_ignores_comes_again_without_a_traceback() -> None:
    """Other exceptions that Python ignores are still printed."""
    done = subprocess.run(
        [sys.executable, "-c", IGNORED, str(TOOL)], capture_output=True, text=True, timeout=50
    )
    assert done.stdout.splitlines() == ["went on", "interrupted"]
    assert "of its own" in done.stderr
    assert "KeyboardInterrupt" not in done.stderr
