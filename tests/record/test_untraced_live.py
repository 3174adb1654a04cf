# SPDX-License-Identifier: GPL-2.0-only
"""Every switch of a core takes it from the thread that the switch before gave it, on hosts that do not trace all threads, too."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from machinery.made_up import record_files as rf
from machinery.testbed.ports import Port
from nsight_record import collect

from conftest import skip_or_fail

pytestmark = pytest.mark.live
HANGS_S = 120


def test_no_switch_is_missing_between_two_switches_of_a_core(tmp_path: Path) -> None:
    """Threads of the first process of some virtual machines run no program at a tracepoint, so no switch away from them
    is seen (here 190 of 190 in 12 s). What the scheduler notes about the next thread shows each of them."""
    program = collect.find()
    if os.geteuid() or not program:
        skip_or_fail("bpf", "needs root and nsight-collect")
    port = Port()
    argv = [program, "--port", str(port.number), str(tmp_path / "records")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as collector:
        assert collector.stdout
        while collector.stdout.readline() not in ("recording\n", ""):
            pass
        for _ in range(200):  # a process that ends gives process 1 something to do
            subprocess.run(["sleep", "0.02"], check=True)
        collector.send_signal(signal.SIGINT)
        out, _ = collector.communicate(timeout=HANGS_S)
    port.release()
    assert collector.returncode == 0, out
    found, _, info = rf.decode(tmp_path / "records", tmp_path / "decoded")
    running: dict[int, int] = {}
    wrong = []
    for event in found:
        if event[1] == "sched_switch":
            cpu, before, after = event[2], event[4], event[5]
            if running.get(cpu, before) != before:
                wrong.append(event)
            running[cpu] = after
        elif event[1] == "cpu_idle" and running.get(event[2]):
            wrong.append(event)
    assert running and not wrong, (len(wrong), wrong[:3], info["losses"]["switches_untraced"])
