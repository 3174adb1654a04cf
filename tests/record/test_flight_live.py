# SPDX-License-Identifier: GPL-2.0-only
"""The flight recorder on the running kernel: what triggers a window, and what is in it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import resource
import select
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from machinery.testbed.ports import Port, reserved
from recorder_run import END_S, RECORDER, SMALL_DISK, fill, manifest, require_live
from test_collect_live import SWITCH, SWITCH_SYSCALL, SYSCALL, TASK, Collector, datagrams, read

from conftest import ROOT, skip_or_fail

pytestmark = pytest.mark.live

STALL_S = 0.03
PAUSE_S = 5
SO_RCVBUFFORCE, SO_ATTACH_FILTER = 33, 26  # asm-generic/socket.h


class StallingServer:
    """An echo server on loopback that sleeps while a request, after some others, waits in its socket."""

    def __init__(self) -> None:
        self._reserved = Port()
        self.port = self._reserved.number
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._sleep = False
        self.stalls: list[tuple[int, int]] = []  # CLOCK_MONOTONIC ns
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while data := connection.recv(64):
                    sleep, self._sleep = self._sleep, False
                    connection.sendall(data)
                    if sleep:
                        # However late the client gets a core.
                        select.select([connection], [], [])
                        begin = time.monotonic_ns()
                        time.sleep(STALL_S)
                        self.stalls.append((begin, time.monotonic_ns()))

    def requests(self, n: int, stall: bool = False) -> None:
        """Send ``n`` requests, one after the other; with ``stall``, the server sleeps when the last one comes."""
        with socket.create_connection(("127.0.0.1", self.port)) as s:
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for i in range(n):
                self._sleep = stall and i == n - 2
                s.sendall(b"x" * 64)
                assert len(s.recv(64, socket.MSG_WAITALL)) == 64

    def close(self) -> None:
        self._listener.close()
        self._reserved.release()


@pytest.fixture
def server() -> Iterator[StallingServer]:
    require_live("bpf")
    made = StallingServer()
    yield made
    made.close()


class Flying:
    """nsight-record --flight in the background; ``end`` returns its output."""

    def __init__(self, directory: Path, port: int, *options: str, prefix: tuple[str, ...] = ()) -> None:
        self.directory = directory
        argv = [*prefix, str(RECORDER), "--flight", "-o", str(directory), "--port", str(port), *options]
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        self.said = ""
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        while "flight recorder:" not in self.said:
            assert self._listener.is_alive(), f"it did not begin: {self.said}"
            time.sleep(0.02)

    def _listen(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.said += line

    def wait_for_windows(self, n: int) -> None:
        """Wait until ``n`` windows are complete."""
        deadline = time.monotonic() + END_S
        while len(self.windows()) < n:
            assert time.monotonic() < deadline, f"{len(self.windows())} windows of {n}"
            assert self.process.poll() is None, self.said
            time.sleep(0.02)

    def windows(self) -> list[tuple[Path, dict[str, Any]]]:
        """Complete windows, in the order in which they were written."""
        found = []
        for path in self.directory.glob("*.nsight"):
            if (path / "manifest.json").exists() and manifest(path)["state"] != "recording":
                found.append((path, manifest(path)))
        return sorted(found, key=lambda w: w[1]["stop"]["monotonic_ns"])

    def end(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(END_S) == 130, self.said
        self._listener.join(END_S)
        return self.said


Begin = Callable[..., Flying]


@pytest.fixture
def flying() -> Iterator[Begin]:
    """Begins a flight recorder; recorders of a failed test are ended, too."""
    runs: list[Flying] = []

    def begin(directory: Path, port: int, *options: str, prefix: tuple[str, ...] = ()) -> Flying:
        runs.append(Flying(directory, port, *options, prefix=prefix))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            run.process.terminate()
            run.process.wait(END_S)


def whole(path: Path) -> bool:
    """Whether every record that the window counts is there, and every record there is counted."""
    files = [read(p) for p in (path / "records").glob("*.records")]
    return all(f.ended and not f.missing() and set(f.present) == set(f.counts) for f in files)


def test_each_stall_has_a_window_and_the_report_names_it(
    tmp_path: Path, server: StallingServer, flying: Begin
) -> None:
    run = flying(
        tmp_path / "f", server.port, "--trigger", "latency=20ms", "--before", "0.2", "--after", "0.05"
    )
    for n in range(3):
        server.requests(500, stall=True)
        run.wait_for_windows(n + 1)
    said = run.end()
    windows = run.windows()
    for begin, end in server.stalls:
        assert [
            path
            for path, m in windows
            if m["start"]["monotonic_ns"] < begin < end < m["stop"]["monotonic_ns"]
            and [
                t
                for t in m["flight"]["triggers"]
                if t["latency_ns"] >= 20_000_000 and t["local_port"] == server.port
            ]
        ]
    for path, m in windows:
        assert (m["state"], m["mode"], m["recorder_kind"], m["losses"]) == (
            "complete",
            "tracepoints",
            "bpf",
            [],
        )
        assert whole(path)
        assert path.stat().st_mode & 0o777 == 0o700
    assert f"{len(windows)} windows" in said
    assert sorted(p.suffix for p in run.directory.iterdir()) == [".nsight"] * len(windows)
    report = [sys.executable, str(ROOT / "tools/nsight-report/nsight-report"), str(windows[-1][0]), "--json"]
    done = subprocess.run(report, capture_output=True, text=True, timeout=END_S)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["causes"][0]["cause"] == "Application sleeps (A)"
    assert found["causes"][0]["max_deviation_ns"] > 20_000_000
    assert not [loss for loss in found["losses"] if loss["severity"] == "error"]


def test_no_window_goes_where_the_directorys_owner_points_to(
    tmp_path: Path, server: StallingServer, flying: Begin
) -> None:
    directory, elsewhere = tmp_path / "f", tmp_path / "elsewhere"
    run = flying(directory, server.port)
    os.kill(run.process.pid, signal.SIGUSR1)
    run.wait_for_windows(1)
    (made,) = directory.glob(".run-*")
    (elsewhere / "records" / ".window-2").mkdir(parents=True)
    made.rename(directory / "aside")
    made.symlink_to(elsewhere)
    os.kill(run.process.pid, signal.SIGUSR1)
    run.wait_for_windows(2)
    run.end()
    assert all(whole(path) for path, _ in run.windows())
    assert sorted(p.name for p in elsewhere.rglob("*")) == [".window-2", "records"]


def test_beyond_the_hours_limit_only_what_is_asked_for_is_written(
    tmp_path: Path, server: StallingServer, flying: Begin
) -> None:
    options = ("--trigger", "latency=20ms", "--before", "0.05", "--after", "0.01", "--windows-per-hour", "1")
    run = flying(tmp_path / "f", server.port, *options)
    for n in range(2):
        server.requests(50, stall=True)
        run.wait_for_windows(1)
        assert len(run.windows()) == 1, n
    run.process.send_signal(signal.SIGUSR1)
    run.wait_for_windows(2)
    said = run.end()
    assert [m["flight"]["triggers"][0]["reason"] for _, m in run.windows()] == ["latency", "asked"]
    assert re.search(r"warning: \d+ triggers made no window: the limit of windows an hour was reached", said)


@pytest.mark.parametrize("more", [(), ("--trigger", "latency=1000s")])
def test_a_message_beyond_its_services_percentile_is_a_trigger(
    tmp_path: Path, server: StallingServer, flying: Begin, more: tuple[str, ...]
) -> None:
    """This also holds if there is a limit for messages of any service."""
    options = ("--trigger", "latency=p99", "--windows-per-hour", "3600", *more)
    run = flying(tmp_path / "f", server.port, *options)
    # The limit is known a second after enough messages came, and follows the messages that came.
    deadline = time.monotonic() + END_S
    while (
        not any(t["latency_ns"] > 20_000_000 for _, m in run.windows() for t in m["flight"]["triggers"])
        and time.monotonic() < deadline
    ):
        server.requests(2000, stall=True)
    run.end()
    limits = [t["limit_ns"] for _, m in run.windows() for t in m["flight"]["triggers"]]
    assert limits
    assert all(0 < limit < 1e9 * STALL_S for limit in limits)


def test_a_datagram_that_waits_behind_another_is_a_trigger(tmp_path: Path, flying: Begin) -> None:
    """The first read of a burst moves all of it out of the socket's receive queue."""
    require_live("bpf")
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as reader,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        reader.bind(("127.0.0.1", 0))
        address = reader.getsockname()
        run = flying(tmp_path / "f", address[1], "--trigger", f"latency={STALL_S / 2}s")
        for _ in range(3):
            sender.sendto(b"x" * 64, address)
        reader.recv(64)
        time.sleep(STALL_S)
        reader.recv(64)
        run.wait_for_windows(1)
        run.end()
    triggers = [t for _, m in run.windows() for t in m["flight"]["triggers"]]
    assert max(t["latency_ns"] for t in triggers) > 1e9 * STALL_S
    assert {(t["local_port"], t["remote_port"]) for t in triggers} == {(address[1], 0)}


