# SPDX-License-Identifier: GPL-2.0-only
"""Namespaces, servers and disturbances: correct while they run, removed afterwards."""

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
import pandas as pd
import pytest
from nsight_demo.logs import overlap_ns, read_intervals, read_load
from nsight_demo.namespaces import LinkOptions, run_dir, start_ticks
from nsight_demo.processes import wait_until

from machinery.harness.judged import judge
from machinery.testbed import turn as turns
from machinery.testbed.bed import HOG, Testbed
from machinery.testbed.injections import Firewall, Flood, Hog, Injection, Neighbour, Stop, merge
from machinery.testbed.locks import LockFile
from machinery.testbed.turn import turn

pytestmark = pytest.mark.live

TESTS = Path(__file__).resolve().parents[2]


def leftovers(marker: str) -> list[str]:
    """Namespaces, directories and processes whose name or command line contains ``marker``."""
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
        bed.start_load(server, ["-n", "3000", "-c", "5"], tmp_path / "get").wait()
        bed.start_load(server, ["-n", "500", "-P", "memcached-binary"], tmp_path / "binary").wait()
        # One in flight: none can be lost, and a busy machine may take its time.
        udp = ["-n", "400", "-P", "memcached-udp", "--keys", "10", "--udp-timeout", "60000"]
        bed.start_load(server, udp, tmp_path / "udp").wait()
        bed.start_load(server, ["-n", "200", "--set"], tmp_path / "set").wait()
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
        bed.start_load(server, options, tmp_path / "log").wait()
        stats = bed.ask_memcached(server, "INFO commandstats")
    log = read_load(tmp_path / "log")
    calls = {
        line.split(":")[0]: int(line.split("calls=")[1].split(",")[0])
        for line in stats.splitlines()
        if "calls=" in line
    }
    assert calls["cmdstat_get"] == log.kind.isin(["get", "burst"]).sum()
    assert calls["cmdstat_set"] == (log.kind == "setup").sum() == 101


@pytest.mark.parametrize("kind", ["asyncio", "datagrams", "front", "memcached-4"])
def test_servers_of_other_designs_answer_every_request(
    needs: Callable[..., None], tmp_path: Path, kind: str
) -> None:
    needs("memcached")
    with Testbed() as bed:
        options = ["-n", "200", "-c", "5", "--udp-timeout", "60000"]
        bed.start_load(bed.start_server(kind), options, tmp_path / "load.tsv").wait()
    log = read_load(tmp_path / "load.tsv")
    assert (log["recv_ns"] > 0).sum() >= 200


def test_nothing_is_left_after_a_normal_end(needs: Callable[..., None], tmp_path: Path) -> None:
    needs("memcached", "redis-server", "nginx")
    with Testbed(LinkOptions(napi_cpu=0)) as bed:
        marker = bed.name
        for kind in ("memcached", "redis", "nginx"):
            server = bed.start_server(kind)
            bed.start_load(server, ["-n", "50"], tmp_path / kind).wait()
            assert (read_load(tmp_path / kind).recv_ns > 0).all()
        pids = [p.pid for p in bed._processes] + server.process.children()
        lived = {pid: ticks for pid in pids if (ticks := start_ticks(pid))}
        assert len(lived) >= 4  # three servers and a worker
        assert leftovers(marker)
    assert leftovers(marker) == []
    # Compare the start time too: another program may have the pid by now.
    assert not [pid for pid, ticks in lived.items() if start_ticks(pid) == ticks]


def test_servers_of_a_testbed_have_ports_that_no_other_run_gets(needs: Callable[..., None]) -> None:
    needs("memcached", "nginx")
    with Testbed() as bed:
        taken = {bed.start_server(kind).port for kind in ("memcached", "nginx")}
        assert len(taken) == 2
        locks = LockFile(run_dir() / "ports")
        assert all(locks.is_held(port) for port in taken)
        assert bed.start_server("memcached", 11211).port == 11211  # the caller's choice
    locks.close()


