# SPDX-License-Identifier: GPL-2.0-only
"""Live: the first diagnosis names the prepared cause, and after the change this cause has disappeared; lwIP's messages are complete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from machinery.harness import built
from machinery.harness.judged import judge
from machinery.testbed import ports
from machinery.testbed.bed import Testbed, build_programs, on_path
from machinery.testbed.turn import turn
from nsight_demo.logs import read_load

from conftest import skip_or_fail
from evaluation.case_study import measure, run, stories

pytestmark = [pytest.mark.live, pytest.mark.slow]


def require(story: stories.Story) -> None:
    """Skip, with the reason, if the story cannot run."""
    if os.geteuid():
        skip_or_fail("root", "recording needs root")
    problem = run.preflight([story])
    if problem:
        skip_or_fail("bpf", problem)
    if not on_path("gcc"):
        skip_or_fail("testbed", "gcc is not installed")
    build_programs()


def total_ns(diagnosis: dict, cause: str) -> int:
    """Delay of a cause over all slow messages."""
    return sum(c["total_deviation_ns"] for c in diagnosis["causes"] if c["cause"] == cause)


@pytest.mark.alone
def test_neighbour_is_named_and_is_gone_after_the_split(tmp_path: Path) -> None:
    require(stories.MEMCACHED)
    script = Path(run.__file__)
    argv = [sys.executable, str(script), "memcached", "--first", "--rounds", "1", "--tail-seconds", "1"]
    # The turn is taken here, so that waiting for it does not count as the program's time.
    with turn(), ports.reserved() as (port,):
        done = subprocess.run(
            [*argv, "-d", "3", "-o", str(tmp_path), "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=1800,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "memcached.json").read_text())
    before, after = found["initial"]["diagnosis"], found["split"]["diagnosis"]
    for name in ("initial", "split"):
        assert found[name]["tails_us"][0]["99.0"] > found[name]["tails_us"][0]["50.0"]
        assert f"### Iteration {1 + (name == 'split')}: {name}" in done.stdout
        assert found[name]["diagnosis"]["messages"]["n"] > 0
    # 99 % of all delay on a quiet machine; steal time of the host adds causes of its own.
    named = next((c for c in before["causes"] if c["cause"] == "nginx (A)"), None)
    n, median = (named["n_messages"], named["median_deviation_ns"]) if named else (0, 0)
    total, rest = total_ns(before, "nginx (A)"), total_ns(after, "nginx (A)")
    judge(
        "live",
        "case study: nginx is named, and after the split it is gone",
        n >= 10 and median >= 300_000 and rest < total / 10,
        f"nginx delays {n} messages by {median} ns (median), {total} ns in all; after the split {rest} ns",
    )


def test_messages_of_lwip_are_the_requests_of_the_client_with_every_stamp(tmp_path: Path) -> None:
    require(stories.USER_STACK)
    built.make(Path(__file__).parent)
    capture, log = tmp_path / "lwip.nsight", tmp_path / "load.tsv"
    with Testbed(realtime=True) as bed:
        server = stories.start_lwip(bed, bed.reserve_port(), 1)
        # Smaller than a packet, and one at a time on a connection: a request is one packet, and one read.
        options = ["-c", "4", "-r", "500", "-n", "600", "--start-delay", "300"]
        argv = [str(measure.RECORD), "-q", "-o", str(capture), "--port", str(server.port), "--rx", "--fix"]
        argv += ["--lwip", "--cpus", "0", "--", *bed.load_argv(server, options, log)]
        recorder = bed.start("nsight-record", argv, grace_s=20)
        assert recorder.wait(600) == 0, recorder.output()
    measure.diagnose(capture, server.port)
    messages = pd.read_parquet(capture / "tables" / "messages.parquet")
    messages = messages[(messages.direction == "rx") & (messages.lport == server.port)]
    load = read_load(log)
    both = load.assign(byte_end=load.byte_start + load.nbytes).merge(
        messages,
        left_on=["lport", "byte_start", "byte_end"],
        right_on=["rport", "byte_start", "byte_end"],
        suffixes=("_client", ""),
    )
    assert len(load) == len(messages) == len(both)
    assert both[["nic_ns", "arrival_ns", "handoff_ns", "app_ns", "call_ns"]].notna().all(axis=None)
    # The client's send call began before the packet reached the device, and its answer came after the read.
    assert ((both.first_ns >= both.send_ns) & (both.last_ns <= both.recv_ns)).all()
    assert set(messages.comm) == {"lwip-server"}