def test_rates_of_drops_and_of_retransmissions_are_triggers(tmp_path: Path, flying: Begin) -> None:
    """The receiver's filter drops the packet, and every retransmission of it."""
    require_live("bpf")
    nothing = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # BPF_RET
    program = struct.pack("HxxxxxxP", 1, ctypes.addressof(nothing))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        run = flying(tmp_path / "f", address[1], "--trigger", "drops=1/s", "--trigger", "retransmissions=1/s")
        with socket.create_connection(address) as client, listener.accept()[0] as receiver:
            receiver.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
            client.sendall(b"x")
            for n in (1, 2):  # both in one window, unless a second ended between them
                run.wait_for_windows(n)
                triggers = {t["reason"]: t for _, m in run.windows() for t in m["flight"]["triggers"]}
                if len(triggers) == 2:
                    break
    run.end()
    assert set(triggers) == {"drops", "retransmissions"}
    assert all(t["per_second"] >= t["limit_per_second"] == 1 for t in triggers.values())


def test_window_begins_before_the_oldest_message_that_joins_it(tmp_path: Path) -> None:
    options = ("--flight", "--messages", "--latency-us", "20000", "--before-ms", "50", "--after-ms", "60000")
    with (
        reserved() as (port,),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as first,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as second,
    ):
        first.bind(("127.0.0.1", port))
        second.bind(("127.0.0.2", port))
        run = Collector(tmp_path / "records", *options, "--port", str(port))
        first.sendto(b"x", first.getsockname())
        time.sleep(STALL_S)
        read_after(second, STALL_S)
        first.recv(1)
        window = json.loads(run.end()[1].splitlines()[0])
    came = [t["monotonic_ns"] - t["latency_ns"] for t in window["triggers"]]
    assert len(came) == 2
    assert came[1] < came[0]
    assert window["from_ns"] == came[1] - 50_000_000


