# SPDX-License-Identifier: GPL-2.0-only
"""Namespaces, servers and disturbances: right while they run, gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from testbed import namespaces
from testbed.bed import HOG, Testbed
from testbed.injections import Firewall, Flood, Hog, Injection, Neighbour, Stop, merge
from testbed.logs import overlap_ns, read_intervals, read_load
from testbed.namespaces import LinkOptions

pytestmark = pytest.mark.alone

TESTS = Path(__file__).resolve().parent.parent


def leftovers(marker: str) -> list[str]:
    """Namespaces, folders and processes whose name or command line contains ``marker``."""
    found = [str(p) for d in ("/run/netns", "/run/nsight-testbed") for p in Path(d).glob(f"*{marker}*")]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marker in line and int(entry.name) != os.getpid():
            found.append(line)
    return found


def stat(text: str, name: str) -> int:
    return next(int(line.split()[2]) for line in text.splitlines() if line.startswith(f"STAT {name} "))


def test_client_log_agrees_with_memcached_stats(needs: Callable[..., None], tmp_path: Path) -> None:
    needs("memcached", "socat")
    with Testbed() as bed:
        server = bed.start_server("memcached")
        bed.start_load(server, ["-n", "3000", "-c", "5"], tmp_path / "get").wait(30)
        bed.start_load(server, ["-n", "500", "-P", "memcached-binary"], tmp_path / "binary").wait(30)
        bed.start_load(server, ["-n", "400", "-P", "memcached-udp", "--keys", "10"], tmp_path / "udp").wait(
            30
        )
        bed.start_load(server, ["-n", "200", "--set"], tmp_path / "set").wait(30)
        stats = bed.ask_memcached(server, "stats")
    logs = [read_load(tmp_path / name) for name in ("get", "binary", "udp", "set")]
    assert all((log.recv_ns > 0).all() for log in logs)
    # get: 3000 + 500 + 400; set: 200 and the keys stored first, 100 + 100 + 10 + 100.
    assert stat(stats, "cmd_get") == sum((log.kind == "get").sum() for log in logs) == 3900
    assert stat(stats, "get_hits") == 3900
    assert stat(stats, "cmd_set") == sum(log.kind.isin(["set", "setup"]).sum() for log in logs) == 510


def test_client_log_agrees_with_redis(needs: Callable[..., None], tmp_path: Path) -> None:
    needs("redis-server", "socat")
    with Testbed() as bed:
        server = bed.start_server("redis")
        options = ["-n", "700", "--burst", "20", "--burst-every", "10", "--burst-value-size", "50000"]
        bed.start_load(server, options, tmp_path / "log").wait(30)
        stats = bed.ask_memcached(server, "INFO commandstats")
    log = read_load(tmp_path / "log")
    calls = {
        line.split(":")[0]: int(line.split("calls=")[1].split(",")[0])
        for line in stats.splitlines()
        if "calls=" in line
    }
    assert calls["cmdstat_get"] == log.kind.isin(["get", "burst"]).sum()
    assert calls["cmdstat_set"] == (log.kind == "setup").sum() == 101


def test_nothing_is_left_after_a_normal_end(needs: Callable[..., None], tmp_path: Path) -> None:
    needs("memcached", "redis-server", "nginx")
    with Testbed(LinkOptions(napi_cpu=0)) as bed:
        marker = bed.name
        for kind in ("memcached", "redis", "nginx"):
            server = bed.start_server(kind)
            bed.start_load(server, ["-n", "50"], tmp_path / kind).wait(30)
            assert (read_load(tmp_path / kind).recv_ns > 0).all()
        pids = [p.pid for p in bed._processes] + server.process.children()
        assert leftovers(marker)
    assert leftovers(marker) == []
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from testbed.bed import Testbed
with Testbed() as bed:
    print(bed.name, flush=True)
    server = bed.start_server("nginx")
    bed.start_server("memcached")
    bed.start_load(server, ["-d", "60", "-r", "100"], bed.folder / "log")
    print("running", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("after_ms", [0, 30, 200, -1])
def test_nothing_is_left_after_a_signal(
    needs: Callable[..., None], signum: signal.Signals, after_ms: int
) -> None:
    """after_ms: from the first sign of life; -1: everything runs."""
    needs("memcached", "nginx")
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(tests=str(TESTS))],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert child.stdout
    name = child.stdout.readline().strip()
    assert name
    if after_ms < 0:
        assert child.stdout.readline() == "running\n"
    else:
        time.sleep(after_ms / 1000)
    child.send_signal(signum)
    child.send_signal(signum)  # an impatient user
    assert child.wait(20) != 0
    assert leftovers(name) == []


def test_a_killed_run_is_cleaned_by_the_next(needs: Callable[..., None]) -> None:
    needs("memcached", "nginx")
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(tests=str(TESTS))], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout
    name = child.stdout.readline().strip()
    assert child.stdout.readline() == "running\n"
    child.kill()
    child.wait()
    assert leftovers(name)
    with Testbed():
        deadline = time.monotonic() + 5  # nginx takes its leave by itself
        while leftovers(name) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert leftovers(name) == []


def test_living_runs_are_not_stale() -> None:
    assert not namespaces._is_stale(namespaces.run_name())
    assert not namespaces._is_stale(namespaces.run_name() + "-srv")
    assert namespaces._is_stale("nsight-tb-1-0-srv")  # process 1 lives, but started at another time
    assert not namespaces._is_stale("someone-elses")


def test_interrupt_in_a_held_block_comes_at_its_end() -> None:
    from testbed.interrupts import Interrupts

    done = []
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            with interrupts.held():
                os.kill(os.getpid(), signal.SIGTERM)
                done.append("rest of the block")
        interrupts.close()
        os.kill(os.getpid(), signal.SIGTERM)
        done.append("teardown")
    assert done == ["rest of the block", "teardown"]


IGNORED = {
    "__del__": """
