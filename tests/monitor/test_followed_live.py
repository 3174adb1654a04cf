# SPDX-License-Identifier: GPL-2.0-only
"""A filter that names an interface, a network namespace or a cgroup is about whichever has that name."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from machinery.testbed.ports import reserved
from monitored import inside
from nsight_demo.namespaces import run_name
from nsight_monitor import loader, snapshots
from nsight_monitor.snapshots import Snapshot
from nsight_record.errors import Missing

from conftest import ROOT, skip_or_fail

pytestmark = pytest.mark.live
N = 10
HANGS_S = 60
GONE = "filter_without_target"
MONITOR = ROOT / "tools/nsight-monitor/nsight-monitor"
STAGE = "udp-socket-read"
SENDS = """
import os, socket, sys
if sys.argv[3]:
    with open(sys.argv[3] + "/cgroup.procs", "w") as f:
        f.write(str(os.getpid()))
server, client = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
server.bind(("127.0.0.1", int(sys.argv[1])))
client.connect(("127.0.0.1", int(sys.argv[1])))
for _ in range(int(sys.argv[2])):
    client.send(b"x")
    server.recv(1)
"""


@pytest.fixture
def port() -> Iterator[int]:
    with reserved() as (number,):
        yield number


class Running:
    """nsight-monitor --json with these options. ``sums``: the newest line; ``said``: standard error."""

    def __init__(self, *options: str) -> None:
        try:
            loader.find()
        except Missing as e:
            skip_or_fail("bpf", str(e))
        argv = [sys.executable, str(MONITOR), "--json", "--interval", "0.1", "--stages", STAGE, *options]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.sums: Snapshot | None = None
        self.said: list[str] = []
        assert self.process.stdout and self.process.stderr
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=lambda: self.said.extend(self.process.stderr or ()), daemon=True).start()
        self.until(lambda: self.sums is not None)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(HANGS_S)

    def _read(self) -> None:
        assert self.process.stdout
        snapshots.header(self.process.stdout.readline())
        for line in self.process.stdout:
            found = snapshots.other(line)
            self.sums = found if isinstance(found, Snapshot) else self.sums

    def until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + HANGS_S
        while not true():
            assert time.monotonic() < end and self.process.poll() is None, (self.sums, self.said)
            time.sleep(0.05)

    def n(self) -> int:
        assert self.sums
        return sum(h.count for (stage, _), h in self.sums.histograms.items() if stage == STAGE)

    def gone(self) -> int:
        assert self.sums
        return self.sums.counts[GONE]


class Target:
    """Something with a name that can be removed and made again."""

    def __init__(self, kind: str, port: int, directory: Path) -> None:
        self.kind, self.port = kind, port
        self.space = f"{run_name()}-f{kind}"
        self.group = directory / f"nsight-{port}.service"
        self.options = {
            "netns": ("--netns", self.space),
            "iface": ("--netns", self.space, "--iface", "it"),
            "cgroup": ("--cgroup", str(self.group)),
            "pid": (),
        }[kind]

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    def make(self) -> None:
        if self.kind == "cgroup":
            self.group.mkdir()
        elif self.kind == "netns":
            self.ip("netns", "add", self.space)
            self.ip("-n", self.space, "link", "set", "lo", "up")
        else:
            self.ip("-n", self.space, "link", "add", "it", "type", "veth", "peer", "name", "peer", "netns", f"{self.space}p")  # fmt: skip
            for space, device, address in ((self.space, "it", 1), (f"{self.space}p", "peer", 2)):
                self.ip("-n", space, "addr", "add", f"198.18.91.{address}/24", "dev", device)
                self.ip("-n", space, "link", "set", device, "up")

    def remove(self) -> None:
        if self.kind == "cgroup":
            self.group.rmdir()
        elif self.kind == "netns":
            self.ip("netns", "del", self.space)
        else:
            self.ip("-n", self.space, "link", "del", "it")

    def send(self, n: int) -> None:
        if self.kind != "iface":
            group = str(self.group) if self.kind == "cgroup" else ""
            argv = [sys.executable, "-c", SENDS, str(self.port), str(n), group]
            with inside(self.space) if self.kind == "netns" else contextlib.nullcontext():
                subprocess.run(argv, check=True)
            return
        with inside(self.space):
            server = socket.socket(type=socket.SOCK_DGRAM)
        with inside(f"{self.space}p"):
            client = socket.socket(type=socket.SOCK_DGRAM)
        with server, client:
            server.settimeout(HANGS_S)
            server.bind(("198.18.91.1", self.port))
            client.connect(("198.18.91.1", self.port))
            for _ in range(n):
                client.send(b"x")
                server.recv(1)


@pytest.fixture
def target(request: pytest.FixtureRequest, port: int, tmp_path: Path) -> Iterator[Target]:
    if os.geteuid():
        skip_or_fail("root", "namespaces need root")
    made = Target(request.param, port, tmp_path)
    with contextlib.ExitStack() as stack:
        if made.kind == "cgroup":
            done = subprocess.run(
                ["mount", "-t", "cgroup2", "none", tmp_path], capture_output=True, text=True
            )
            if done.returncode:
                skip_or_fail("bpf", done.stderr)
            stack.callback(subprocess.run, ["umount", tmp_path], check=True)
        if made.kind == "iface":
            for space in (made.space, f"{made.space}p"):
                made.ip("netns", "add", space)
                stack.callback(made.ip, "netns", "del", space)
        made.make()
        try:
            yield made
        finally:
            with contextlib.suppress(subprocess.CalledProcessError, OSError):
                made.remove()


@pytest.mark.parametrize("target", ["netns", "iface", "cgroup"], indirect=True)
def test_the_next_one_of_that_name_is_measured_and_meanwhile_nothing(target: Target) -> None:
    """Other traffic of the machine is not measured while the name has no owner."""
    option = "--netns" if target.kind == "netns" else target.options[-2]
    name = target.options[-1]
    with Running("--port", str(target.port), *target.options) as monitor:
        target.send(N)
        monitor.until(lambda: monitor.n() == N)
        assert monitor.gone() == 0
        target.remove()
        monitor.until(lambda: monitor.gone() >= 2)
        Target("pid", target.port, Path("/nowhere")).send(N)
        target.make()
        monitor.until(lambda: bool(monitor.said) and "exists again" in monitor.said[-1])
        before = monitor.gone()
        target.send(2 * N)
        monitor.until(lambda: monitor.n() >= 3 * N)
        assert monitor.n() == 3 * N
        monitor.until(lambda: monitor.gone() <= before + 1)
    assert [f"{option} {name} " in line for line in monitor.said if name in line] == [True, True]
    assert "does not exist any more: nothing is measured" in "".join(monitor.said)


def test_a_namespace_given_by_process_is_followed_as_long_as_any_process_is_in_it(port: int) -> None:
    if os.geteuid():
        skip_or_fail("root", "namespaces need root")
    script = "ip link set lo up; echo up; exec sleep 600"
    first = subprocess.Popen(["unshare", "--net", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
    assert first.stdout and first.stdout.readline() == "up\n"
    path = f"--net=/proc/{first.pid}/ns/net"
    second = subprocess.Popen(["nsenter", path, "sh", "-c", "echo in; exec sleep 600"], stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert second.stdout and second.stdout.readline() == "in\n"
    try:
        with Running("--port", str(port), "--netns", str(first.pid)) as monitor:
            first.kill()
            first.wait()
            time.sleep(1.5)
            argv = [sys.executable, "-c", SENDS, str(port), str(N), ""]
            subprocess.run(["nsenter", f"--net=/proc/{second.pid}/ns/net", *argv], check=True)
            monitor.until(lambda: monitor.n() == N)
            assert (monitor.gone(), monitor.said) == (0, [])
            second.kill()
            second.wait()
            monitor.until(lambda: monitor.gone() >= 1)
            assert "does not exist any more" in monitor.said[0]
    finally:
        for process in (first, second):
            process.kill()
            process.wait()