def test_slow_messages_that_come_too_fast_to_be_looked_at_are_counted(tmp_path: Path, flying: Begin) -> None:
    """64 are kept until the next poll, 10 ms later; each of these messages is slow when it is read."""
    require_live("bpf")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        s.bind(("127.0.0.1", 0))
        run = flying(tmp_path / "f", s.getsockname()[1], "--trigger", f"latency={STALL_S / 2}s")
        for _ in range(20_000):
            s.sendto(b"x", s.getsockname())
        time.sleep(STALL_S)
        with contextlib.suppress(BlockingIOError):
            while s.recv(1, socket.MSG_DONTWAIT):
                pass
        run.wait_for_windows(1)
        said = run.end()
    (told,) = re.findall(r"warning: (\d+) slow messages were not examined", said)
    assert 0 < int(told) < 20_000


def test_recorder_outlives_a_disk_that_is_full_when_a_window_ends(tmp_path: Path, flying: Begin) -> None:
    require_live("bpf")
    disk = tmp_path / "disk"
    disk.mkdir()
    prefix = ("unshare", "-m", "sh", "-c", SMALL_DISK, "sh", str(disk))
    run = flying(disk / "f", 1, "--memory", "8M", "--after", "4", prefix=prefix)
    inside = Path(f"/proc/{run.process.pid}/root{disk}")
    run.directory = inside / "f"
    fill(inside / "filler", 40 << 20)
    run.process.send_signal(signal.SIGUSR1)
    time.sleep(1)  # the window has begun, and ends later
    fill(inside / "more", 0)
    deadline = time.monotonic() + END_S
    while "no room for a window" not in run.said:
        assert run.process.poll() is None and time.monotonic() < deadline, run.said
        time.sleep(0.02)
    (inside / "filler").unlink()
    run.process.send_signal(signal.SIGUSR1)
    run.wait_for_windows(1)
    windows = [(whole(path), m["state"]) for path, m in run.windows()]
    said = run.end()
    assert windows == [(True, "complete")]
    assert "warning: 1 triggers made no window: the limit of windows in all (disk) was reached" in said