class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
Dying()
""",
    "weakref callback": """
import weakref
class Dying:
    pass
dying = Dying()
ref = weakref.ref(dying, lambda _: os.kill(os.getpid(), signal.SIGINT))
del dying
""",
    "except": """
try:
    os.kill(os.getpid(), signal.SIGINT)
except BaseException:
    pass
""",
}


@pytest.mark.parametrize("place", IGNORED)
def test_interrupt_that_python_ignores_is_repeated(place: str) -> None:
    """In a process of its own: pytest has a hook for ignored exceptions."""
    script = f"""
import os, signal, sys, time
sys.path.insert(0, {str(TESTS)!r})
from testbed.interrupts import Interrupts
with Interrupts():
    try:
{textwrap.indent(IGNORED[place], " " * 8)}
        print("lost", flush=True)
        time.sleep(10)
        print("not repeated")
    finally:
        print("cleanup", flush=True)
        time.sleep(0.5)
        print("end of cleanup", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["lost", "cleanup", "end of cleanup"]
    assert done.returncode == -signal.SIGINT


def test_second_interrupt_does_not_cut_the_cleanup_of_the_first() -> None:
    from testbed.interrupts import Interrupts

    class Resource:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *exc: object) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            done.append("cleanup")

    done: list[str] = []
    with Interrupts(), pytest.raises(KeyboardInterrupt), Resource():
        os.kill(os.getpid(), signal.SIGINT)
    assert done == ["cleanup"]


def test_hog_logs_what_it_burned(programs: None, tmp_path: Path) -> None:
    """Its log must add up to the processor time that the kernel charged it."""
    log = tmp_path / "hog"
    with subprocess.Popen([str(HOG), "-b", "5000", "-i", "5000", "-l", str(log)]) as hog:
        time.sleep(0.6)
        hog.send_signal(signal.SIGTERM)
        _, status, usage = os.wait4(hog.pid, 0)
        hog.returncode = status
    intervals = read_intervals(log)
    burned = (intervals[:, 1] - intervals[:, 0]).sum() / 1e9
    assert (intervals[1:, 0] >= intervals[:-1, 1]).all()
    assert 0.5 * usage.ru_utime < burned < 1.1 * (usage.ru_utime + usage.ru_stime) + 0.02


