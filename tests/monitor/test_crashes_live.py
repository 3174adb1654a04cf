# SPDX-License-Identifier: GPL-2.0-only
"""The exporter or the loader is killed under load: what a scrape and a real Prometheus see."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from machinery.testbed.ports import reserved
from monitored import HANGS_S, Watch, in_kernel, programs
from nsight_monitor import exporter, snapshots
from prometheus_server import scraping, values, wait_for

from conftest import skip_or_fail

pytestmark = pytest.mark.live
TOOL = Path(__file__).resolve().parents[2] / "tools/nsight-monitor/nsight-monitor"
SERIES = 'nsight_stage_latency_seconds_%s{stage="handoff-to-read"}'


class Load:
    """Datagrams from this process to itself."""

    def __init__(self, port: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", port))
        self._socket.connect(("127.0.0.1", port))

    def send(self, n: int) -> None:
        for _ in range(n):
            self._socket.send(b"x")
            self._socket.recv(1)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        leave = threading.Event()
        thread = threading.Thread(target=lambda: [self.send(10) for _ in iter(leave.is_set, True)])
        thread.start()
        try:
            yield
        finally:
            leave.set()
            thread.join()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    if os.geteuid():
        skip_or_fail("root", "BPF programs need root")
    if exporter.prometheus_client is None:
        skip_or_fail("prometheus", "prometheus_client is not installed")
    with reserved(2) as (one, other):
        yield one, other


@pytest.fixture
def load(ports: tuple[int, int]) -> Iterator[Load]:
    made = Load(ports[1])
    yield made
    made.close()


@contextlib.contextmanager
def started(ports: tuple[int, int]) -> Iterator[subprocess.Popen[str]]:
    """It serves the first port, and watches the second one."""
    options = ["--prometheus", str(ports[0]), "--port", str(ports[1]), "--interval", "0.1"]
    process = subprocess.Popen([sys.executable, str(TOOL), *options], stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=HANGS_S)


@contextlib.contextmanager
def monitor(ports: tuple[int, int]) -> Iterator[subprocess.Popen[str]]:
    """The exporter has begun to serve."""
    with started(ports) as process:
        assert process.stderr
        if not process.stderr.readline().startswith("serving"):
            skip_or_fail("bpf", process.communicate()[1])
        yield process


def child(of: subprocess.Popen[str], word: str) -> int:
    """The child process with that word in its command line; 0: there is none."""
    for pid in Path(f"/proc/{of.pid}/task/{of.pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    return 0


def metrics(port: int) -> str:
    """What a scrape gets; nothing while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANGS_S) as answer:
            text: str = answer.read().decode()
    except OSError:
        return ""
    return text


def scraped(port: int) -> dict[str, float]:
    """Count of latencies, and when it was 0; nothing while nobody answers, or nothing is counted."""
    text = metrics(port)
    names = ("count", "created")
    found = {name: re.search(rf"^{re.escape(SERIES % name)} (\S+)$", text, re.M) for name in names}
    return {name: float(m[1]) for name, m in found.items() if m}


def test_a_killed_exporter_is_started_again_and_no_counter_falls(
    ports: tuple[int, int], load: Load, tmp_path: Path
) -> None:
    with monitor(ports) as process, load.running(), scraping(tmp_path, ports[0]) as prometheus:
        loader, first = child(process, "nsight-histograms"), child(process, "--input")
        assert loader and first
        before = wait_for(lambda: scraped(ports[0]))
        wait_for(lambda: values(prometheus, SERIES % "count"))
        os.kill(first, signal.SIGKILL)
        after = wait_for(lambda: child(process, "--input") not in (0, first) and scraped(ports[0]))
        assert after["count"] >= before["count"] > 0
        assert after["created"] == before["created"]
        assert child(process, "nsight-histograms") == loader
        wait_for(lambda: (values(prometheus, SERIES % "count") or [0])[0] > after["count"])
        assert values(prometheus, f"resets({SERIES % 'count'}[1h])") == [0]


def test_an_exporter_that_is_killed_at_its_start_is_started_again_and_counted(ports: tuple[int, int]) -> None:
    with started(ports) as process:
        exporter_pid = wait_for(lambda: process.poll() or child(process, "--input"))
        if process.poll() is not None:
            skip_or_fail("bpf", process.communicate()[1])
        os.kill(exporter_pid, signal.SIGKILL)
        assert process.stderr
        said = [process.stderr.readline() for _ in range(2)]
        assert said[0] == "the exporter was killed (signal 9), and is started again\n"
        assert said[1].startswith("serving")
        restarts = r"^nsight_monitor_exporter_restarts_total 1\.0$"
        assert wait_for(lambda: re.search(restarts, metrics(ports[0]), re.M))


def test_a_killed_loader_ends_the_monitor_and_the_next_one_is_a_reset(
    ports: tuple[int, int], load: Load, tmp_path: Path
) -> None:
    """500 latencies before, 20 after: Prometheus adds 20 to what was before."""
    began = time.time()
    with scraping(tmp_path, ports[0]) as prometheus:
        with monitor(ports) as process, load.running():
            loader = child(process, "nsight-histograms")
            assert loader
            held = programs(loader)
            assert held and in_kernel(held) == held
            wait_for(lambda: (values(prometheus, SERIES % "count") or [0])[0] > 500)
            before = scraped(ports[0])
            os.kill(loader, signal.SIGKILL)
            _, said = process.communicate(timeout=HANGS_S)
            assert process.returncode == 5
            assert said.splitlines() == [
                "error: nsight-histograms was killed (signal 9)",
                "hint: start it again: every count begins at 0",
            ]
        wait_for(lambda: not in_kernel(held))
        killed = time.time()
        with monitor(ports):
            load.send(20)
            after = wait_for(lambda: scraped(ports[0]).get("count") == 20 and scraped(ports[0]))
            assert began < before["created"] < killed < after["created"] < time.time()
            wait_for(lambda: values(prometheus, SERIES % "count") == [20])
            assert values(prometheus, f"resets({SERIES % 'count'}[1h])") == [1]


def test_a_loader_that_was_stopped_prints_one_line_for_that_time() -> None:
    interval_ms, stopped = 100, 20
    with Watch("--interval-ms", interval_ms) as watch:
        assert watch.process.stdout
        first = snapshots.snapshot(watch.process.stdout.readline())
        watch.process.send_signal(signal.SIGSTOP)
        time.sleep(stopped * interval_ms / 1000)  # what is tested, not a wait for something
        watch.process.send_signal(signal.SIGCONT)
        after = [snapshots.snapshot(watch.process.stdout.readline()) for _ in range(5)]
    intervals = (after[-1].monotonic_ns - first.monotonic_ns) // (interval_ms * 10**6)
    # One line for the stop, which may begin and end in the middle of an interval.
    assert intervals >= stopped
    assert len(after) <= intervals - stopped + 3