def test_recorder_outlives_a_disk_that_takes_no_more_files(tmp_path: Path, flying: Begin) -> None:
    """The disk has free bytes all the time."""
    require_live("bpf")
    disk = tmp_path / "disk"
    disk.mkdir()
    prefix = ("unshare", "-m", "sh", "-c", SMALL_DISK, "sh", str(disk))
    run = flying(disk / "f", 1, "--memory", "8M", "--after", "0.1", prefix=prefix)
    inside = Path(f"/proc/{run.process.pid}/root{disk}")
    run.directory = inside / "f"
    subprocess.run(
        ["nsenter", "-m", "-t", str(run.process.pid), "mount", "-o", "remount,nr_inodes=100", disk],
        check=True,
    )
    files = []
    with pytest.raises(OSError, match="No space left"):
        while True:
            files.append(inside / f"file-{len(files)}")
            files[-1].touch()
    run.process.send_signal(signal.SIGUSR1)
    deadline = time.monotonic() + END_S
    while "no room for a window" not in run.said:
        assert run.process.poll() is None and time.monotonic() < deadline, run.said
        time.sleep(0.02)
    for file in files[:-1]:
        file.unlink()
    run.process.send_signal(signal.SIGUSR1)
    run.wait_for_windows(1)
    windows = [(whole(path), m["state"]) for path, m in run.windows()]
    run.end()
    assert windows == [(True, "complete")]


def test_recorder_outlives_a_file_of_a_window_that_cannot_be_made(
    tmp_path: Path, server: StallingServer, flying: Begin
) -> None:
    """The recorder may open only one more file: the directory. The window reports that it is cut; the next one is complete."""
    run = flying(tmp_path / "f", server.port, "--memory", "8M", "--after", "0.1")
    children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
    (collector,) = (int(pid) for pid in children if "nsight-collect" in Path(f"/proc/{pid}/comm").read_text())
    before = resource.prlimit(collector, resource.RLIMIT_NOFILE)
    held = sorted(int(p.name) for p in Path(f"/proc/{collector}/fd").iterdir())
    free = next(n for n in range(len(held) + 1) if n not in held)
    resource.prlimit(collector, resource.RLIMIT_NOFILE, (free + 1, before[1]))
    server.requests(10)
    run.process.send_signal(signal.SIGUSR1)
    run.wait_for_windows(1)
    resource.prlimit(collector, resource.RLIMIT_NOFILE, before)
    server.requests(10)
    run.process.send_signal(signal.SIGUSR1)
    run.wait_for_windows(2)
    (_, first), (second, last) = run.windows()
    run.end()
    assert (first["state"], last["state"]) == ("cut", "complete")
    assert whole(second)


def test_programs_that_take_too_much_do_without_system_calls(
    tmp_path: Path, server: StallingServer, flying: Begin
) -> None:
    options = ("--most-cpu", "0.001", "--syscalls", "messages", "--before", "5")
    run = flying(tmp_path / "f", server.port, *options)
    deadline = time.monotonic() + END_S
    while "without system calls" not in run.said and time.monotonic() < deadline:
        server.requests(500)
    calls, stamped, told = [], [], []
    for n in (1, 2):
        server.requests(500)
        run.process.send_signal(signal.SIGUSR1)
        run.wait_for_windows(n)
        calls.append(sum(read(p).present[SYSCALL] for p in run.windows()[-1][0].glob("records/cpu-*")))
        switches = (read(p).present[SWITCH_SYSCALL] for p in run.windows()[-1][0].glob("records/cpu-*"))
        stamped.append(sum(switches))
        told.append(run.windows()[-1][1]["syscalls"])
        if n == 1:
            time.sleep(5.5)  # longer than a window, which holds calls from before the programs left them out
    assert "of the cores, more than 0.001 %: without system calls" in run.end()
    assert calls[0] > 0
    assert calls[1] == stamped[1] == 0
    assert told[1] == "none"


