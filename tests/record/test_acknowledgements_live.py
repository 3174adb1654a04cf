# SPDX-License-Identifier: GPL-2.0-only
"""The times when the driver was done with a reply and when the peer acknowledged it agree with what the sender's socket shows."""

import fcntl
import os
import socket
import struct
import time
from pathlib import Path

import nsight_report
import pytest
from machinery.testbed.ports import reserved
from recorder_run import Running, require_live

from conftest import skip_or_fail

pytestmark = pytest.mark.live

N = 15
SIOCOUTQ = 0x5411
now = time.monotonic_ns


def unacknowledged(of: socket.socket) -> int:
    return struct.unpack("i", fcntl.ioctl(of, SIOCOUTQ, bytes(4)))[0]


def connection(listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = socket.create_connection(listener.getsockname())
    return client, listener.accept()[0]


def exchange(client: socket.socket, server: socket.socket, read_first: bool) -> tuple[int, int]:
    """Exchange a request and its reply; the earliest and the latest time at which the reply can have been acknowledged."""
    client.send(b"request")
    server.recv(99)
    early = now()
    server.send(b"reply")
    if read_first:
        client.recv(99)
    while True:
        before = now()
        if not unacknowledged(server):
            break
        early = before
    late = now()
    if not read_first:
        client.recv(99)
    return early, late


def test_replies_are_acknowledged_when_nothing_of_them_is_left_in_the_socket(tmp_path: Path) -> None:
    """One connection is older than the recording, one is made meanwhile. On one core, acknowledgements interrupt the thread, so
    the socket's state before and after really is the state before and after."""
    require_live()
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with reserved() as (port,), socket.create_server(("127.0.0.1", port)) as listener:
            old = connection(listener)
            running = Running(tmp_path / "a.nsight", "--port", str(port), "--acknowledgements", "-q")
            try:
                running.wait_recording()
                new = connection(listener)
                known = [[exchange(*pair, n % 2 == 0) for n in range(N)] for pair in (old, new)]
                running.process.terminate()
                said = "".join(running.end())
            finally:
                running.process.kill()
            ports = [pair[0].getsockname()[1] for pair in (old, new)]
            for end in (*old, *new):
                end.close()
    except AssertionError as e:
        if "Linux 6.15" in str(e):
            skip_or_fail("bpf", str(e))
        raise
    finally:
        os.sched_setaffinity(0, cores)
    assert running.process.returncode == 130, said
    capture = nsight_report.open(tmp_path / "a.nsight")
    sent = capture.messages
    sent = sent[sent["direction"].astype(str) == "tx"]
    assert len(sent) == 2 * N and set(sent["lport"]) == {port}
    for rport, bounds in zip(ports, known, strict=True):
        acked = sent.loc[sent["rport"] == rport, "acked_ns"].tolist()
        assert len(acked) == N
        assert all(early < at <= late for at, (early, late) in zip(acked, bounds, strict=True))
        of = sent[sent["rport"] == rport]
        assert of["completion_ns"].notna().all()
        assert (of["driver_ns"] <= of["completion_ns"]).all() and (
            of["completion_ns"] <= of["acked_ns"]
        ).all()
    requests = capture.requests
    assert sorted(requests["completion_ns"].tolist()) == sorted(sent["completion_ns"].tolist())
    assert sorted(requests["acked_ns"].tolist()) == sorted(sent["acked_ns"].tolist())
    assert (requests["acked_ns"] >= requests["last_ns"]).all()
    # At least one acknowledgement was delayed, as a receiver does that waits for data to send with it.
    assert (requests["acked_ns"] - requests["last_ns"]).max() > 1_000_000
