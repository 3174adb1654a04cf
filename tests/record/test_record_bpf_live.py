# SPDX-License-Identifier: GPL-2.0-only
"""Real recordings of loopback traffic by nsight-collect, the default recorder of nsight-record."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import nsight_report
import numpy as np
import parity
import pytest
from machinery.testbed.ports import reserved
from nsight_record import collect
from nsight_report import drops
from recorder_run import (
    NO_TRACEFS,
    SMALL_DISK,
    SUDO,
    EchoServer,
    Running,
    fill,
    manifest,
    owners,
    record,
    require_live,
    tool_pids,
    wait_gone,
)
from test_collect_live import MESSAGE, SWITCH, read

pytestmark = pytest.mark.live

ARRIVAL, READ, SEND, XMIT = (MESSAGE | stamp << 2 for stamp in (0, 2, 3, 4))


@pytest.fixture(scope="module", autouse=True)
def live():
    require_live("bpf")


@pytest.fixture(scope="module")
def echo():
    server = EchoServer()
    yield server
    server.close()


def files(directory):
    return [read(p) for p in (directory / "records").glob("cpu-*.records")]


def n_of(directory, kind):
    return sum(f.present[kind] for f in files(directory))


def test_ordinary_recording_is_complete_and_has_every_request(tmp_path, echo):
    """300 requests and 300 answers, each sent by one call and read by one call; the default needs neither perf nor tracefs."""
    directory = tmp_path / "a.nsight"
    prefix = ("unshare", "-m", "sh", "-c", NO_TRACEFS, "sh")
    options = ("--port", str(echo.port), "--clients", "--", *echo.client(300))
    code, said = record(directory, *options, prefix=prefix, recorder="auto")
    assert code == 0, said
    m = manifest(directory)
    assert (m["state"], m["stopped_by"], m["cut"], m["losses"]) == ("complete", "command", [], [])
    assert m["recorder_kind"] == "bpf"
    assert {name: tool["exit"] for name, tool in m["tools"].items()} == {"clock": 0, "collect": 0}
    assert m["events"]["produced"]["S"] == m["events"]["written"]["S"] == n_of(directory, SEND) == 600
    assert n_of(directory, READ) >= 600  # the end of each connection is read, too
    assert n_of(directory, SWITCH) > 0
    assert all(f.ended and not f.missing() for f in files(directory))
    assert "lost: nothing" in said


def test_of_a_server_on_this_machine_its_clients_are_left_out(tmp_path, echo):
    """The server reads 300 requests and sends 300 answers; the client's sends are present as packets on their way."""
    code, said = record(tmp_path / "a.nsight", "--port", str(echo.port), "--", *echo.client(300))
    assert code == 0, said
    assert manifest(tmp_path / "a.nsight")["filters"]["server_only"] is True
    assert n_of(tmp_path / "a.nsight", SEND) == 300
    assert 300 <= n_of(tmp_path / "a.nsight", READ) <= 301
    assert n_of(tmp_path / "a.nsight", ARRIVAL) < n_of(tmp_path / "a.nsight", XMIT)


RECEIVER = """
import socket, sys
open('/proc/self/comm', 'w').write('other-app')
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('127.0.0.1', int(sys.argv[1])))
print('ready', flush=True)
while True:
    s.recv(2000)
"""
#: Datagrams to one port around a client's requests: softirqs for others' packets and for ours.
BOTH = """
import socket, subprocess, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(2000):
    s.sendto(b'x' * 100, ('127.0.0.1', int(sys.argv[1])))
subprocess.run(sys.argv[2:], check=True)
for _ in range(2000):
    s.sendto(b'x' * 100, ('127.0.0.1', int(sys.argv[1])))
"""


def test_whose_packets_a_softirq_received_is_known_although_a_filter_leaves_them_out(tmp_path, echo):
    directory = tmp_path / "a.nsight"
    with reserved() as (port,):
        command = [sys.executable, "-c", RECEIVER, str(port)]
        receiver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert receiver.stdout is not None and receiver.stdout.readline() == "ready\n"
            both = (sys.executable, "-c", BOTH, str(port), *echo.client(300))
            code, said = record(directory, "--port", str(echo.port), "--", *both)
        finally:
            receiver.kill()
            receiver.wait()
    assert code == 0, said
    capture = nsight_report.open(directory)
    assert (capture.messages["lport"] == echo.port).all()
    softirqs = capture.contexts[capture.contexts["others"].astype(str) != ""]
    assert set(softirqs["symbol"].astype(str)) == {"NET_RX"}
    told = softirqs.groupby(softirqs["others"].astype(str))["call_id"].nunique()
    assert told["other-app receive"] > 1000
    # No softirq around our messages' hand-offs is for others' packets. Packets of parallel tests may share a softirq with ours.
    known = softirqs[softirqs["others"].isin(["other-app receive", f"{echo.COMM} receive"])]
    at = capture.messages["handoff_ns"].dropna().to_numpy(np.int64)
    inside = [(known["start_ns"].le(t) & known["end_ns"].gt(t)).any() for t in at.tolist()]
    assert sum(inside) < len(at) / 10