# In a new mount namespace: a machine into which more cores could be plugged.
WITH_POSSIBLE_CORES = """
set -e
echo "$1" >"$2"
mount --bind "$2" /sys/devices/system/cpu/possible
shift 2
exec "$@"
"""


def with_possible_cores(tmp_path: Path, cores: str) -> tuple[str, ...]:
    """Prefix of a command."""
    return ("unshare", "-m", "sh", "-c", WITH_POSSIBLE_CORES, "sh", cores, str(tmp_path / "possible"))


def test_cores_that_could_be_plugged_in_have_their_part_of_the_memory(tmp_path: Path, flying: Begin) -> None:
    """The kernel gives each of them a ring: together, the rings have the requested memory."""
    require_live("bpf")
    run = flying(tmp_path / "f", 1, "--memory", "8M", prefix=with_possible_cores(tmp_path, "0-63"))
    run.process.send_signal(signal.SIGUSR1)
    run.wait_for_windows(1)
    assert "flight recorder: 8.4 MB of memory" in run.end()
    ((_, m),) = run.windows()
    argv = m["tools"]["collect"]["argv"]
    assert int(argv[argv.index("--ring-kb") + 1]) * 64 == 8 << 10


def test_cores_that_could_be_plugged_in_take_no_part_of_the_processor_time(tmp_path: Path) -> None:
    """0.0001 per cent is some microseconds a second for the cores here, and a millisecond for 1024 cores."""
    options = ("--flight", "--messages", "--ring-kb", "64", "--most-cpu", "0.0001")
    prefix = with_possible_cores(tmp_path, "0-1023")
    with reserved() as (port,), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", port))
        run = Collector(tmp_path / "records", *options, "--port", str(port), prefix=prefix)
        assert run.process.stdout
        deadline = time.monotonic() + END_S
        while not select.select([run.process.stdout], [], [], 0.01)[0]:
            assert time.monotonic() < deadline, "they never took too much"
            s.sendto(b"x", s.getsockname())
            s.recv(1)
        said = json.loads(run.process.stdout.readline())
        run.end()
    assert (said["most_cpu"], said["now"]) == (0.0001, "paused")


def read_after(s: socket.socket, seconds: float) -> None:
    """Send a datagram to oneself, and read it when it has waited for ``seconds``."""
    s.sendto(b"x", s.getsockname())
    time.sleep(seconds)
    s.recv(1)


def test_recorder_that_is_paused_says_so_and_forgets_what_had_begun(tmp_path: Path) -> None:
    options = (
        "--flight",
        "--no-syscalls",
        "--ring-kb",
        "8192",
        "--most-cpu",
        "0.0001",
        "--pause-s",
        str(PAUSE_S),
        "--latency-us",
        "20000",
    )
    times = ("--before-ms", "60000", "--after-ms", "0")
    with reserved() as (port,), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", port))
        run = Collector(tmp_path / "records", *options, *times, "--port", str(port))
        assert run.process.stdout
        lines = iter(run.process.stdout.readline, "")
        s.sendto(b"x", s.getsockname())
        assert json.loads(next(lines))["now"] == "paused"
        s.recv(1)  # it came before the pause, and is read during it
        read_after(s, STALL_S)
        os.kill(run.process.pid, signal.SIGUSR1)
        paused = json.loads(next(lines))
        assert json.loads(next(lines)) == {"resumed": True}
        read_after(s, 0)
        read_after(s, STALL_S)
        after = json.loads(next(lines))
        run.end()
    assert [t["reason"] for t in paused["triggers"]] == ["asked"]
    assert 0 < paused["paused_ns"] < paused["to_ns"] - paused["from_ns"]
    assert after["triggers"][0]["reason"] == "latency"
    assert all(t["latency_ns"] < PAUSE_S * 1e9 for t in after["triggers"])
    assert 0 < after["paused_ns"] < after["to_ns"] - after["from_ns"]


