# SPDX-License-Identifier: GPL-2.0-only
"""Readers of TCP that never call recv: splice into a pipe, and zero-copy receive."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest
from machinery.testbed.ports import reserved
from monitored import Watch, assert_between, connected, inode, link, now
from nsight_demo.namespaces import Link

pytestmark = pytest.mark.live
SLEEP_S, N = 0.02, 10
TCP_ZEROCOPY_RECEIVE = 35  # include/uapi/linux/tcp.h
STAGES = ("tcp-socket-read", "handoff-to-read")
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(scope="module")
def veth() -> Iterator[Link]:
    with link("splice") as made:
        yield made


@pytest.fixture
def port() -> Iterator[int]:
    with reserved() as (number,):
        yield number


def splice(sock: socket.socket) -> int:
    """Number of bytes that went from the socket into a pipe."""
    ends = os.pipe()
    try:
        return os.splice(sock.fileno(), ends[1], 100)
    finally:
        for end in ends:
            os.close(end)


def zero_copy(sock: socket.socket) -> int:
    """Number of bytes that struct tcp_zerocopy_receive returns; so few are copied into its buffer."""
    buffer = ctypes.create_string_buffer(200)
    at, size = ctypes.addressof(buffer), ctypes.c_uint32(64)
    request = ctypes.create_string_buffer(struct.pack("=QIIIiQiIQQII", 0, 0, 0, 0, 0, at, 200, 0, 0, 0, 0, 0))
    level = socket.IPPROTO_TCP
    assert _libc.getsockopt(sock.fileno(), level, TCP_ZEROCOPY_RECEIVE, request, ctypes.byref(size)) == 0, (
        os.strerror(ctypes.get_errno())
    )
    return int(struct.unpack_from("=i", request, 32)[0])


@pytest.mark.parametrize("read", [splice, zero_copy])
def test_messages_that_recv_never_reads_are_in_the_stages_of_reads(
    veth: Link, port: int, read: Callable[[socket.socket], int]
) -> None:
    """Each message waits for a known time; the next send of the server is its reply."""
    known = []
    with Watch("--netns", inode(veth.server), "--port", port) as watch:
        with connected(veth, True, False, port) as (client, server):
            server.setblocking(True)
            for _ in range(N):
                before = now()
                client.send(b"x" * 100)
                sent = now()
                time.sleep(SLEEP_S)
                begin = now()
                assert read(server) == 100
                known.append((begin - sent, now() - before))
                server.send(b"y")
                client.recv(9)
    for stage in STAGES:
        assert_between(watch.of(stage), known)
    assert watch.n("tcp-socket-enqueued") == watch.n("request") == N
    assert watch.n("head-of-line") == 0
    counts = watch.result.counts
    assert counts["taken_without_read"] == counts["read_without_handoff"] == 0


def test_a_splice_that_takes_no_data_is_no_read(veth: Link, port: int) -> None:
    """Nothing waits, then one message, and then the connection's end, which takes a sequence number."""
    with Watch("--netns", inode(veth.server), "--port", port) as watch:
        with connected(veth, True, False, port) as (client, server):
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                splice(server)
            server.setblocking(True)
            client.send(b"x" * 100)
            assert splice(server) == 100
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                splice(server)
            server.setblocking(True)
            client.shutdown(socket.SHUT_WR)
            assert splice(server) == 0
    for stage in STAGES:
        assert watch.n(stage) == 1
    assert watch.result.counts["read_without_handoff"] == 0


def test_recv_and_splice_share_a_socket(veth: Link, port: int) -> None:
    """Two messages wait; splice takes the first, and leaves the second one to recv."""
    with Watch("--netns", inode(veth.server), "--port", port) as watch:
        with connected(veth, True, False, port) as (client, server):
            server.setblocking(True)
            for _ in range(N):
                client.send(b"x" * 100)
                client.send(b"y" * 100)
                assert splice(server) == 100
                assert server.recv(200) == b"y" * 100
    for stage in STAGES:
        assert watch.n(stage) == 2 * N
    assert watch.n("head-of-line") == N
    assert watch.result.counts["taken_without_read"] == 0
