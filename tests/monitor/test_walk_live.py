# SPDX-License-Identifier: GPL-2.0-only
"""From a firing alert to the named cause, as in Documentation/monitor.md: monitor, flight recorder, Prometheus, report."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machinery.testbed.ports import reserved
from monitored import HANGS_S, connected, inode, link
from nsight_demo.namespaces import Link
from nsight_monitor import exporter
from prometheus_server import asked, scraping, wait_for

from conftest import ROOT, skip_or_fail

pytestmark = [pytest.mark.live, pytest.mark.tools]
MONITOR = ROOT / "tools/nsight-monitor/nsight-monitor"
RECORDER = ROOT / "tools/nsight-record/nsight-record"
REPORT = ROOT / "tools/nsight-report/nsight-report"
RULES = ROOT / "tools/nsight-monitor/prometheus/nsight-rules.yml"
#: The server sleeps for STALL_S while one request in STALL_EVERY waits: more than 1 % of the reads are later than 10 ms.
STALL_S, STALL_EVERY = 0.03, 40


@contextlib.contextmanager
def running(*argv: object, until: str = "") -> Iterator[subprocess.Popen[str]]:
    """A program that has printed ``until`` on its standard error. It is ended with SIGTERM at the end of the block."""
    process = subprocess.Popen(list(map(str, argv)), stderr=subprocess.PIPE, text=True)
    assert process.stderr
    said = []
    try:
        while until and not (said and until in said[-1]):
            said.append(process.stderr.readline())
            if not said[-1]:
                skip_or_fail("bpf", "".join(said))
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(HANGS_S)


@contextlib.contextmanager
def stalling(veth: Link, port: int) -> Iterator[None]:
    """Requests, one after the other; the server sleeps while every STALL_EVERYth one waits."""
    leave, waits, sent = threading.Event(), threading.Event(), threading.Event()
    with connected(veth, True, False, port) as (client, server):

        def serve() -> None:
            n = 0
            while not leave.is_set():
                if n % STALL_EVERY == 0:
                    sent.wait(HANGS_S)
                    time.sleep(STALL_S)
                sent.clear()
                if not (data := server.recv(64)):
                    return
                n += 1
                server.sendall(data)
                waits.set()

        def ask() -> None:
            while not leave.is_set():
                client.sendall(b"x" * 64)
                sent.set()
                client.recv(64)
                waits.wait(HANGS_S)
                waits.clear()

        threads = [threading.Thread(target=work, daemon=True) for work in (serve, ask)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            leave.set()
            sent.set()
            waits.set()
            for thread in threads:
                thread.join(HANGS_S)


def quickened(rules: str) -> str:
    """The shipped rules, with seconds instead of minutes."""
    return re.sub(r"for: 5m", "for: 1s", rules.replace("[5m]", "[5s]"))


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A namespace whose server stalls, recorder, monitor and Prometheus; yields Prometheus's port and the windows' directory."""
    if os.geteuid():
        skip_or_fail("root", "BPF programs need root")
    if exporter.prometheus_client is None:
        skip_or_fail("prometheus", "prometheus_client is not installed")
    windows = tmp_path / "windows"
    with contextlib.ExitStack() as stack:
        veth = stack.enter_context(link("walk"))
        port, ours = stack.enter_context(reserved(2))
        filters = ("--port", port, "--netns", inode(veth.server))
        stack.enter_context(running(RECORDER, "--flight", "-o", windows, *filters, until="flight recorder:"))
        stack.enter_context(
            running(sys.executable, MONITOR, *filters, "--prometheus", ours, "--flight", windows, "-i", 0.5, until="serving")
        )  # fmt: skip
        rules = quickened(RULES.read_text())
        theirs = stack.enter_context(scraping(tmp_path, ours, "exemplar-storage", rules=rules))
        stack.enter_context(stalling(veth, port))
        yield theirs, windows


def test_a_firing_alert_leads_to_the_window_and_the_report_names_the_cause(walk: tuple[int, Path]) -> None:
    port, windows = walk

    def firing() -> Any:
        alerts = (asked(port, "alerts") or {"alerts": []})["alerts"]
        return [
            a for a in alerts if a["state"] == "firing" and "nsight-report" in a["annotations"]["description"]
        ]

    (alert,) = wait_for(firing)
    assert alert["labels"]["alertname"] == "NsightMessagesWaitForReader"
    named = re.search(r"nsight-report (\S+)", alert["annotations"]["description"])
    assert named
    now = time.time()
    query = 'nsight_stage_latency_seconds_bucket{stage="handoff-to-read"}'
    times = {"start": str(now - 300), "end": str(now + 10)}
    series = wait_for(lambda: asked(port, "query_exemplars", query=query, **times))
    exemplars = [(s["seriesLabels"]["le"], e) for s in series for e in s["exemplars"]]
    assert named[1] in {e["labels"]["window"] for _, e in exemplars}
    for le, exemplar in exemplars:
        assert 0.01 <= float(exemplar["value"]) <= float(le)
    done = subprocess.run(
        [sys.executable, str(REPORT), str(windows / named[1]), "--json"], capture_output=True, text=True, timeout=HANGS_S
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    cause = json.loads(done.stdout)["causes"][0]
    assert cause["cause"] == "Application sleeps (A)"
    assert cause["max_deviation_ns"] > 10_000_000