def test_window_of_a_recorder_that_is_paused_is_cut(
    tmp_path: Path, server: StallingServer, flying: Begin
) -> None:
    run = flying(tmp_path / "f", server.port, "--most-cpu", "0.0001", "--syscalls", "none", "--before", "60")
    while "paused for a minute" not in run.said:
        server.requests(1)
    run.process.send_signal(signal.SIGUSR1)
    run.wait_for_windows(1)
    assert re.search(r"window: requested; .*, paused for [\d.e+-]+ s of it", run.end())
    ((_, m),) = run.windows()
    assert m["state"] == "cut"
    assert ["the BPF programs were paused" in reason for reason in m["cut"]] == [True]
    assert m["flight"]["paused_ns"] > 0


UNIT = ROOT / "tools/nsight-record/nsight-flight.service"


def test_the_services_capabilities_are_enough(tmp_path: Path, server: StallingServer, flying: Begin) -> None:
    found = re.search(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert found
    names = [f"+{name.removeprefix('CAP_').lower()}" for name in found[1].split()]
    prefix = ("setpriv", f"--bounding-set=-all,{','.join(names)}", "--no-new-privs")
    run = flying(tmp_path / "f", server.port, "--trigger", "latency=20ms", prefix=prefix)
    server.requests(50, stall=True)
    run.wait_for_windows(1)
    run.end()
    assert whole(run.windows()[0][0])


MOUNT = """
mount -t tmpfs none "$2" && mkdir "$2/windows" && mount -t tmpfs none "$2/windows" && mount -o remount,bind,ro "$2$3" || exit 99
exec "$1" --flight --preflight -o "$2/windows"
"""


@pytest.mark.parametrize(("read_only", "code"), [("", 0), ("/windows", 5)])
def test_only_the_windows_directory_must_be_writable(tmp_path: Path, read_only: str, code: int) -> None:
    """As for a service with ProtectSystem=strict: /var/lib is read-only, /var/lib/nsight is not."""
    require_live("bpf")
    argv = ["unshare", "-m", "sh", "-c", MOUNT, "sh", str(RECORDER), str(tmp_path), read_only]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=END_S)
    assert done.returncode == code, done.stdout + done.stderr
    assert (f"{tmp_path}/windows: read-only file system" in done.stdout) == (code != 0)


ASK = """
mkdir -p /run/nsight && mount -t tmpfs none /run/nsight
"$1" --flight -q -o "$2" &
until [ -e "/run/nsight/flight-$!" ]; do
	kill -0 $! || exit 1
	sleep 0.05
done
"$1" --write-window || exit 1
until [ -e "$2"/*.nsight/manifest.json ]; do
	kill -0 $! || exit 1
	sleep 0.05
done
kill -TERM $!
wait $!
"$1" --write-window
"""


def test_write_window_finds_the_recorder_that_runs(tmp_path: Path) -> None:
    require_live("bpf")
    argv = ["unshare", "-m", "sh", "-c", ASK, "sh", str(RECORDER), str(tmp_path / "f")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=END_S)
    assert done.stdout.startswith("requested from: nsight-record ")
    assert (done.returncode, "error: no flight recorder runs" in done.stderr) == (5, True)
    (window,) = (tmp_path / "f").glob("*.nsight")
    assert manifest(window)["flight"]["triggers"][0]["reason"] == "asked"


@pytest.mark.parametrize("goes_on", [True, False])
def test_rings_that_went_round_give_what_they_hold(tmp_path: Path, goes_on: bool) -> None:
    """64 KiB hold far less than the requested second: the window reports this, and its records are in order.

    While traffic goes on, a reader that has to wait for a core finds such a small ring completely overwritten. Only after
    the traffic's end is it certain how much the window holds.
    """
    options = ("--flight", "--ring-kb", "64", "--before-ms", "1000", "--after-ms", "0", "--all-syscalls")
    with datagrams() as (port, stop):
        run = Collector(tmp_path / "records", *options, "--port", str(port))
        time.sleep(2)
        if not goes_on:
            stop()
        os.kill(run.process.pid, signal.SIGUSR1)
        assert run.process.stdout
        window = json.loads(run.process.stdout.readline())
        code, out = run.end()
    totals = json.loads(out)
    assert (code, totals["windows"]) == (0, 1)
    directory = tmp_path / "records" / window["window"]
    files = {p.name: read(p) for p in directory.glob("*.records")}
    assert all(f.ended and not f.missing() for f in files.values())
    present = sum(f.present.total() for name, f in files.items() if name != "machine.records")
    assert present == window["records"]
    assert present < totals["records"] / 10
    assert window["short_ns"] > 500_000_000
    assert files["machine.records"].present[TASK] > 0
    if not goes_on:
        assert present > 100
        # A core that works in system calls may have no context switch in its last milliseconds.
        assert sum(f.present[kind] for f in files.values() for kind in (SWITCH, SWITCH_SYSCALL, SYSCALL)) > 0


