# SPDX-License-Identifier: GPL-2.0-only
"""The flight recorder's limit for each service: how it follows from latencies, and how old latencies fade out."""

from __future__ import annotations

import json
import select
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from machinery.testbed.ports import reserved
from recorder_run import END_S
from test_collect_live import Collector

from conftest import ROOT, skip_or_fail

pytestmark = [pytest.mark.live, pytest.mark.tools]

COLLECT = ROOT / "tools/nsight-record/collect"
LOCAL, USED, UDP = 1 << 16, 1 << 17, 1 << 18
PLACES, SIZE = 256, 8 + 8 + 8 * 38 * 8  # of struct flight_service
OPTIONS = ("--flight", "--messages", "--ring-kb", "64", "--percentile", "99", "--per-hour", "0")


def aged(tmp_path: Path, messages: list[tuple[int, int]], minutes: int) -> list[tuple[int, ...]]:
    """For each minute: whether the service has its place, its messages, its limit; ``messages``: ns, how many."""
    if not shutil.which("gcc"):
        skip_or_fail("compiler", "gcc is not installed")
    sources = [Path(__file__).with_name("services_limits.c"), COLLECT / "services.c"]
    subprocess.run(
        ["gcc", "-Wall", "-Wextra", "-Werror", "-I", COLLECT, *sources, "-o", tmp_path / "x"], check=True
    )
    text = "".join(f"{ns} {n}\n" for ns, n in messages)
    told = subprocess.run(
        [tmp_path / "x", str(minutes)], input=text, capture_output=True, text=True, check=True
    )
    return [tuple(int(word) for word in line.split()) for line in told.stdout.splitlines()]


def test_old_messages_count_half_and_the_last_of_them_go(tmp_path: Path) -> None:
    """A tenth of 215 is 21, and 15 are above the bucket of 960 to 1023 ns. A tenth of 54 is 5: too few for a better limit."""
    numbers = [n for _, n, _ in aged(tmp_path, [(1_000, 200), (16_000, 15)], 11)]
    assert numbers == [215, 108, 54, 27, 13, 7, 3, 2, 1, 1, 0, 0]
    there = [(place, limit) for place, _, limit in aged(tmp_path, [(1_000, 200), (16_000, 15)], 11)]
    assert there == [(1, 1_024)] * 10 + [(0, 0)] * 2


def test_slow_messages_each_of_their_own_bucket_count_half_too(tmp_path: Path) -> None:
    messages = [(1 << power, 1) for power in range(10, 20)]
    assert [n for _, n, _ in aged(tmp_path, messages, 3)] == [10, 5, 2, 1]


def keys(collector: Collector) -> list[int]:
    """Keys of the services of a flight recorder."""
    if not shutil.which("bpftool"):
        skip_or_fail("bpftool", "bpftool is not installed")
    for info in Path(f"/proc/{collector.process.pid}/fdinfo").iterdir():
        fields = dict(line.split(":\t", 1) for line in info.read_text().splitlines() if ":\t" in line)
        if (fields.get("max_entries"), fields.get("value_size")) == (str(PLACES), str(SIZE)):
            argv = ["bpftool", "-j", "map", "dump", "id", fields["map_id"]]
            done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=END_S)
            return [key for row in json.loads(done.stdout) if (key := row["formatted"]["value"]["key"])]
    raise AssertionError("it has no services")


# In a new network namespace: datagrams to oneself, read at once. Two, because a single one may vanish when a minute begins.
ELSEWHERE = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.bind(("127.0.0.1", int(sys.argv[1])))
    for _ in range(2):
        s.sendto(b"x", s.getsockname())
        s.recv(1)
"""


def message(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", port))
        for _ in range(2):
            s.sendto(b"x", s.getsockname())
            s.recv(1)


def test_one_port_in_two_network_namespaces_is_two_services(tmp_path: Path) -> None:
    with reserved() as (port,):
        run = Collector(tmp_path / "records", *OPTIONS, "--port", str(port))
        message(port)
        inside = f"ip link set lo up && exec {sys.executable} -c '{ELSEWHERE}' {port}"
        subprocess.run(["unshare", "-n", "sh", "-c", inside], check=True, timeout=END_S)
        found = keys(run)
        run.end()
    assert [key & 0xFFFFFFFF for key in found] == [port | LOCAL | USED | UDP] * 2
    here = Path("/proc/self/ns/net").stat().st_ino
    assert len({key >> 32 for key in found} | {here}) == 2


def test_messages_of_services_without_a_place_are_counted(tmp_path: Path) -> None:
    run = Collector(tmp_path / "records", *OPTIONS)
    n = 0
    assert run.process.stdout
    while not select.select([run.process.stdout], [], [], 0)[0]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.bind(("127.0.0.1", 0))
            s.sendto(b"x", s.getsockname())
            s.recv(1)
        n += 1
        assert n < 100_000
    assert json.loads(run.process.stdout.readline()) == {"no_percentile": True}
    code, out = run.end()
    assert code == 0
    assert json.loads(out)["no_percentile"] > 0
