# SPDX-License-Identifier: GPL-2.0-only
"""Beside other programs and kinds of traffic: payload intact, every chosen packet accounted for, no capsule seen by anybody outside.

Kernel TLS, the TCP options that take room or come with the SYN, connections under repair, and traffic that is neither TCP nor UDP.
"""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capsule.bed import V4, Bed, exchange
from capsule.stamping import Stamping, skipped, total
from conftest import skip_or_fail

pytestmark = pytest.mark.live

TCP_REPAIR, TCP_FASTOPEN, TCP_MD5SIG, TCP_ULP, TCP_FASTOPEN_CONNECT = 19, 23, 14, 31, 30
SOL_TLS, IPPROTO_MPTCP = 282, 262
SIZES = (1, 2, 51, 1000, 1378, 1406, 30_000)
PORT = 7151


def accounted(manifest: dict[str, Any], least: int = 1) -> None:
    """Each chosen packet was stamped or skipped; each stamped one arrived, left, or was taken off."""
    born = total(manifest, "born")
    assert total(manifest, "drawn") == born + skipped(manifest)
    assert total(manifest, "drawn") >= least
    assert born == total(manifest, "ended") + total(manifest, "left") + total(manifest, "taken_off")
    for trouble in ("forged", "foreign", "not_written", "not_stripped"):
        assert not total(manifest, trouble), trouble


def segments(client: socket.socket, server: socket.socket) -> None:
    for one, other in ((client, server), (server, client)):
        for size in SIZES:
            data = bytes(i % 251 for i in range(size))
            assert exchange(one, other, data) == data, size


def datagrams(bed: Bed, port: int = PORT) -> None:
    client, server = bed.datagrams(socket.AF_INET, port)
    with client, server:
        for size in (0, 1, 50, 51, 1000, 1393, 1394, 1395, 1422):
            client.send(b"d" * size)
            assert server.recv(1 << 16) == b"d" * size


def test_kernel_tls_decrypts_what_was_sent(bed: Bed, everywhere: list[str], tmp_path: Path) -> None:
    bed.offloads(True)
    before = bed.errors()
    # struct tls12_crypto_info_aes_gcm_128: version 1.2, cipher 51, iv, key, salt, record number
    info = struct.pack("<HH8s16s4s8s", 0x0303, 51, bytes(8), b"k" * 16, b"salt", bytes(8))
    with Stamping(tmp_path / "out", *everywhere, "--rate", "1", "--port", str(PORT)) as stamping:
        client, server = bed.connection(socket.AF_INET, PORT)  # chosen on every kernel, as it is new
        with client, server:
            try:
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
            except OSError as error:
                skip_or_fail("stock-kernel", f"kernel TLS: {error.strerror}")
            for one, other in ((client, server), (server, client)):
                one.setsockopt(SOL_TLS, 1, info)
                other.setsockopt(SOL_TLS, 2, info)
            segments(client, server)
        manifest = stamping.end()
    assert bed.errors() == before
    accounted(manifest, 2 * len(SIZES))
    assert total(manifest, "ended") >= 2 * len(SIZES)


def _md5(ends: tuple[socket.socket, socket.socket]) -> None:
    """struct tcp_md5sig with the key of the peer."""
    for end, peer in zip(ends, (V4[1], V4[0])):
        address = struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton(peer)).ljust(128, b"\0")
        end.setsockopt(
            socket.IPPROTO_TCP,
            TCP_MD5SIG,
            address + struct.pack("=BBHi", 0, 0, 6, 0) + b"secret".ljust(80, b"\0"),
        )


def _fast_open(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
    ends[1].setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN, 16)


def _nothing(ends: tuple[socket.socket, socket.socket]) -> None:
    pass


@pytest.mark.parametrize(
    ("proto", "prepare"),
    [(0, _md5), (0, _fast_open), (IPPROTO_MPTCP, _nothing)],
    ids=["md5", "fast-open", "mptcp"],
)
def test_connections_with_other_options_carry_the_same(
    bed: Bed,
    everywhere: list[str],
    tmp_path: Path,
    proto: int,
    prepare: Callable[[tuple[socket.socket, socket.socket]], None],
) -> None:
    bed.offloads(True)
    before = bed.errors()
    for place in "ab":
        for setting in ("net.ipv4.tcp_fastopen=1027", "net.mptcp.enabled=1"):
            subprocess.run(
                ["ip", "netns", "exec", bed.name(place), "sysctl", "-qw", setting],
                capture_output=True,
                check=False,
            )
    with Stamping(tmp_path / "out", *everywhere, "--rate", "1", "--port", str(PORT)) as stamping:
        for _ in range(2):  # the second connection has the cookie of fast open
            try:
                listener = bed.socket("b", socket.AF_INET, socket.SOCK_STREAM, proto)
                client = bed.socket("a", socket.AF_INET, socket.SOCK_STREAM, proto)
                prepare((client, listener))
            except OSError as error:
                skip_or_fail("stock-kernel", f"this kernel: {error.strerror}")
            with listener, client:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((V4[1], PORT))
                listener.listen()
                for end in (client, listener):
                    end.settimeout(30)
                client.connect((V4[1], PORT))
                client.sendall(b"first")
                server, _ = listener.accept()
                with server:
                    server.settimeout(30)
                    assert server.recv(5, socket.MSG_WAITALL) == b"first"
                    segments(client, server)
        manifest = stamping.end()
    assert bed.errors() == before
    accounted(manifest, 2)
    assert bool(total(manifest, "born")) == (prepare is _fast_open)


def test_a_connection_that_is_repaired_meanwhile_goes_on(
    bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    """CRIU stops a connection like this to read its state; its segments are not lost."""
    bed.offloads(True)
    before = bed.errors()
    with Stamping(tmp_path / "out", *everywhere, "--rate", "1", "--port", str(PORT)) as stamping:
        client, server = bed.connection(socket.AF_INET, PORT)
        with client, server:
            segments(client, server)
            client.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
            client.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 0)  # sends a window probe
            segments(client, server)
        manifest = stamping.end()
    assert bed.errors() == before
    accounted(manifest, 20)


def test_sctp_beside_is_not_touched(bed: Bed, everywhere: list[str], tmp_path: Path) -> None:
    before = bed.errors()
    try:
        listener = bed.socket("b", socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP)
        client = bed.socket("a", socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP)
    except OSError as error:
        skip_or_fail("stock-kernel", f"SCTP: {error.strerror}")
    with listener, client, Stamping(tmp_path / "out", *everywhere, "--rate", "1") as stamping:
        listener.bind((V4[1], PORT))
        listener.listen()
        client.settimeout(30)
        client.connect((V4[1], PORT))
        server, _ = listener.accept()
        with server:
            server.settimeout(30)
            for size in (1, 51, 1378, 1406):
                client.sendall(b"s" * size)
                assert server.recv(size, socket.MSG_WAITALL) == b"s" * size
        manifest = stamping.end()
    assert bed.errors() == before
    accounted(manifest, 0)
