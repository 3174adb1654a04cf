# SPDX-License-Identifier: GPL-2.0-only
"""nsight-collect and sockets that are no plain TCP or UDP: no messages of theirs, and every byte in its place."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from bpftrace.message_traffic import copies, urgent
from machinery.made_up import record_files as rf
from machinery.testbed.ports import reserved
from test_collect_live import Collector

pytestmark = pytest.mark.live
IPPROTO_MPTCP = 262


def multipath(port: int) -> None:
    """Ten messages over multipath TCP."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
    client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
    with listener, client:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        client.connect(("127.0.0.1", port))
        with listener.accept()[0] as server:
            for _ in range(10):
                client.sendall(bytes(10))
                assert len(server.recv(10, socket.MSG_WAITALL)) == 10


def test_only_tcp_and_udp_sockets_have_messages_and_an_urgent_byte_has_its_own_place(tmp_path: Path) -> None:
    with reserved() as (port,):
        run = Collector(tmp_path / "records", "--port", str(port))
        urgent(port)
        copies(port)
        multipath(port)
        assert run.end()[0] == 0
    _, stamps, info = rf.decode(run.directory, tmp_path / "decoded", only="messages")
    reads, sends = (stamps[stamps["kind"] == rf.KINDS.index(letter)] for letter in "RS")
    begin = int(sends["seq"][0])
    assert [
        ((int(r["seq"]) - begin) % 2**32, r["len"]) for r in reads[reads["proto"] == socket.IPPROTO_TCP]
    ] == [
        *((0, 10), (10, 1), (11, 7)),
        *((28, 1), (18, 10), (29, 7)),
    ]
    assert [(r["lport"], r["len"]) for r in reads[reads["proto"] == socket.IPPROTO_UDP]] == [(port, 10)] * 10
    assert len(sends) == 4 + 10
    assert info["probe_counts"]["multipath"] >= 10 + 10  # a read may take a message in parts
