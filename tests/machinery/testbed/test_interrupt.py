# SPDX-License-Identifier: GPL-2.0-only
"""Ctrl-C is sent again to a program that ignored the first one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from machinery.testbed import interrupt

#: Ends at the N-th SIGINT, and prints how often it came.
FORGETS = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print("ready", flush=True)
for _ in range(int(sys.argv[1])):
    signal.sigwait([signal.SIGINT])
print(sys.argv[1])
"""


@pytest.mark.parametrize("n", [1, 2])
def test_it_is_sent_until_the_process_ends(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupt, "AGAIN_S", 0.2)
    with subprocess.Popen(
        [sys.executable, "-c", FORGETS, str(n)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        assert interrupt.interrupt(process, 60)[0].split() == [str(n)]


def test_one_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupt, "AGAIN_S", 0.05)
    with subprocess.Popen(
        [sys.executable, "-c", FORGETS, "1000000"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            interrupt.interrupt(process, 0.2)
        process.kill()
