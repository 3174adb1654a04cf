# SPDX-License-Identifier: GPL-2.0-only
"""Receive timestamps of every clock: which ones count, and why the others do not.

Each datagram is received twice: by the veth, which knows when the client's side got it, and by a second device, to which a tc program passes it
with the timestamp of the test.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from machinery.harness import capabilities
from machinery.testbed.ports import reserved
from monitored import Watch, connected, inode, inside, link
from nsight_demo.namespaces import Link

from conftest import skip_or_fail

pytestmark = pytest.mark.live
N = 20
SECOND = 10**9
NONE, REALTIME, MONOTONIC, TAI = -1, 0, 1, 2
#: ``tstamp_type`` of a packet had only one bit before that.
SINCE_TAI = (6, 11)


@pytest.fixture(scope="module")
def veth() -> Iterator[Link]:
    if why := capabilities.programs("tc", "clang")():
        skip_or_fail("bpf", why)
    with link("stamps") as made:
        for command in (
            f"ip -n {made.server} link add second type veth peer name third",
            f"ip -n {made.server} link set second up address {mac(made)}",
            f"ip -n {made.server} link set third up",
            f"ip netns exec {made.server} sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.second.rp_filter=0",
            f"ip netns exec {made.server} tc qdisc add dev {made.interface} clsact",
        ):
            subprocess.run(command.split(), check=True)
        yield made


def mac(of: Link) -> str:
    command = ["ip", "-n", of.server, "-o", "link", "show", of.interface]
    found = re.search(
        r"link/ether (\S+)", subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )
    assert found
    return found[1]


def restamped(of: Link, directory: Path, clock: int, offset: int) -> None:
    """From now on, received packets of the server's veth get timestamps of that clock and come again."""
    with inside(of.server):
        second = socket.if_nametoindex("second")
    values = {"CLOCK": clock, "OFFSET": f"{offset}LL", "IFINDEX": second}
    defined = [f"-D{name}={value}" for name, value in values.items()]
    headers = f"-idirafter/usr/include/{os.uname().machine}-linux-gnu"
    source, program = Path(__file__).parent / "restamp.bpf.c", directory / "restamp.o"
    subprocess.run(
        ["clang", "-O2", "-g", "-target", "bpf", headers, *defined, "-c", source, "-o", program], check=True
    )
    tc = [*f"ip netns exec {of.server} tc filter replace dev {of.interface} ingress".split()]
    subprocess.run([*tc, *f"prio 1 handle 1 bpf direct-action obj {program} sec tc".split()], check=True)


@pytest.mark.parametrize(
    ("clock", "ahead_ns", "kind"),
    [
        (REALTIME, -SECOND // 100, "stamp_kernel"),
        (REALTIME, SECOND, "no_stamp_future"),
        (REALTIME, -11 * SECOND, "no_stamp_stale"),
        (MONOTONIC, 0, "no_stamp_foreign"),
        (TAI, 37 * SECOND, "no_stamp_foreign"),
        (NONE, 0, "no_stamp_zero"),
    ],
    ids=["realtime", "future", "stale", "monotonic", "tai", "none"],
)
def test_a_timestamp_counts_only_if_its_clock_is_known(
    veth: Link, tmp_path: Path, clock: int, ahead_ns: int, kind: str
) -> None:
    if clock == TAI and tuple(map(int, re.findall(r"\d+", platform.release())[:2])) < SINCE_TAI:
        pytest.skip("packets of this kernel have no TAI timestamps")
    real = time.time_ns() - time.monotonic_ns() if clock in (REALTIME, TAI) else 0
    restamped(veth, tmp_path, clock, real + ahead_ns)
    with reserved() as (port,), Watch("--netns", inode(veth.server), "--port", port) as watch:
        with connected(veth, False, False, port) as (client, server):
            for _ in range(N):
                client.send(b"x")
                server.recv(1)
    counts = {
        name: n for name, n in watch.result.counts.items() if n and re.match("stamp_|no_stamp_|arrival", name)
    }
    if kind == "no_stamp_zero" and "stamp_kernel" in counts:
        kind = "stamp_kernel"  # another program of this machine requests timestamps
    assert counts == {"stamp_sender_driver": N, kind: N}
    # 10 ms are in bucket 24 (8.4 to 16.8 ms); what the machine adds may be more.
    late = {
        stage: sum(watch.of(stage).n[24:]) for stage in ("ip-start", "udp-socket-enqueued", "udp-socket-read")
    }
    known = kind == "stamp_kernel" and clock == REALTIME
    assert watch.n("ip-start") == (2 * N if kind == "stamp_kernel" else N)
    assert watch.n("udp-socket-enqueued") == watch.n("udp-socket-read") == N
    if known:
        assert all(n >= N for n in late.values()), late


def test_a_time_namespace_changes_no_latency(veth: Link, tmp_path: Path) -> None:
    """CLOCK_MONOTONIC is 5 s later in the monitor than in the BPF programs, so timestamps would seem to be in the future."""
    through = ("unshare", "-T", "--monotonic", "5", "--")
    done = subprocess.run([*through, "cat", "/proc/self/timens_offsets"], capture_output=True, text=True)
    if not re.search(r"^monotonic +5 ", done.stdout, re.M):
        pytest.skip("this kernel has no time namespaces")
    restamped(veth, tmp_path, REALTIME, time.time_ns() - time.monotonic_ns() - SECOND // 100)
    with (
        reserved() as (port,),
        Watch("--netns", inode(veth.server), "--port", port, through=through) as watch,
        connected(veth, False, False, port) as (client, server),
    ):
        for _ in range(N):
            client.send(b"x")
            server.recv(1)
    assert watch.result.counts["stamp_kernel"] == N
    assert watch.n("ip-start") == 2 * N
    assert watch.result.monotonic_ns <= time.monotonic_ns()
