# SPDX-License-Identifier: GPL-2.0-only
"""The recorded wait for CPU quota equals the control group's own statistics, even if other threads have the core meanwhile."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nsight_report
import pandas as pd
import pytest
from machinery.testbed.quota import quota
from nsight_demo.processes import BedError
from nsight_report.tables.data_frames import to_pandas
from recorder_run import Running, require_live

from conftest import skip_or_fail

pytestmark = [pytest.mark.live]

CORE = max(os.sched_getaffinity(0))
QUOTA_US, PERIOD_US = 4_000, 20_000
HANGS_S = 120
#: The worker runs until it was kept from running TIMES times, and prints how often that was in all. Half a quota's work lies between
#: two checks, so no two waits end between them. It does not use nr_throttled: the kernel also counts a queue that is throttled while
#: its thread waits for the core anyway. Then nobody waits for quota if the next period begins before the thread gets there (of 25,
#: up to three on a busy core).
TIMES = 25
WORK = """
import os, sys, time
def kept():
    return open(sys.argv[1]).read()
print("ready", flush=True)
sys.stdin.readline()
n, last = 0, kept()
while n < int(sys.argv[2]):
    until = time.monotonic() + 0.002
    while time.monotonic() < until:
        pass
    now = kept()
    n += now != last
    last = now
print(n, flush=True)
os._exit(0)
"""
COLUMNS = ("tid", "start_ns", "end_ns", "state", "cpu")


@contextlib.contextmanager
def busy_core() -> Iterator[None]:
    # In a session of its own: with the priority of this one (autogroup) it could leave the worker too little.
    loop = subprocess.Popen(
        ["taskset", "-c", str(CORE), "sh", "-c", "while :; do :; done"], start_new_session=True
    )
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


def states(directory: Path) -> pd.DataFrame:
    pipeline = nsight_report.open(directory).pipeline
    pipeline.run_for(["thread_states"])
    return pd.concat([to_pandas(part) for part in pipeline.stored("thread_states").batches(COLUMNS)])


def test_waits_for_quota_add_up_to_what_the_group_was_throttled(tmp_path: Path) -> None:
    """The core is never idle. The group's own statistics are exact to the ns; the recorder reads the same counter."""
    require_live()
    with contextlib.ExitStack() as stack:
        try:
            group = stack.enter_context(quota(QUOTA_US, PERIOD_US))
        except BedError as e:
            skip_or_fail("root", str(e))
        stack.enter_context(busy_core())
        worker = subprocess.Popen(
            ["taskset", "-c", str(CORE), sys.executable, "-c", WORK, group.own_statistics, str(TIMES)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        stack.callback(worker.kill)
        assert worker.stdout and worker.stdin
        assert worker.stdout.readline() == "ready\n"
        running = Running(tmp_path / "a.nsight")
        stack.callback(running.process.kill)
        running.wait_recording()
        group.add(worker.pid)
        before = group.kept_ns()
        counted = int(worker.communicate("\n", timeout=HANGS_S)[0])
        # Not throttled_ns: a process that ends with its quota used up leaves a throttled group, and nobody waits in it.
        told = group.kept_ns() - before
        running.process.terminate()
        running.end()
        found = states(tmp_path / "a.nsight")
    ns = found["end_ns"] - found["start_ns"]
    throttled = found["state"] == "throttled"
    assert set(found.loc[throttled, "tid"]) == {worker.pid}
    assert set(found.loc[throttled, "cpu"]) == {CORE}
    # Also if the kernel did not show the context switch that ended a wait, as on some machines.
    assert told * 0.99 <= ns[throttled].sum() <= told * 1.01
    # One more if the quota ran out while the worker ended.
    assert counted <= throttled.sum() <= counted + 1
