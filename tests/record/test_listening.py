# SPDX-License-Identifier: GPL-2.0-only
"""The manifest counts connection attempts that met a full accept queue, which no probe sees."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from machinery.testbed.ports import reserved
from made_up_machine import put
from nsight_record import listening
from recorder_run import manifest, record, require_live

#: One accepted connection carries a message. Then nobody accepts: two connections fit into the queue (backlog 1), ten do not.
PROGRAM = """
import socket, sys
where = "127.0.0.1", int(sys.argv[1])
listener = socket.create_server(where, backlog=1)
with socket.create_connection(where) as client:
    with listener.accept()[0] as server:
        client.sendall(b"request")
        server.recv(64)
waiting = [socket.socket() for _ in range(12)]
for client in waiting:
    client.setblocking(False)
    client.connect_ex(where)
"""


def put_process(root: Path, pid: int, namespace: str, overflows: int | None) -> int:
    """A process in that namespace; returns the namespace's number."""
    put(root, f"ns/{namespace}")
    directory = root / f"proc/{pid}"
    (directory / "ns").mkdir(parents=True, exist_ok=True)
    if not (directory / "ns/net").exists():
        os.link(root / "ns" / namespace, directory / "ns/net")
    text = "TcpExt: SyncookiesSent ListenOverflows ListenDrops\n"
    if overflows is not None:
        text += f"TcpExt: 0 {overflows} 99\nIpExt: InNoRoutes\nIpExt: 5\n"
    put(root, f"proc/{pid}/net/netstat", text)
    return (directory / "ns/net").stat().st_ino


def test_each_namespace_counts_once_as_far_as_both_readings_have_it(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/status")
    a, b = put_process(tmp_path, 10, "a", 5), put_process(tmp_path, 20, "b", 7)
    put_process(tmp_path, 11, "a", 5)
    put_process(tmp_path, 30, "cut", None)
    (tmp_path / "proc/40").mkdir()
    assert listening.overflows(tmp_path) == {a: 5, b: 7}
    assert listening.overflows(tmp_path, only=b) == {b: 7}
    watch, of_b = listening.Watch(tmp_path), listening.Watch(tmp_path, only=b)
    assert watch.told() == 0
    for pid, name, count in ((10, "a", 9), (11, "a", 9), (20, "b", 8), (50, "new", 1000)):
        put_process(tmp_path, pid, name, count)
    assert (watch.told(), of_b.told()) == (4 + 1, 1)


@pytest.mark.live
def test_connections_that_met_a_full_queue_are_in_the_manifest(tmp_path: Path) -> None:
    require_live("bpf")
    with reserved() as (port,):
        command = (sys.executable, "-c", PROGRAM, str(port))
        code, said = record(tmp_path / "a.nsight", "--port", str(port), "--", *command)
    assert code == 0, said
    assert manifest(tmp_path / "a.nsight")["listen_overflows"] >= 10
