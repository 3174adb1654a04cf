# SPDX-License-Identifier: GPL-2.0-only
"""What Prometheus gets: names and buckets that promtool accepts, and the sums of the lines, from a process without privileges."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import lines
import pytest
from machinery.testbed.ports import reserved
from nsight_monitor import exporter, native, snapshots
from nsight_monitor.histogram import N_BUCKETS, Histogram
from prometheus_server import scraping, values, wait_for

from conftest import skip_or_fail

TOOL = Path(__file__).resolve().parents[2] / "tools/nsight-monitor/nsight-monitor"
#: Reads of port 80: 50 of up to 1,024 ns, 40 of up to 65,536 ns, 10 of up to 1,048,576 ns.
TEXT = lines.header("port", began_ns=1_700_000_001_500_000_000) + lines.snapshot(
    10,
    lines.histogram("tcp-socket-read", 2, 5_000_000, b10=50, b16=40, b20=10),
    groups={"2": 80},
    counts={"stamp_kernel": 7, "no_stamp_zero": 3, "peek": 1},
    missed=2,
    ended=[{"stage": "tcp-socket-read", "sum_ns": 9, "n": {"1": 4, "2": 1}}],
    realtime_ns=int(time.time() * 1e9),
)
HANGS_S = 120


def test_buckets_are_cumulative_and_end_with_all() -> None:
    """Bucket 3 is below the first exported bucket, bucket 39 is above the last one."""
    h = Histogram(tuple({3: 1, 8: 2, 9: 4, 39: 8}.get(b, 0) for b in range(N_BUCKETS)), 0)
    found = exporter.cumulative(h)
    assert found[0] == ("2.56e-07", 3) and found[1] == ("5.12e-07", 7)
    assert found[-2] == (repr(2**35 / 1e9), 7) and found[-1] == ("+Inf", 15)
    assert len(found) == 35 - 8 + 2


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("9435", ("127.0.0.1", 9435)),
        (":1", ("127.0.0.1", 1)),
        ("10.0.0.1:2", ("10.0.0.1", 2)),
        ("[::]:3", ("::", 3)),
    ],
)
def test_an_address_is_of_this_host_alone_unless_it_says_otherwise(text: str, where: tuple[str, int]) -> None:
    assert exporter.address(text) == where


@pytest.fixture
def served() -> Iterator[tuple[int, int]]:
    """Port and pid of an exporter that has read TEXT and waits for more."""
    if exporter.prometheus_client is None:
        skip_or_fail("prometheus", "prometheus_client is not installed")
    with reserved() as (port,):
        process = subprocess.Popen(
            [sys.executable, str(TOOL), "--input", "-", "--prometheus", str(port), "--native-histograms"],
            stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdin and process.stderr
        try:
            process.stdin.write(TEXT)
            process.stdin.flush()
            assert process.stderr.readline() == f"serving http://127.0.0.1:{port}/metrics\n"
            wait_for(lambda: "tcp-socket-read" in scraped(port))
            yield port, process.pid
        finally:
            process.stdin.close()
            process.wait(HANGS_S)


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANGS_S) as answer:
        return str(answer.read().decode())


@pytest.mark.tools
def test_metrics_are_those_of_the_line_and_promtool_finds_no_fault(served: tuple[int, int]) -> None:
    text = scraped(served[0])
    of = '{le="%s",port="80",stage="tcp-socket-read"}'
    assert f"nsight_stage_latency_seconds_bucket{of % '1.024e-06'} 50.0\n" in text
    assert f"nsight_stage_latency_seconds_bucket{of % '6.5536e-05'} 90.0\n" in text
    assert 'nsight_stage_latency_seconds_sum{port="80",stage="tcp-socket-read"} 0.005\n' in text
    assert 'nsight_stage_latency_seconds_count{port="80",stage="tcp-socket-read"} 100.0\n' in text
    assert 'nsight_receive_stamps_total{result="no_stamp_zero"} 3.0\n' in text
    assert 'nsight_monitor_exceptions_total{kind="peek"} 1.0\n' in text
    assert "nsight_monitor_missed_runs_total 2.0\n" in text
    assert 'nsight_monitor_ended_latencies_total{stage="tcp-socket-read"} 5.0\n' in text
    try:
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    except FileNotFoundError:
        skip_or_fail("prometheus", "promtool is not installed")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_count_says_when_it_was_0() -> None:
    """At the loader's start; a group that got the place of another one began later."""
    if exporter.prometheus_client is None or native.descriptor_pb2 is None:
        skip_or_fail("prometheus", "prometheus_client or protobuf is not installed")
    start, later = 1_700_000_001_500_000_000, 1_700_000_002_000_000_000
    some = (lines.histogram("ip-start", group, 9, b1=1) for group in (2, 70))
    sums = lines.snapshot(
        1, *some, groups={"2": 80, "70": 443}, counts={"peek": 1}, group_began_ns={"70": later}
    )
    collector = exporter.Collector(snapshots.header(lines.header("port", began_ns=start)), native=True)
    collector.update(snapshots.other(sums))
    text = collector.answer("application/openmetrics-text")[0].decode()
    created = dict(re.findall(r"^(nsight_\w+_created\S*) (\S+)$", text, re.M))
    of = 'nsight_stage_latency_seconds_created{port="%s",stage="ip-start"}'
    assert float(created.pop(of % 443)) == later / 1e9
    assert of % 80 in created and 'nsight_monitor_exceptions_created{kind="peek"}' in created
    assert {float(value) for value in created.values()} == {start / 1e9}
    message = native.family_class()()
    message.ParseFromString(delimited(collector.answer(native.CONTENT_TYPE)[0]))
    times = [metric.histogram.created_timestamp for metric in message.metric]
    assert sorted((t.seconds, round(t.nanos, -3)) for t in times) == [
        (1_700_000_001, 500_000_000), (1_700_000_002, 0),
    ]  # fmt: skip


