# SPDX-License-Identifier: GPL-2.0-only
"""Run one scenario: record it, have it diagnosed, load everything that is compared."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from testbed.bed import Testbed, TestbedError
from testbed.host import Absence
from testbed.logs import read_load

from .scenarios import Scenario

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD = ROOT / "tools" / "nsight-record" / "nsight-record"
REPORT = ROOT / "tools" / "nsight-report" / "nsight-report"


@dataclass
class Run:
    """What one run left: the report's answer, its tables, and the truth."""

    scenario: Scenario
    summary: dict[str, Any]
    messages: pd.DataFrame
    anomalies: pd.DataFrame
    coverage: pd.DataFrame
    load: pd.DataFrame
    intervals: np.ndarray
    lports: list[int]
    seconds: float
    stolen_ms: int
    disturbed: bool


def record(
    bed: Testbed, scenario: Scenario, capture: Path, load_log: Path, options: list[str]
) -> tuple[np.ndarray, list[int]]:
    """Record the scenario's load from its first connection to its last answer; returns the truth."""
    server = bed.start_server(scenario.server)
    injection = scenario.injection()
    with injection.active(bed, server):
        load = bed.load_argv(server, options, load_log, scenario.load_cpu)
        argv = [
            str(RECORD),
            "-o",
            str(capture),
            "-f",
            "-q",
            "--port",
            str(server.port),
            "--fix",
            "--rx",
            "--cpus",
            "0",
        ]
        if scenario.framing != "none":
            argv += ["--payload", "--netns", bed.link.server]
        recorder = bed.start("nsight-record", [*argv, "--", *load], grace_s=20)
        if recorder.wait(120):
            raise TestbedError(f"nsight-record failed: {recorder.output()}")
    return injection.intervals, injection.lports or []


def diagnose(capture: Path, scenario: Scenario, port: int) -> dict[str, Any]:
    """What ``nsight-report --json`` says about the capture."""
    argv = [
        sys.executable,
        str(REPORT),
        str(capture),
        "--json",
        "--port",
        str(port),
        "--framing",
        scenario.framing,
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise TestbedError(f"nsight-report failed: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


def run(scenario: Scenario, folder: Path, seconds: float, options: list[str] | None = None) -> Run:
    """Record and diagnose; the capture and the load log stay in ``folder``."""
    from testbed.servers import KINDS

    begin, absence = time.monotonic(), Absence()
    folder.mkdir(parents=True, exist_ok=True)
    capture, load_log = folder / "run.nsight", folder / "load.tsv"
    with Testbed(scenario.link, realtime=True) as bed:
        chosen = options or [*scenario.load, "-d", f"{seconds:g}", "--start-delay", "300"]
        intervals, lports = record(bed, scenario, capture, load_log, chosen)
    stolen, disturbed = absence.ms(), absence.matters()
    np.savetxt(folder / "intervals.tsv", intervals, fmt="%d")
    summary = diagnose(capture, scenario, KINDS[scenario.server].port)
    tables = {
        n: pd.read_parquet(capture / "tables" / f"{n}.parquet") for n in ("messages", "anomalies", "coverage")
    }
    messages = tables["messages"]
    messages = messages[(messages.direction == "rx") & (messages.lport == KINDS[scenario.server].port)]
    return Run(
        scenario,
        summary,
        messages,
        tables["anomalies"],
        tables["coverage"],
        read_load(load_log),
        intervals,
        lports,
        time.monotonic() - begin,
        stolen,
        disturbed,
    )