DISTURBANCES: dict[str, tuple[LinkOptions, Injection, list[str], int]] = {
    "hog on the application core": (LinkOptions(), Hog(1, ["-f", "10"]), [], 0),
    "hog on the receive core": (LinkOptions(napi_cpu=0), Hog(0, ["-f", "10"]), [], 1),
    "stop": (LinkOptions(), Stop(), [], 0),
    "flood": (LinkOptions(rps_cpu=1), Flood(0, ["-b", "3000"]), [], 0),
}


@pytest.mark.parametrize("name", DISTURBANCES)
def test_slow_requests_are_those_that_met_the_disturbance(
    needs: Callable[..., None], tmp_path: Path, name: str
) -> None:
    """The log of the disturbance and the client's latencies must tell the same story.

    Of the slowest requests (half as many as met a disturbance for more than 300 us) many more met one than of all: with a
    wrong clock, core or unit in the log as many would. A busy host makes slow requests too, so not all need have, and
    of the others only the usual one must be fast.
    """
    needs("memcached", "nft", "ethtool")
    link, injection, options, load_cpu = DISTURBANCES[name]
    with Testbed(link, realtime=True) as bed:
        server = bed.start_server("memcached")
        with injection.active(bed, server):
            argv = ["-c", "8", "-r", "2000", "-d", "1.5", *options]
            assert bed.start_load(server, argv, tmp_path / "log", load_cpu).wait(30) == 0
    log = read_load(tmp_path / "log")
    latency = (log.recv_ns - log.send_ns).to_numpy()
    met = overlap_ns(log.send_ns.to_numpy(), log.recv_ns.to_numpy(), injection.intervals)
    disturbed = met > 300_000
    assert disturbed.sum() >= 10
    slowest = np.argsort(latency)[-(disturbed.sum() // 2) :]
    assert disturbed[slowest].mean() > 3 * disturbed.mean()
    assert np.median(latency[met == 0]) < np.median(latency[disturbed]) / 2


def test_firewall_slows_only_the_chosen_port(needs: Callable[..., None], tmp_path: Path) -> None:
    needs("memcached", "nft")
    with Testbed() as bed:
        server = bed.start_server("memcached")
        with Firewall(20000, [20003]).active(bed, server):
            argv = ["-c", "8", "-n", "2000", "-r", "2000", "--bind-port", "20000"]
            assert bed.start_load(server, argv, tmp_path / "log").wait(30) == 0
    log = read_load(tmp_path / "log")
    log["latency"] = log.recv_ns - log.send_ns
    median = log.groupby("lport").latency.median()
    assert median.idxmax() == 20003
    assert median[20003] > 1.5 * median.drop(20003).max()


def test_neighbour_reports_when_it_had_requests(needs: Callable[..., None], tmp_path: Path) -> None:
    needs("memcached", "nginx")
    injection = Neighbour("nginx", ["-r", "1", "--burst", "8", "--burst-every", "50", "--path", "/big.html"])
    with Testbed() as bed:
        server = bed.start_server("memcached")
        with injection.active(bed, server):
            start = time.monotonic_ns()
            bed.start_load(server, ["-r", "500", "-d", "1"], tmp_path / "log").wait(30)
            end = time.monotonic_ns()
    inside = injection.intervals[(injection.intervals[:, 1] > start) & (injection.intervals[:, 0] < end)]
    assert len(inside) >= 5


def test_union_of_intervals() -> None:
    rows = np.array([[5, 9], [0, 2], [8, 12], [9, 10], [12, 13]])
    assert merge(rows).tolist() == [[0, 2], [5, 13]]


def test_overlap_counts_only_time_inside_intervals() -> None:
    intervals = np.array([[10, 20], [30, 35]])
    starts, ends = np.array([0, 15, 12, 21, 40]), np.array([12, 40, 14, 29, 50])
    # [0,12): 10-12; [15,40): 15-20 and 30-35; [12,14): all; [21,29): between; [40,50): after.
    assert overlap_ns(starts, ends, intervals).tolist() == [2, 10, 2, 0, 0]
