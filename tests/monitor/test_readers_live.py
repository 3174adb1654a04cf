# SPDX-License-Identifier: GPL-2.0-only
"""Readers and listeners of every kind: each message and connection is counted once, by whatever call a program takes it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from machinery.testbed.ports import reserved
from monitored import HANGS_S, Watch, addresses, connected, inode, inside, link
from nsight_demo.namespaces import Link

from conftest import ROOT, skip_or_fail

pytestmark = pytest.mark.live
N = 40
ETH_P_ALL = 3
MSG_DONTWAIT = 0x40


@pytest.fixture(scope="module")
def veth() -> Iterator[Link]:
    with link("readers") as made:
        yield made


@pytest.fixture
def port() -> Iterator[int]:
    with reserved() as (number,):
        yield number


class Buffer(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class Message(ctypes.Structure):
    """struct mmsghdr"""

    _fields_ = [
        ("name", ctypes.c_void_p), ("name_len", ctypes.c_uint32),
        ("buffers", ctypes.POINTER(Buffer)), ("n_buffers", ctypes.c_size_t),
        ("control", ctypes.c_void_p), ("control_len", ctypes.c_size_t),
        ("flags", ctypes.c_int), ("pad", ctypes.c_int), ("len", ctypes.c_uint),
    ]  # fmt: skip


def test_recvmmsg_reads_each_datagram_of_its_batch(veth: Link, port: int) -> None:
    bytes_ = [ctypes.create_string_buffer(64) for _ in range(N)]
    buffers = [Buffer(ctypes.addressof(b), 64) for b in bytes_]
    batch = (Message * N)(*(Message(buffers=ctypes.pointer(b), n_buffers=1) for b in buffers))
    with Watch("--netns", inode(veth.server), "--port", port) as watch:
        with connected(veth, False, False, port) as (client, server):
            client.send(b"x" * 10)  # so that later ones need not wait for the address of the server's device
            server.recv(10)
            for _ in range(N):
                client.send(b"x" * 10)
            taken, deadline = 0, time.monotonic() + HANGS_S
            while taken < N and time.monotonic() < deadline:  # a busy machine delivers some of them later
                got = ctypes.CDLL(None).recvmmsg(server.fileno(), batch, N - taken, MSG_DONTWAIT, None)
                taken += max(0, got)
            assert taken == N
    assert watch.n("udp-socket-enqueued") == watch.n("udp-socket-read") == watch.n("handoff-to-read") == N + 1
    assert watch.result.counts["read_without_handoff"] == 0


@pytest.mark.parametrize("tcp", [True, False], ids=["tcp", "udp"])
def test_a_look_at_a_message_is_no_read(veth: Link, port: int, tcp: bool) -> None:
    kind = "tcp" if tcp else "udp"
    with Watch("--netns", inode(veth.server), "--port", port) as watch:
        with connected(veth, tcp, False, port) as (client, server):
            for _ in range(N):
                client.send(b"x" * 10)
                for _ in range(2):
                    assert server.recv(10, socket.MSG_PEEK) == b"x" * 10
                server.recv(10)
    assert watch.n(f"{kind}-socket-read") == watch.n("handoff-to-read") == N
    assert watch.result.counts["peek"] == 2 * N


def test_workers_of_io_uring_read_and_reply(veth: Link, port: int) -> None:
    command = [sys.executable, str(ROOT / "tests/machinery/testbed/io_uring_echo.py"), str(port)]
    with inside(veth.server):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    if not process.stdout.readline():
        skip_or_fail("io_uring", process.communicate()[1].splitlines()[-1])
    with Watch("--netns", inode(veth.server), "--port", port) as watch:
        with inside(veth.server), socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(HANGS_S)
            for _ in range(N):
                client.send(b"x" * 10)
                assert client.recv(10) == b"x" * 10
    process.communicate()
    assert watch.n("tcp-socket-read") == watch.n("tcp-socket-enqueued") == 2 * N  # of both ends
    assert watch.n("request") == 2 * N - 1  # the first message answers none, the last reply has no answer


@pytest.mark.parametrize("tcp", [True, False], ids=["tcp", "udp"])
def test_a_packet_capture_beside_changes_no_count(veth: Link, port: int, tcp: bool) -> None:
    """A packet socket gets a clone of each packet, in the same buffer."""
    kind = "tcp" if tcp else "udp"
    with contextlib.ExitStack() as stack:
        with inside(veth.server):
            for _ in range(2):
                tap = stack.enter_context(
                    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
                )
                tap.bind((veth.interface, 0))
        with Watch("--netns", inode(veth.server), "--port", port) as watch:
            with connected(veth, tcp, False, port) as (client, server):
                for _ in range(N):
                    client.send(b"x" * 10)
                    server.send(server.recv(10))
                    client.recv(10)
        assert len(tap.recv(2000)) > 10
    for stage in (f"{kind}-socket-enqueued", f"{kind}-socket-read", "handoff-to-read", "request"):
        assert watch.n(stage) == N, stage
    counts = watch.result.counts
    assert not any(n for name, n in counts.items() if "without" in name or name.startswith("no_stamp"))


@pytest.mark.parametrize("tcp", [True, False], ids=["tcp", "udp"])
def test_unread_data_of_a_closed_socket_is_not_read_by_the_next_one(veth: Link, port: int, tcp: bool) -> None:
    kind = "tcp" if tcp else "udp"
    with Watch("--netns", inode(veth.server), "--port", port) as watch:
        with connected(veth, tcp, False, port) as (client, server):
            for _ in range(3):
                client.send(b"x" * 10)
            time.sleep(0.05)
            server.close()
        with connected(veth, tcp, False, port) as (client, server):
            for _ in range(N):
                client.send(b"x" * 10)
                server.recv(10)
    assert watch.n(f"{kind}-socket-enqueued") == N + 3
    assert watch.n(f"{kind}-socket-read") == watch.n("handoff-to-read") == N
    assert watch.n("head-of-line") == watch.result.counts["read_without_handoff"] == 0


def listening(of: Link, port: int) -> socket.socket:
    with inside(of.server):
        made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((addresses(False)[0], port))
    made.listen(N)
    return made


def clients(of: Link, port: int, n: int = N) -> list[socket.socket]:
    found = []
    for _ in range(n):
        with inside(of.client):
            found.append(socket.socket())
        found[-1].settimeout(HANGS_S)
        found[-1].connect((addresses(False)[0], port))
    return found


def test_connections_of_listeners_that_share_a_port_are_each_counted_once(veth: Link, port: int) -> None:
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(listening(veth, port)) for _ in range(2)]
        with Watch("--netns", inode(veth.server), "--port", port, "--stages", "accept-queue") as watch:
            for client in clients(veth, port):
                stack.enter_context(client)
            time.sleep(0.05)
            taken = []
            for listener in listeners:
                listener.setblocking(False)
                taken.append(0)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        listener.accept()[0].close()
                        taken[-1] += 1
    assert sum(taken) == N and all(taken)
    assert watch.n("accept-queue") == N
    assert watch.result.counts["accept_without_establishment"] == 0


def test_each_of_many_connections_that_wait_at_once_is_counted(veth: Link, port: int) -> None:
    n = 400
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listening(veth, port))
        listener.listen(n)
        with Watch("--netns", inode(veth.server), "--port", port, "--stages", "accept-queue") as watch:
            ends = [stack.enter_context(end) for end in clients(veth, port, n)]
            ends += [stack.enter_context(listener.accept()[0]) for _ in range(n)]
    assert watch.result.counts["accept_without_establishment"] == 0
    assert watch.n("accept-queue") == n


@pytest.mark.parametrize("by", ["d", "s"], ids=["accept4", "socketcall"])
def test_a_32_bit_process_accepts_by_numbers_of_its_own(
    veth: Link, port: int, tmp_path: Path, by: str
) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the program is for x86")
    program, source = tmp_path / "accept", Path(__file__).parent / "compat_accept.c"
    build = [
        "gcc",
        "-m32",
        "-O1",
        "-nostdlib",
        "-static",
        "-ffreestanding",
        "-fno-pic",
        "-o",
        str(program),
        str(source),
    ]
    done = subprocess.run(build, capture_output=True, text=True)
    if done.returncode:
        skip_or_fail("compiler", done.stderr)
    with listening(veth, port) as listener:
        with Watch("--netns", inode(veth.server), "--port", port, "--stages", "accept-queue") as watch:
            ends = clients(veth, port)
            try:
                ran = subprocess.run([str(program), *by * N], stdin=listener.fileno(), timeout=HANGS_S)
            except OSError as e:
                pytest.skip(f"this kernel runs no 32-bit programs: {os.strerror(e.errno or 0)}")
            for end in ends:
                end.close()
    assert ran.returncode == 0
    assert watch.n("accept-queue") == N
    assert watch.result.counts["accept_without_establishment"] == 0
