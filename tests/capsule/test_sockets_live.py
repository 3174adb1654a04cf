# SPDX-License-Identifier: GPL-2.0-only
"""Senders' sockets: segments stay within the MTU, other socket programs keep their marks, and none of our marks stays."""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from machinery.harness import capabilities
from nsight_capsule import settings
from nsight_record.errors import RecordError

from capsule.bed import V4, Bed, exchange, run
from capsule.stamping import TOOL, Stamping, skipped, total
from capsule.test_removal_live import BPFTOOL, ETH_P_ALL
from conftest import skip_or_fail

pytestmark = pytest.mark.live

MOST_SOCKETS = 10_000
HERE = Path(__file__).parent


def headers(bed: Bed, ends: tuple[socket.socket, socket.socket], size: int = 100) -> set[int]:
    """Lengths of the TCP headers of three segments with ``size`` bytes of payload, as they arrive in b."""
    seen: list[int] = []
    port = ends[1].getsockname()[1]
    with bed.socket("b", socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as tap:
        tap.bind(("eth0", ETH_P_ALL))
        tap.settimeout(30)
        for _ in range(3):
            assert exchange(*ends, b"z" * size) == b"z" * size
        while len(seen) < 3:
            frame = tap.recv(1 << 16)
            if (
                frame[12:14] == b"\x08\x00"
                and frame[23] == socket.IPPROTO_TCP
                and frame[36:38] == struct.pack(">H", port)
            ):
                header = (frame[46] >> 4) * 4
                seen += [header] if struct.unpack(">H", frame[16:18])[0] - 20 - header == size else []
    return set(seen)


@contextmanager
def other_program(tmp_path: Path) -> Iterator[Path]:
    """A cgroup with the other program: sockets created in it have this program."""
    if why := capabilities.programs("clang", "bpftool")():
        skip_or_fail("bpf", why)
    try:
        group = settings.cgroup_root() / f"nsight-other-{os.getpid()}"
    except RecordError as error:
        skip_or_fail("bpf", str(error))
    words = ("clang", "-O2", "-g", "-target", "bpf", f"-idirafter/usr/include/{os.uname().machine}-linux-gnu")
    run(*words, "-c", str(HERE / "other.bpf.c"), "-o", str(tmp_path / "other.o"))
    pins = tmp_path / "bpf"
    pins.mkdir()
    group.mkdir()
    run("mount", "-t", "bpf", "bpf", str(pins))
    try:
        run(BPFTOOL, "prog", "load", str(tmp_path / "other.o"), str(pins / "other"))
        run(BPFTOOL, "cgroup", "attach", str(group), "sock_ops", "pinned", str(pins / "other"), "multi")
        yield group
    finally:
        run("umount", str(pins))
        group.rmdir()


def connection_within(bed: Bed, group: Path, port: int) -> tuple[socket.socket, socket.socket]:
    """A connection whose sockets belong to a cgroup."""
    before = Path("/proc/self/cgroup").read_text().splitlines()[-1].partition("::/")[2]
    (group / "cgroup.procs").write_text("0")
    try:
        return bed.connection(socket.AF_INET, port)
    finally:
        (group.parent / before / "cgroup.procs").write_text("0")


@pytest.mark.parametrize("port", [7071, 1], ids=["chosen", "not-chosen"])
def test_connections_that_another_program_marked_stay_marked(
    bed: Bed, everywhere: list[str], tmp_path: Path, port: int
) -> None:
    """With timestamps and the other program's option, a TCP header has 36 bytes; a capsule would not fit."""
    bed.offloads(True)
    with other_program(tmp_path) as group:
        before = connection_within(bed, group, 7071)
        assert headers(bed, before) == {36}
        with Stamping(tmp_path / "out", *everywhere, "--rate", "1", "--port", str(port)) as stamping:
            meanwhile = connection_within(bed, group, 7071)
            assert headers(bed, before) == headers(bed, meanwhile) == {36}
            manifest = stamping.end()
        assert headers(bed, before) == headers(bed, meanwhile) == {36}
    assert total(manifest, "drawn") == total(manifest, "skip_room")
    assert bool(total(manifest, "drawn")) == (port != 1)


def fragments_failed(bed: Bed, place: str) -> int:
    """Number of packets that the kernel dropped because they were too large and must not be fragmented."""
    text = run("ip", "netns", "exec", bed.name(place), "cat", "/proc/net/snmp")
    names, values = (line.split() for line in text.splitlines() if line.startswith("Ip:"))
    return int(values[names.index("FragFails")])


def with_window(frame: bytes) -> bytes:
    """The same segment with the largest window."""
    ip, tcp = frame[14:34], bytearray(frame[34 : 14 + struct.unpack(">H", frame[16:18])[0]])
    tcp[14:18] = b"\xff\xff\0\0"
    pseudo = ip[12:20] + struct.pack(">HH", 6, len(tcp)) + tcp + b"\0" * (len(tcp) & 1)
    total_sum = sum(struct.unpack(f">{len(pseudo) // 2}H", pseudo)) % 0xFFFF
    tcp[16:18] = struct.pack(">H", 0xFFFF - total_sum)
    return frame[:34] + bytes(tcp)


def test_segments_keep_to_the_mtu_when_sack_blocks_go(
    bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    """Data waits for the receiver's window. A segment that a already has comes again, and opens the window. The MSS is computed
    with the SACK block that reports the duplicate, which leaves no room for a capsule. Only the first segment has that block.
    """
    bed.offloads(True)
    control = ("ip", "netns", "exec", bed.name("a"), "sysctl", "-n", "-w")
    name = "net.ipv4.tcp_congestion_control"
    usual = run(*control[:-1], name).strip()
    # To send several segments at once: small ones, and no pacing, which would send each from a timer.
    bed.ip("a", "link", "set", "eth0", "gso_max_segs", "2")
    run(*control, f"{name}=reno")
    try:
        _open_with_a_copy(bed, [*everywhere, "--rate", "1", "--port", "7072", "--protocol", "tcp"], tmp_path)
    finally:
        bed.ip("a", "link", "set", "eth0", "gso_max_segs", "65535")
        run(*control, f"{name}={usual}")


def _open_with_a_copy(bed: Bed, options: list[str], tmp_path: Path) -> None:
    with Stamping(tmp_path / "out", *options) as stamping:
        client, server = bed.connection(socket.AF_INET, 7072)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        before = fragments_failed(bed, "a")
        client.setblocking(False)
        sent = 0
        try:
            while True:
                sent += client.send(b"w" * 10_000)
        except BlockingIOError:
            client.settimeout(30)
        with bed.socket("b", socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as tap:
            tap.bind(("eth0", ETH_P_ALL))
            tap.settimeout(30)
            server.send(b"once and again")
            assert client.recv(99) == b"once and again"
            frame = b""
            while b"once and again" not in frame:
                frame = tap.recv(1 << 16)
            tap.send(with_window(frame))
            got = 0
            while got < sent:
                got += len(server.recv(1 << 20))
        stamping.end()
    assert fragments_failed(bed, "a") == before


def test_probes_of_the_mtu_keep_to_it(bed: Bed, everywhere: list[str], tmp_path: Path) -> None:
    """A probe is one segment, longer than the connection's others, up to the MTU; its length does not allow for the option."""
    bed.offloads(True)
    control = ("ip", "netns", "exec", bed.name("a"), "sysctl", "-q", "-w")
    chosen = {"tcp_mtu_probing": "2", "tcp_base_mss": "1024", "tcp_probe_interval": "0"}
    usual = {name: run(*control[:-2], "-n", f"net.ipv4.{name}").strip() for name in chosen}
    before = fragments_failed(bed, "a")
    probes = extension(bed, "a", "TCPMTUPSuccess")
    try:
        for name, value in chosen.items():
            run(*control, f"net.ipv4.{name}={value}")
        with Stamping(
            tmp_path / "out", *everywhere, "--rate", "1", "--port", "7074", "--protocol", "tcp"
        ) as run_:
            client, server = bed.connection(socket.AF_INET, 7074)
            data = os.urandom(3_000_000)
            assert exchange(client, server, data) == data
            manifest = run_.end()
    finally:
        for name, value in usual.items():
            run(*control, f"net.ipv4.{name}={value}")
    assert fragments_failed(bed, "a") == before
    assert extension(bed, "a", "TCPMTUPSuccess") > probes
    assert total(manifest, "drawn") == total(manifest, "born") + skipped(manifest)
    assert total(manifest, "skip_mtu") > 0


def extension(bed: Bed, place: str, name: str) -> int:
    """A counter of /proc/net/netstat."""
    text = run("ip", "netns", "exec", bed.name(place), "cat", "/proc/net/netstat")
    names, values = (line.split() for line in text.splitlines() if line.startswith("TcpExt:"))
    return int(values[names.index(name)])


def test_connections_that_are_made_while_it_ends_keep_no_mark(
    bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    kept: list[socket.socket] = []
    leave = threading.Event()
    options = [*everywhere, "--rate", "1", "--port", "7073", "--protocol", "tcp"]
    with (
        Stamping(tmp_path / "out", *options) as stamping,
        bed.socket("b", socket.AF_INET, socket.SOCK_STREAM) as listener,
    ):
        listener.bind((V4[1], 7073))
        listener.listen(64)

        def connect() -> None:
            while not leave.is_set() and len(kept) < MOST_SOCKETS:
                client = socket.socket()
                client.connect((V4[1], 7073))
                kept.extend([client, listener.accept()[0]])

        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
        thread = threading.Thread(target=bed.in_place, args=("a", connect))
        os.kill(stamping.child(), signal.SIGTERM)
        thread.start()
        assert stamping.finish() == 5  # nsight-stamp ended by itself
        leave.set()
        thread.join()
    try:
        done = subprocess.run(
            [sys.executable, str(TOOL), *everywhere, "--restore"], capture_output=True, text=True, check=True
        )
    finally:
        for each in kept:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(kept) > 2
    assert done.stderr.strip() == "marks taken from 0 connections"


MSG_FASTOPEN, TCP_FASTOPEN, IPPROTO_MPTCP = 0x20000000, 23, 262


def test_connections_that_begin_in_other_ways_carry_exact_payload(
    bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    """Fast open sends data in the SYN, which gets no capsule; with SYN cookies the receiver keeps no state before the connection is
    made; MPTCP leaves no room among the options, so no segment gets a capsule."""
    bed.offloads(True)
    before, data = bed.errors(), os.urandom(5000)

    def both(client: socket.socket, listener: socket.socket, early: bytes) -> None:
        listener.settimeout(30)
        with client, listener.accept()[0] as server:
            for end in (client, server):
                end.settimeout(30)
            assert server.recv(len(early), socket.MSG_WAITALL) == early
            assert exchange(client, server, data) == data
            assert exchange(server, client, data) == data

    def listening(protocol: int = 0) -> socket.socket:
        listener = bed.socket("b", socket.AF_INET, socket.SOCK_STREAM, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN, 5)
        listener.bind((V4[1], 7075))
        listener.listen()
        return listener

    def counts(name: str, *, early: bytes = b"", protocol: int = 0, times: int = 1) -> dict[str, int]:
        with (
            Stamping(tmp_path / name, *everywhere, "--rate", "1", "--port", "7075") as run,
            listening(protocol) as listener,
        ):
            for _ in range(times):
                client = bed.socket("a", socket.AF_INET, socket.SOCK_STREAM, protocol)
                if early:
                    client.sendto(early, MSG_FASTOPEN, (V4[1], 7075))
                else:
                    client.connect((V4[1], 7075))
                both(client, listener, early)
            manifest = run.end()
        return {of: total(manifest, of) for of in ("drawn", "born", "ended")} | {"skipped": skipped(manifest)}

    sysctl(bed, "net.ipv4.tcp_fastopen=3", "net.ipv4.tcp_syncookies=2")
    try:
        fast = counts("fast", early=b"early" * 100, times=2)
        cookies = counts("cookies")
        several = counts("several", protocol=IPPROTO_MPTCP)
    finally:
        sysctl(bed, "net.ipv4.tcp_fastopen=1", "net.ipv4.tcp_syncookies=1")
    for made in (fast, cookies):
        assert made["drawn"] == made["born"] == made["ended"] > 0
    assert several["born"] == 0 and several["drawn"] == several["skipped"]
    assert bed.errors() == before


def sysctl(bed: Bed, *settings: str) -> None:
    for place in ("a", "b"):
        run("ip", "netns", "exec", bed.name(place), "sysctl", "-qw", *settings)
