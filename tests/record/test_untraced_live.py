# SPDX-License-Identifier: GPL-2.0-only
"""Every switch and every wake-up is recorded, on hosts that do not trace all threads, too."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from typing import Any

import pytest
from machinery.made_up import record_files as rf
from machinery.testbed.ports import Port
from nsight_record import collect

from conftest import ROOT, skip_or_fail

pytestmark = pytest.mark.live
HANGS_S = 120
PLACES = int(re.findall(r"^#define PLACES (\d+)$", (ROOT / "tools/bpf/untraced.bpf.h").read_text(), re.M)[0])
WAKES_OR_SWITCHES = ("sched_waking", "sched_wakeup_new", "sched_switch")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], dict[str, int]]:
    """Events and losses of some seconds in which a thread is woken by a timer each millisecond, and processes end.

    Threads of the first process of some virtual machines run no program at a tracepoint, so no switch away from them
    is seen (here 190 of 190 in 12 s), nor a wake-up meanwhile. What the scheduler notes shows each of them."""
    tmp_path = tmp_path_factory.mktemp("untraced")
    program = collect.find()
    if os.geteuid() or not program:
        skip_or_fail("bpf", "needs root and nsight-collect")
    port = Port()
    done = threading.Event()

    def sleeps() -> None:
        while not done.is_set():
            time.sleep(0.001)

    argv = [program, "--port", str(port.number), str(tmp_path / "records")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as collector:
        assert collector.stdout
        while collector.stdout.readline() not in ("recording\n", ""):
            pass
        thread = threading.Thread(target=sleeps)
        thread.start()
        for _ in range(200):  # a process that ends gives process 1 something to do, above all an orphan
            subprocess.run(["sh", "-c", "sleep 0.01 & sleep 0.02"], check=True)
        done.set()
        thread.join()
        collector.send_signal(signal.SIGINT)
        out, _ = collector.communicate(timeout=HANGS_S)
    port.release()
    assert collector.returncode == 0, out
    found, _, info = rf.decode(tmp_path / "records", tmp_path / "decoded")
    return found, info["losses"]


def test_no_switch_is_missing_between_two_switches_of_a_core(
    recorded: tuple[list[Any], dict[str, int]],
) -> None:
    found, losses = recorded
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
    assert running and not wrong, (len(wrong), wrong[:3], {k: n for k, n in losses.items() if n})


def test_no_thread_that_slept_gets_a_core_without_a_wake_up(
    recorded: tuple[list[Any], dict[str, int]],
) -> None:
    found, losses = recorded
    got_core: dict[int, int] = {}
    slept: dict[int, int] = {}
    woken: dict[int, int] = {}
    wrong, n = [], 0
    # nsight-collect cannot tell threads apart whose numbers have the same low bits (untraced.bpf.h).
    places = Counter(tid % PLACES for tid in {event[5] for event in found if event[1] in WAKES_OR_SWITCHES})
    for event in found:
        ts, kind, tid, other = event[0], event[1], event[4], event[5]
        if kind in ("sched_waking", "sched_wakeup_new"):  # a number may be used again
            woken[other] = ts
        elif kind == "sched_switch":
            if event[6] & 0xFF and not event[6] & 0x100:  # it did not stay runnable
                slept[tid] = ts
            # A wake-up on another core can come right before the switch of a thread that is falling asleep.
            if slept.pop(other, None) and other in got_core and places[other % PLACES] == 1:
                n += 1
                if woken.get(other, 0) < got_core[other]:
                    wrong.append(event)
            got_core[other] = ts
    assert n > 1000 and not wrong, (n, len(wrong), wrong[:3], {k: n for k, n in losses.items() if n})
