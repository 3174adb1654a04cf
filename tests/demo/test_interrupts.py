# SPDX-License-Identifier: GPL-2.0-only
"""Interrupts of the demo that arrive where Python ignores exceptions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from nsight_demo.processes import Process

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


WAITING = """
import os, signal, sys, threading
sys.path.insert(0, sys.argv[1])
from nsight_demo.interrupts import Interrupts
from nsight_demo.processes import Process

class InterruptedOnceTaken:
    def __init__(self, lock):
        self.lock = lock

    def acquire(self, *args):
        taken = self.lock.acquire(*args)
        if taken and not interrupts._pending:
            os.kill(os.getpid(), signal.SIGINT)
        return taken

    def release(self):
        self.lock.release()

    __enter__ = acquire

    def __exit__(self, *exc):
        self.release()

with Interrupts() as interrupts:
    process = Process("sleep", ["sleep", "600"], None)
    process._popen._waitpid_lock = InterruptedOnceTaken(process._popen._waitpid_lock)
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        process.wait(60)
    except KeyboardInterrupt:
        interrupts.close()
        process.stop()
        print(process.poll())
"""


def test_a_wait_that_was_interrupted_does_not_hang_the_teardown() -> None:
    """The interrupt comes while Popen holds its lock and would not release it, or after a second."""
    done = subprocess.run(
        [sys.executable, "-c", WAITING, str(TOOL)], capture_output=True, text=True, timeout=50
    )
    assert (done.stdout, done.stderr) == ("-15\n", "")


@pytest.mark.parametrize("command, code", [("exit 7", 7), ("kill -9 $$", -9), ("exit 0", 0)])
def test_exit_code_of_a_process_is_there_before_and_after_it_was_stopped(command: str, code: int) -> None:
    process = Process("sh", ["sh", "-c", command], None)
    assert process.wait(60) == code
    process.stop()
    assert (process.poll(), process.wait(0)) == (code, code)
    assert not Path(f"/proc/{process.pid}").exists(), "a zombie is left"