# In a new network namespace: datagrams to a socket with a tiny buffer, then through a queue that holds a few packets.
DROPPING = """
import json, pathlib, socket, subprocess, sys
port, out = int(sys.argv[1]), pathlib.Path(sys.argv[2])
subprocess.run("ip link set lo up", shell=True, check=True)
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
server.bind(("127.0.0.1", port))
server.settimeout(1)
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.connect(("127.0.0.1", port))

def sent_and_read(n):
    for _ in range(n):
        client.send(bytes(500))
    try:
        for read in range(n):
            server.recv(600)
    except TimeoutError:
        return n, read
    return n, n

counts = [sent_and_read(100)]
SO_RCVBUFFORCE = 33
server.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
subprocess.run("tc qdisc add dev lo root tbf rate 1mbit burst 2000 limit 3000", shell=True, check=True)
counts.append(sent_and_read(100))
out.write_text(json.dumps(counts))
"""


def test_every_dropped_packet_is_told_with_the_kernels_reason(tmp_path):
    directory, counts = tmp_path / "a.nsight", tmp_path / "counts"
    with reserved() as (port,):
        command = ("unshare", "-n", sys.executable, "-c", DROPPING, str(port), str(counts))
        code, said = record(directory, "--port", str(port), "--", *command)
    assert code == 0, said
    (sent, read), (queued, passed) = json.loads(counts.read_text())
    assert 0 < read < sent
    assert 0 < passed < queued
    capture = nsight_report.open(directory)
    found = drops.of_messages(capture.drops, capture.messages)
    by_reason = found[found["direction"] == "to"].set_index("reason")["n_packets"]
    assert by_reason.pop("SOCKET_RCVBUFF") == sent - read
    assert all(reason.startswith("QDISC_") for reason in by_reason.index)
    assert by_reason.sum() == queued - passed
    of_port = capture.drops[capture.drops["dport"] == port]
    told = set(zip(*(of_port[name].astype(str) for name in ("saddr", "daddr")), strict=True))
    assert told == {("127.0.0.1", "127.0.0.1")}


def test_ctrl_c_keeps_the_data(tmp_path, echo):
    running = Running(tmp_path / "a.nsight", "--port", str(echo.port), prefix=("setsid",))
    m = running.wait_recording()
    echo.requests(50)
    os.killpg(running.process.pid, signal.SIGINT)  # as a terminal does
    _, err = running.end()
    assert running.process.returncode == 130, err
    m = manifest(tmp_path / "a.nsight")
    assert (m["state"], m["stopped_by"], m["losses"]) == ("complete", "signal", [])
    assert n_of(tmp_path / "a.nsight", SEND) == 50
    assert wait_gone(tool_pids(m)) == []


@pytest.mark.parametrize("victim", ["collect", "clock"])
def test_killed_program_is_named_and_the_rest_is_kept(tmp_path, echo, victim):
    running = Running(tmp_path / "a.nsight", "--port", str(echo.port))
    m = running.wait_recording()
    echo.requests(50)
    os.kill(m["tools"][victim]["pid"], signal.SIGKILL)
    _, err = running.end()
    m = manifest(tmp_path / "a.nsight")
    assert running.process.returncode == 5, err
    assert (m["state"], m["cut"]) == ("cut", [f"{victim}: killed by SIGKILL"])
    if victim == "collect":
        unknown = "it ended without its counts: how many records were lost is unknown"
        assert m["records"] == {"produced": None, "lost": None}
        assert m["losses"] == [{"tool": "collect", "what": unknown, "count": None}]
        assert f"collect: {unknown}" in err
        assert "lost: nothing" not in err
        assert "no message was seen" not in err
    assert {t: v["exit"] for t, v in m["tools"].items() if t != victim} == {
        t: 0 for t in ("clock", "collect") if t != victim
    }
    assert wait_gone(tool_pids(m)) == []
    files(tmp_path / "a.nsight")  # readable


def test_killed_recorder_leaves_a_whole_capture_and_no_processes(tmp_path, echo):
    running = Running(tmp_path / "a.nsight", "--port", str(echo.port), prefix=SUDO)
    m = running.wait_recording()
    echo.requests(50)
    running.process.kill()
    running.end()
    assert wait_gone(tool_pids(m)) == []
    assert manifest(tmp_path / "a.nsight")["state"] == "recording"
    # The programs were stopped by a signal, so each wrote out what it had.
    assert all(f.ended and not f.missing() for f in files(tmp_path / "a.nsight"))
    assert n_of(tmp_path / "a.nsight", SEND) == 50
    assert {(who, mode & 0o077) for who, mode in owners(tmp_path / "a.nsight")} == {((0, 0), 0)}