def delimited(body: bytes) -> bytes:
    """The first message; its length stands before it, seven bits in each byte."""
    n = next(i for i, byte in enumerate(body) if byte < 128) + 1
    size = sum((byte & 127) << 7 * i for i, byte in enumerate(body[:n]))
    return body[n : n + size]


@pytest.mark.tools
def test_the_exporter_has_no_privileges(served: tuple[int, int]) -> None:
    if os.geteuid():
        skip_or_fail("root", "who is not root has none to give up")
    status = Path(f"/proc/{served[1]}/status").read_text()
    assert re.search(r"^CapEff:\t0+$", status, re.M) and re.search(r"^CapPrm:\t0+$", status, re.M)
    assert re.search(r"^Uid:(\t65534){4}$", status, re.M) and re.search(r"^Groups:\s*$", status, re.M)


@pytest.mark.live
@pytest.mark.tools
@pytest.mark.parametrize("kind", ["classic", "native"])
def test_prometheus_itself_scrapes_it_and_its_percentile_is_in_our_bucket(
    kind: str, served: tuple[int, int], tmp_path: Path
) -> None:
    """p50 is in (512 ns, 1,024 ns], p90 in (32,768 ns, 65,536 ns], p99 in (524,288 ns, 1,048,576 ns]. Native buckets take
    2**-30 s for 1 ns, so their bounds are 6.9 % lower."""
    is_native = kind == "native"
    histogram = snapshots.snapshot(TEXT.splitlines()[1]).histograms["tcp-socket-read", 2]
    features = ["native-histograms"] if is_native else []
    with scraping(tmp_path, served[0], *features) as prometheus:
        for per_10000 in (5000, 9000, 9900):
            series = "nsight_stage_latency_seconds" + "_bucket" * (not is_native)
            query = f"histogram_quantile({per_10000 / 10000}, {series})"
            found = wait_for(lambda q=query: values(prometheus, q))[0] * 1e9
            bounds = histogram.percentile(per_10000)
            assert bounds is not None and bounds.high is not None
            unit = 1e9 / 2**30 if is_native else 1
            assert bounds.low * unit < found <= bounds.high * unit * (1 + 1e-9)
        if is_native:
            assert values(prometheus, "histogram_count(nsight_stage_latency_seconds)") == [100]


@pytest.mark.tools
def test_rules_fire_for_what_is_slow_and_for_nothing_else() -> None:
    """Made-up series and the arithmetic are in rules-test.yml."""
    try:
        done = subprocess.run(
            ["promtool", "test", "rules", str(Path(__file__).with_name("rules-test.yml"))],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parent,
        )
    except FileNotFoundError:
        skip_or_fail("prometheus", "promtool is not installed")
    assert done.returncode == 0, done.stdout + done.stderr


def loaders() -> set[str]:
    """Process ids of nsight-histograms on this machine."""
    found = subprocess.run(["pgrep", "-x", "nsight-histogra"], capture_output=True, text=True)
    return set(found.stdout.split())


@pytest.mark.live
@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
def test_the_loader_ends_with_its_exporter_that_may_send_it_no_signal(sig: signal.Signals) -> None:
    if os.geteuid():
        skip_or_fail("root", "BPF programs need root")
    if exporter.prometheus_client is None:
        skip_or_fail("prometheus", "prometheus_client is not installed")
    with reserved() as (port,):
        argv = [
            sys.executable,
            str(TOOL),
            "--prometheus",
            str(port),
            "--interval",
            "3600",
            "--port",
            str(port),
        ]
        process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        assert process.stderr
        if not process.stderr.readline().startswith("serving"):
            skip_or_fail("bpf", process.communicate()[1])
        children = set(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        assert children & loaders()
        process.send_signal(sig)
        _, said = process.communicate(timeout=HANGS_S)
        assert process.returncode == (130 if sig == signal.SIGTERM else -sig), said
        assert said == ""
        wait_for(lambda: not children & loaders())