@pytest.mark.parametrize("injection", [Hog(1), Flood(0), Neighbour("memcached", [])], ids=lambda i: i.name)
def test_a_disturbance_that_is_ended_at_once_has_its_log(
    needs: Callable[..., None], injection: Injection
) -> None:
    """A program that gets SIGTERM before it handles it ends without a log."""
    needs("memcached", "nft")
    with Testbed() as bed:
        server = bed.start_server("memcached")
        for _ in range(5):
            with injection.active(bed, server):
                pass
            assert (injection.intervals[:, 0] <= injection.intervals[:, 1]).all()


def test_another_user_reads_what_a_server_serves_whatever_the_umask(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("nginx")
    before = os.umask(0o077)
    try:
        with Testbed() as bed:
            assert bed.directory.parent.stat().st_mode & 0o777 == 0o755
            server = bed.start_server("nginx")
            assert bed.start_load(server, ["-n", "50"], tmp_path / "log").wait() == 0
    finally:
        os.umask(before)
    assert (read_load(tmp_path / "log").recv_ns > 0).all()


def test_only_a_testbed_that_measures_has_the_turn_of_the_machine(needs: Callable[..., None]) -> None:
    """Within this test's own turn, the turn of another run is never seen."""
    needs()

    def mine() -> bool:
        locks = LockFile(run_dir() / "turn")
        try:
            return os.environ.get(turns.HOLDER, "") == turns.holder(locks) != ""
        finally:
            locks.close()

    with Testbed():
        assert not mine()
    with Testbed(realtime=True):
        assert mine()
    assert not mine()


SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from machinery.testbed.bed import Testbed
with Testbed() as bed:
    print(bed.name, flush=True)
    server = bed.start_server("nginx")
    bed.start_server("memcached")
    bed.start_load(server, ["-d", "600", "-r", "100"], bed.directory / "log")
    print("running", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("after_ms", [0, 30, 200, -1])
def test_nothing_is_left_after_a_signal(
    needs: Callable[..., None], signum: signal.Signals, after_ms: int
) -> None:
    """after_ms: from the first sign of life; -1: everything runs. Whenever it comes, nothing may be left."""
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
    assert child.wait(120) != 0
    assert leftovers(name) == []


def test_a_killed_run_is_cleaned_by_the_next(needs: Callable[..., None]) -> None:
    needs("memcached", "nginx")
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(tests=str(TESTS))], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout
    name = child.stdout.readline().strip()
    assert child.stdout.readline() == "running\n"
    # Check before the kill: afterwards another run on this machine may be the next one.
    assert len([path for path in leftovers(name) if path.startswith("/run/")]) == 3
    child.kill()
    child.wait()
    with Testbed():
        # nginx ends by itself
        wait_until(lambda: not leftovers(name), f"end of {leftovers(name)}")


def test_interrupt_in_a_held_block_comes_at_its_end() -> None:
    from nsight_demo.interrupts import Interrupts

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
    """In a separate process, since pytest has a hook for ignored exceptions."""
    script = f"""
import os, signal, sys, time
sys.path.insert(0, {str(TESTS.parent / "tools/nsight-demo")!r})
from nsight_demo.interrupts import Interrupts
with Interrupts():
    try:
{textwrap.indent(IGNORED[place], " " * 8)}
        print("lost", flush=True)
        time.sleep(120)
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
    from nsight_demo.interrupts import Interrupts

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


def cpu_s(pid: int) -> float:
    """Processor time that the kernel charged a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def check_intervals(intervals: np.ndarray) -> None:
    """There are intervals; each ends after its begin, and before the next one begins."""
    assert len(intervals)
    assert (intervals[:, 1] > intervals[:, 0]).all()
    assert (intervals[1:, 0] >= intervals[:-1, 1]).all()


@pytest.mark.alone
def test_hog_logs_what_it_burned(programs: None, tmp_path: Path) -> None:
    """Its log must add up to the processor time that the kernel charged it."""
    log = tmp_path / "hog"
    begin = time.monotonic_ns()
    with turn(), subprocess.Popen([str(HOG), "-b", "5000", "-i", "5000", "-d", "300", "-l", str(log)]) as hog:
        wait_until(lambda: cpu_s(hog.pid) >= 0.3, "0.3 s of burning")
        hog.send_signal(signal.SIGTERM)
        _, status, usage = os.wait4(hog.pid, 0)
        hog.returncode = status
    end = time.monotonic_ns()
    assert status == 0
    intervals = read_intervals(log)
    check_intervals(intervals)
    assert begin < intervals[0, 0] and intervals[-1, 1] < end
    # A turn ends at the first look at the clock after 5 ms, and between two looks within an interval are 20 us at most.
    turns = intervals[:, 1] - intervals[:, 0]
    assert turns.max() <= 5_020_000
    burned = turns.sum() / 1e9
    judge(
        "live",
        "the hog's log adds up to its processor time",
        0.5 * usage.ru_utime < burned < 1.1 * (usage.ru_utime + usage.ru_stime) + 0.02,
        f"logged {burned:.3f} s, user {usage.ru_utime:.3f} s, system {usage.ru_stime:.3f} s",
    )


DISTURBANCES: dict[str, tuple[LinkOptions, Injection, list[str], int]] = {
    "hog on the application core": (LinkOptions(), Hog(1, ["-f", "10"]), [], 0),
    "hog on the receive core": (LinkOptions(napi_cpu=0), Hog(0, ["-f", "10"]), [], 1),
    "stop": (LinkOptions(), Stop(), [], 0),
    "flood": (LinkOptions(rps_cpu=1), Flood(0, ["-b", "3000"]), [], 0),
}


def same_story(log: pd.DataFrame, intervals: np.ndarray) -> tuple[bool, str]:
    """Whether the slowest requests are those that met the disturbance; and the figures.

    Among the slowest requests (half as many as met a disturbance for more than 300 us) the share that met one must be much
    larger than among all requests; with a wrong clock, core or unit in the log the shares would be equal. A busy host makes
    slow requests too. So not all of the slowest need to have met one, and only the median of the others must be fast.
    """
    latency = (log.recv_ns - log.send_ns).to_numpy()
    met = overlap_ns(log.send_ns.to_numpy(), log.recv_ns.to_numpy(), intervals)
    disturbed = met > 300_000
    if disturbed.sum() < 10 or not (met == 0).any():
        return False, f"{disturbed.sum()} of {len(log)} requests met the disturbance"
    slowest = np.argsort(latency)[-(disturbed.sum() // 2) :]
    usual, slow = np.median(latency[met == 0]), np.median(latency[disturbed])
    return bool(disturbed[slowest].mean() > 3 * disturbed.mean() and usual < slow / 2), (
        f"{disturbed.mean():.1%} of {len(log)} requests met the disturbance, of the {len(slowest)} slowest "
        f"{disturbed[slowest].mean():.0%}; median {slow / 1000:.0f} us, of the others {usual / 1000:.0f} us"
    )


@pytest.mark.alone
@pytest.mark.parametrize("name", DISTURBANCES)
def test_slow_requests_are_those_that_met_the_disturbance(
    needs: Callable[..., None], tmp_path: Path, name: str
) -> None:
    """The log of the disturbance and the client's latencies must agree."""
    needs("memcached", "nft", "ethtool")
    link, injection, options, load_cpu = DISTURBANCES[name]
    with Testbed(link, realtime=True) as bed:
        server = bed.start_server("memcached")
        with injection.active(bed, server):
            argv = ["-c", "8", "-r", "2000", "-d", "1.5", *options]
            assert bed.start_load(server, argv, tmp_path / "log", load_cpu).wait() == 0
    log = read_load(tmp_path / "log")
    assert (log.kind == "setup").sum() == 100 < len(log)
    assert (log.recv_ns > log.send_ns).all()
    check_intervals(injection.intervals)
    judge("live", f"slow requests met the disturbance: {name}", *same_story(log, injection.intervals))


@pytest.mark.parametrize(
    ("wrong", "right"), [("nothing", True), ("clock", False), ("unit", False), ("sparse", False)]
)
def test_story_of_a_wrong_log_is_another(wrong: str, right: bool) -> None:
    """1000 requests, one a ms, of 100 us each; those sent while the disturbance ran, 3 of every 40 ms, end with it."""
    ms = 1_000_000
    begins = np.arange(0, 1000, 40) * ms
    intervals = np.column_stack([begins, begins + 3 * ms])
    send = np.arange(1000) * ms
    late = send % (40 * ms) < 3 * ms
    recv = np.where(late, send - send % (40 * ms) + 3 * ms + 100_000, send + 100_000)
    log = pd.DataFrame({"send_ns": send, "recv_ns": recv})
    given = {
        "nothing": intervals,
        "clock": intervals + 20 * ms,
        "unit": intervals // 1000,
        "sparse": intervals[:2],
    }[wrong]
    assert same_story(log, given)[0] == right


@pytest.mark.alone
def test_firewall_slows_only_the_chosen_port(needs: Callable[..., None], tmp_path: Path) -> None:
    needs("memcached", "nft", "bpftrace")
    injection = Firewall(20000, [20003])
    with turn(), Testbed() as bed:
        server = bed.start_server("memcached")
        with injection.active(bed, server):
            argv = ["-c", "8", "-n", "2000", "-r", "2000", "--bind-port", "20000"]
            assert bed.start_load(server, argv, tmp_path / "log").wait() == 0
    log = read_load(tmp_path / "log")
    assert (log.kind == "get").sum() == 2000
    assert set(log.lport) == set(range(20000, 20008))
    # The log of the rules: each request of the port passed them between its client's send and receive calls.
    through = log[(log.lport == 20003) & (log.kind == "get")]
    walks = injection.intervals
    at = np.searchsorted(walks[:, 0], through.send_ns)
    assert len(walks) >= len(through)
    assert (walks[at, 1] <= through.recv_ns).all()
    assert injection.cores is not None and set(injection.cores) <= {0, 1}
    log["latency"] = log.recv_ns - log.send_ns
    median = log.groupby("lport").latency.median()
    slow, others = median[20003], median.drop(20003).max()
    judge(
        "live",
        "the firewall slows only the chosen port",
        bool(median.idxmax() == 20003 and slow > 1.5 * others),
        f"median {slow / 1000:.0f} us, of the other ports {others / 1000:.0f} us at most",
    )


@pytest.mark.alone
def test_neighbour_reports_when_it_had_requests(needs: Callable[..., None], tmp_path: Path) -> None:
    needs("memcached", "nginx")
    injection = Neighbour("nginx", ["-r", "1", "--burst", "8", "--burst-every", "50", "--path", "/big.html"])
    with turn(), Testbed() as bed:
        server = bed.start_server("memcached")
        with injection.active(bed, server):
            start = time.monotonic_ns()
            assert bed.start_load(server, ["-r", "500", "-d", "1"], tmp_path / "log").wait() == 0
            end = time.monotonic_ns()
    check_intervals(injection.intervals)
    inside = injection.intervals[(injection.intervals[:, 1] > start) & (injection.intervals[:, 0] < end)]
    judge(
        "live",
        "the neighbour has requests while the server has its load",
        len(inside) >= 5,
        f"{len(inside)} of its {len(injection.intervals)} turns within {(end - start) / 1e6:.0f} ms",
    )


def test_union_of_intervals() -> None:
    rows = np.array([[5, 9], [0, 2], [8, 12], [9, 10], [12, 13]])
    assert merge(rows).tolist() == [[0, 2], [5, 13]]


def test_overlap_counts_only_time_inside_intervals() -> None:
    intervals = np.array([[10, 20], [30, 35]])
    starts, ends = np.array([0, 15, 12, 21, 40]), np.array([12, 40, 14, 29, 50])
    # [0,12): 10-12; [15,40): 15-20 and 30-35; [12,14): all; [21,29): between; [40,50): after.
    assert overlap_ns(starts, ends, intervals).tolist() == [2, 10, 2, 0, 0]
