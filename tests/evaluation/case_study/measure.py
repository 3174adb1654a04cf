# SPDX-License-Identifier: GPL-2.0-only
"""One recording of a setup, and its tail latency at the client, measured without any recording."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from machinery.testbed.bed import BedError, Server, Testbed
from nsight_demo.logs import read_load

from .stories import APP_CPU, LOAD_CPU, Setup, Story

ROOT = Path(__file__).resolve().parents[3]
RECORD = ROOT / "tools" / "nsight-record" / "nsight-record"
REPORT = ROOT / "tools" / "nsight-report" / "nsight-report"
PERCENTILES = (50.0, 90.0, 99.0, 99.9)
CLIENT_PRIORITY = 2  # above the servers': one of them may be on the client's core
WARM_UP_S = 0.5
#: Time within which programs end after their given duration, unless they hang.
END_S = 600


@dataclass(frozen=True)
class Diagnosis:
    """Output of nsight-report: ``text`` as printed, ``summary`` as JSON."""

    command: str
    text: str
    summary: dict[str, Any]


def client_options(story: Story, setup: Setup, seconds: float) -> list[str]:
    """Options of the measured client."""
    return [*story.client, *setup.client, "-w", f"{WARM_UP_S:g}", "-d", f"{seconds:g}"]


def testbed() -> Testbed:
    """Where a story runs."""
    return Testbed(app_cpu=APP_CPU, load_cpu=LOAD_CPU, realtime=True)


def record(story: Story, setup: Setup, port: int, capture: Path, seconds: float) -> None:
    """Record ``seconds`` of the setup under its load; its server has that port."""
    with testbed() as bed:
        server = setup.start(bed, port)
        log = bed.directory / "client.tsv"
        load = bed.start_load(server, client_options(story, setup, 3600), log, fifo=CLIENT_PRIORITY)
        time.sleep(WARM_UP_S)
        argv = [str(RECORD), "-q", "-f", "-d", f"{seconds:g}", "-o", str(capture)]
        argv += ["--port", str(server.port), "--rx", "--fix", "--cpus", str(LOAD_CPU), *story.record]
        recorder = bed.start("nsight-record", argv, grace_s=20)
        if recorder.wait(seconds + END_S):
            raise BedError(f"nsight-record failed: {recorder.output()}")
        load.check_alive()


def diagnose(capture: Path, server_port: int, *options: str, with_json: bool = True) -> Diagnosis:
    """The output of nsight-report about the messages of the port, as text and (``with_json``) as JSON."""
    shown = ["nsight-report", capture.name, *(Path(o).name if o.endswith(".nsight") else o for o in options)]
    argv = [sys.executable, str(REPORT), str(capture), "--port", str(server_port), *options]
    outputs = []
    for more in ([], ["--json"]) if with_json else ([],):
        done = subprocess.run([*argv, *more], capture_output=True, text=True, timeout=END_S)
        if done.returncode:
            raise BedError(f"nsight-report failed: {done.stderr[-2000:]}")
        outputs.append(done.stdout)
    return Diagnosis(" ".join(shown), outputs[0], dict(json.loads(outputs[1])) if with_json else {})


def figures(capture: Path, server_port: int, directory: Path) -> None:
    """Write the report with its figures."""
    shutil.rmtree(directory, ignore_errors=True)
    argv = [sys.executable, str(REPORT), str(capture), "--port", str(server_port), "-o", str(directory)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=END_S)
    if done.returncode:
        raise BedError(f"nsight-report failed: {done.stderr[-2000:]}")


def latencies_us(load: pd.DataFrame) -> np.ndarray:
    """How long each counted request took, from when it was due to its answer.

    The time counts from when it was due, not sent: a client that waits for the previous answer sends
    less while the server is slow, and would miss the delay of those requests.
    """
    counted = load[load.counted & (load.recv_ns > 0)]
    return (counted.recv_ns - counted.intended_ns).to_numpy() / 1000


def tail(story: Story, setup: Setup, port: int, seconds: float) -> dict[float, float]:
    """Percentiles (us) of the client's latencies in one run of ``seconds`` without recording."""
    with testbed() as bed:
        server: Server = setup.start(bed, port)
        log = bed.directory / "client.tsv"
        load = bed.start_load(server, client_options(story, setup, seconds), log, fifo=CLIENT_PRIORITY)
        if load.wait(seconds + END_S):
            raise BedError(f"the client failed: {load.output()}")
        values = latencies_us(read_load(log))
    if not len(values):
        raise BedError("the client has no answered request")
    return {p: float(np.percentile(values, p, method="inverted_cdf")) for p in PERCENTILES}
