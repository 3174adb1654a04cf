# SPDX-License-Identifier: GPL-2.0-only
"""Record one scenario; diagnose a recording, and load all data that are compared."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from machinery.testbed.bed import BedError, Testbed
from machinery.testbed.host import stolen_ms
from machinery.testbed.injections import Injection
from nsight_demo.logs import read_load

from .scenarios import Scenario

ROOT = Path(__file__).resolve().parents[3]
RECORD = ROOT / "tools" / "nsight-record" / "nsight-record"
REPORT = ROOT / "tools" / "nsight-report" / "nsight-report"
#: Time within which a recording of some seconds and its diagnosis end, unless they hang.
END_S = 600


@dataclass
class Run:
    """Results of one run: the report's answer, its tables, and the truth. ``n_lost``: as counted by the recorder."""

    scenario: Scenario
    summary: dict[str, Any]
    messages: pd.DataFrame
    anomalies: pd.DataFrame
    coverage: pd.DataFrame
    load: pd.DataFrame
    intervals: np.ndarray
    cores: np.ndarray | None
    seconds: float
    stolen_ms: int
    n_lost: int = 0
    witness: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Recording:
    """A recorded scenario with its truth, which is complete before anything is diagnosed; ``stolen_ms``: steal time during the
    recording; ``scenario``: a control if the injection never acted; other fields are those of ``Injection``."""

    scenario: Scenario
    directory: Path
    port: int
    intervals: np.ndarray
    cores: np.ndarray | None
    seconds: float
    stolen_ms: int
    witness: dict[str, int] = field(default_factory=dict)

    def unanswered(self) -> str:
        """The client's message about a server that answered nothing; "" for any other."""
        load = read_load(self.directory / "load.tsv")
        if (load["recv_ns"] > 0).any():
            return ""
        return f"the server answered none of the client's {len(load)} requests in {self.seconds:.1f} s"

    @property
    def capture(self) -> Path:
        """What nsight-record made."""
        return self.directory / "run.nsight"


def record(
    scenario: Scenario, directory: Path, seconds: float, options: list[str] | None = None
) -> Recording:
    """Record the scenario's load from its first connection to its last answer; ``directory`` keeps its capture, load log
    and truth (``intervals.tsv``, ``witness.json``)."""
    directory.mkdir(parents=True, exist_ok=True)
    load_options = options or [*scenario.load, "-d", f"{seconds:g}", "--start-delay", "300"]
    with Testbed(scenario.link, realtime=True) as bed:
        begin, stolen = time.monotonic(), stolen_ms()  # now that it is this run's turn
        server = bed.start_server(scenario.server)
        injection = scenario.injection()
        with injection.active(bed, server):
            argv = [str(RECORD), "-o", str(directory / "run.nsight"), "-f", "-q", "--port", str(server.port)]
            argv += ["--fix", "--rx", "--cpus", "0"]
            if scenario.framing != "none":
                argv += ["--payload", "--netns", bed.link.server]
            load = bed.load_argv(server, load_options, directory / "load.tsv", scenario.load_cpu)
            recorder = bed.start("nsight-record", [*argv, "--", *load], grace_s=20)
            if recorder.wait(END_S):
                raise BedError(f"nsight-record failed: {recorder.output()}")
    took, stolen = time.monotonic() - begin, stolen_ms() - stolen
    return with_truth(scenario, injection, directory, server.port, took, stolen)


def with_truth(
    scenario: Scenario, injection: Injection, directory: Path, port: int, took: float, stolen: int
) -> Recording:
    """Store the truth beside a run that has ended, and decide by it alone whether the run is a control."""
    intervals, cores = injection.intervals, injection.cores
    rows = intervals if cores is None else np.column_stack([intervals, cores])
    np.savetxt(directory / "intervals.tsv", rows, fmt="%d")
    witness = injection.witness
    (directory / "witness.json").write_text(json.dumps({"acted": injection.acted, **witness}) + "\n")
    ran = scenario if injection.acted else scenario.as_control()
    return Recording(ran, directory, port, intervals, cores, took, stolen, witness)


def report(capture: Path, scenario: Scenario, port: int) -> dict[str, Any]:
    """Output of ``nsight-report --json`` for the capture."""
    argv = [sys.executable, str(REPORT), str(capture), "--json", "--port", str(port)]
    argv += ["--framing", scenario.framing]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=END_S)
    if done.returncode:
        raise BedError(f"nsight-report failed: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


def diagnose(recording: Recording) -> Run:
    """The report's answer about a recording, and the data that it is compared with."""
    summary = report(recording.capture, recording.scenario, recording.port)
    messages, anomalies, coverage = (
        pd.read_parquet(recording.capture / "tables" / f"{name}.parquet")
        for name in ("messages", "anomalies", "coverage")
    )
    losses = json.loads((recording.capture / "manifest.json").read_text())["losses"]
    n_lost = sum(loss["count"] for loss in losses)
    messages = messages[(messages.direction == "rx") & (messages.lport == recording.port)]
    return Run(
        recording.scenario,
        summary,
        messages,
        anomalies,
        coverage,
        read_load(recording.directory / "load.tsv"),
        recording.intervals,
        recording.cores,
        recording.seconds,
        recording.stolen_ms,
        n_lost,
        recording.witness,
    )