def test_recorder_that_is_killed_leaves_its_windows(
    tmp_path: Path, server: StallingServer, flying: Begin
) -> None:
    run = flying(tmp_path / "f", server.port, "--trigger", "latency=20ms", "--before", "0.05")
    server.requests(50, stall=True)
    run.wait_for_windows(1)
    run.process.kill()
    run.process.wait()
    ((path, m),) = run.windows()
    assert m["state"] == "complete"
    assert whole(path)


# In a new mount namespace: a machine that offers Intel PT, and a perf that records a software event instead. All else is
# the real perf: signals, files, context switches, memory maps. It has no AUX buffers, so its snapshots hold none.
WITH_INTEL_PT = r"""
set -e
perf=$(command -v perf) directory=$1
shift
mkdir "$directory"
touch "$directory/perf.real"
mount --bind "$(readlink -f "$perf")" "$directory/perf.real"
cat >"$directory/perf" <<EOF
#!/bin/sh
for a; do
	shift
	case \$a in
	intel_pt/*) a=dummy ;;
	--snapshot) continue ;;
	esac
	set -- "\$@" "\$a"
done
exec "$directory/perf.real" "\$@"
EOF
chmod +x "$directory/perf"
mount --bind "$directory/perf" "$(readlink -f "$perf")"
mount -t tmpfs none /sys/bus/event_source/devices
mkdir -p /sys/bus/event_source/devices/intel_pt/format
exec "$@"
"""


def test_window_of_intel_pt_has_what_perf_wrote_for_it(
    tmp_path: Path, server: StallingServer, flying: Begin
) -> None:
    if not shutil.which("perf"):
        skip_or_fail("perf", "perf is not installed")
    prefix = ("unshare", "-m", "sh", "-c", WITH_INTEL_PT, "sh", str(tmp_path / "pt"))
    options = ("--mode", "intel-pt", "--trigger", "latency=20ms")
    run = flying(tmp_path / "f", server.port, *options, prefix=prefix)
    for n in range(2):
        server.requests(50, stall=True)
        run.wait_for_windows(n + 1)
    run.end()
    windows = run.windows()
    for begin, end in server.stalls:
        assert any(m["start"]["monotonic_ns"] < begin < end < m["stop"]["monotonic_ns"] for _, m in windows)
    for path, m in windows:
        assert (m["mode"], m["recorder_kind"], m["flight"]["options"]["after"]) == ("intel-pt", "bpf", 0.02)
        assert whole(path)
        assert b"kthreadd" in (path / "records/machine.records").read_bytes()  # names of threads
        # /proc/kcore cannot be read under lockdown; a window without it reports this.
        has_text = (path / "perf.data/kcore_dir/kcore").exists()
        assert m["state"] == ("complete" if has_text else "cut")
        assert [text for text in m["cut"] if has_text or "/proc/kcore" not in text] == []
        script = f"perf script --show-switch-events -F tid,time -i {path / 'perf.data'}"
        done = subprocess.run(shlex.split(script), capture_output=True, text=True, timeout=END_S)
        assert done.returncode == 0, done.stderr
        assert "PERF_RECORD_SWITCH" in done.stdout
        # perf wrote the file after this window ended; the check below shows that each window has a separate file.
        assert (path / "perf.data/data").stat().st_mtime_ns > m["stop"]["realtime_ns"] - 50_000_000
    written = [(path / "perf.data/data").stat().st_mtime_ns for path, _ in windows]
    assert written == sorted(set(written))
    assert {p.suffix for p in run.directory.iterdir()} == {".nsight"}