@pytest.mark.parametrize("rest_kib", [17 * 1024, 0])
def test_full_disk_stops_the_recording_and_keeps_what_is_there(tmp_path, echo, rest_kib):
    disk = tmp_path / "disk"
    disk.mkdir()
    prefix = ("unshare", "-m", "sh", "-c", SMALL_DISK, "sh", str(disk))
    running = Running(disk / "a.nsight", "-d", "600", prefix=prefix)
    inside = f"/proc/{running.process.pid}/root{disk}"
    running.directory = Path(inside) / "a.nsight"
    running.wait_recording()
    held = os.open(inside, os.O_RDONLY)  # keeps the disk after the recorder's end
    try:
        # The filler must not take the space that the recorder frees for its last manifest.
        running.process.send_signal(signal.SIGSTOP)
        fill(Path(f"/proc/self/fd/{held}/filler"), rest_kib * 1024)
        if not rest_kib:
            # The records in the rings at the end fit into the space that is freed then; the lost records came before.
            log = running.directory / "collect.log"
            full = "No space left on device"
            running.wait_for(lambda: echo.requests(100) or full in log.read_text(), "lose a record")
        running.process.send_signal(signal.SIGCONT)
        _, err = running.end()
        capture = Path(f"/proc/self/fd/{held}/a.nsight")
        m = manifest(capture)
        found = files(capture)
    finally:
        os.close(held)
    assert running.process.returncode == 5, err
    assert m["stopped_by"].startswith("error: ")
    assert m["state"] != "recording"
    assert all(f.present for f in found)
    assert all(f.ended for f in found)
    present = sum(f.present.total() for f in found)
    assert m["records"]["produced"] - m["records"]["lost"] == present
    assert (
        sum(sum(f.missing().values()) + sum(lost for _, lost in f.counts.values()) for f in found)
        == m["records"]["lost"]
    )
    if not rest_kib:
        assert m["records"]["lost"] > 0
        assert "lost: nothing" not in err
    if rest_kib:
        assert "the disk is nearly full" in err
        assert m["state"] == "complete"
        assert all(f.ended and not f.missing() for f in found)


@pytest.mark.tools
def test_both_recorders_see_the_same_messages(tmp_path):
    """Recorded at the same time. Timestamps are taken one after the other, so they differ by the cost of the slower probes."""
    require_live("bpftrace")
    found = parity.run(tmp_path, rate=1000, seconds=1)
    ours, theirs, both = found.messages
    assert ours == theirs == both > 500
    assert all(len(ns) == both for ns in found.apart.values())
    assert found.same > 0.9


def test_port_of_a_server_is_told_from_that_of_a_client():
    with reserved(2) as (served, other):
        assert not collect.listens(served)
        with socket.create_server(("127.0.0.1", served)):
            assert collect.listens(served)
            assert not collect.listens(other)
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as datagrams:
            datagrams.bind(("::1", other))
            assert collect.listens(other)


def test_summary_of_a_collector_that_was_killed_is_unknown(tmp_path):
    log = tmp_path / "log"
    log.write_text("recording\n")
    counts, records, lost = collect.count(log)
    assert (counts.produced, counts.ended, records, lost) == ({}, False, 0, 0)
    core = {"bytes": 1, "unwritten_bytes": 0, "types": {"2": [10, 3, 6], str(SEND): [5, 1, 4]}}
    log.write_text("recording\n" + json.dumps({"0": core}))
    counts, records, lost = collect.count(log)
    assert (counts.produced, counts.written, records, lost) == ({"S": 5}, {"S": 4}, 15, 5)


def test_runs_that_the_kernel_left_out_are_known_by_program(tmp_path):
    log = tmp_path / "log"
    assert collect.missed(log) == {}
    core = {"bytes": 1, "unwritten_bytes": 0, "types": {"2": [10, 0, 10]}}
    log.write_text(
        "recording\nmissed on_sys_enter 21\nmissed on_sock_send_length 3\n" + json.dumps({"0": core})
    )
    assert collect.missed(log) == {"on_sys_enter": 21, "on_sock_send_length": 3}
    assert collect.count(log)[1:] == (10, 0)


def test_connections_that_take_no_request_are_counted(tmp_path):
    log = tmp_path / "log"
    assert collect.not_asked(log) == 0
    log.write_text("recording\n")
    assert collect.not_asked(log) == 0
    log.write_text("connections that were there: 12 asked, 3 not\nrecording\n")
    assert collect.not_asked(log) == 3
