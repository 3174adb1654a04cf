# SPDX-License-Identifier: GPL-2.0-only
"""The stage udp-start, by function probes or by a program of the root control group, whichever this kernel permits."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from machinery.testbed.ports import reserved
from monitored import Watch, connected, inode, inside, link, now
from nsight_demo.namespaces import Link
from nsight_monitor import loader, snapshots

from conftest import skip_or_fail

pytestmark = pytest.mark.live
N = 50
STAGES = "ip-start,udp-start,udp-socket-enqueued,udp-socket-read"
#: include/uapi/linux/udp.h, in6.h
UDP_SEGMENT, UDP_GRO, IPV6_DSTOPTS = 103, 104, 59


@pytest.fixture(scope="module")
def veth() -> Iterator[Link]:
    with link("ustart") as made:
        yield made


@pytest.fixture
def port() -> Iterator[int]:
    with reserved() as (number,):
        yield number


def watch_of(of: Link, *options: object) -> Watch:
    made = Watch("--stages", STAGES, "--netns", inode(of.server), *options)  # skips without root
    listed = snapshots.header(loader.stages(loader.find())).stages
    if missing := next(stage.missing for stage in listed if stage.name == "udp-start"):
        skip_or_fail("bpf", f"udp-start needs {missing}")
    return made


@pytest.mark.parametrize("v6", [False, True], ids=["4", "6"])
def test_every_datagram_is_counted_between_ip_and_the_socket(veth: Link, port: int, v6: bool) -> None:
    with watch_of(veth, "--port", port) as watch:
        with connected(veth, False, v6, port) as (client, server):
            before = now()
            for _ in range(N):
                client.send(b"x")
                server.recv(1)
            took = now() - before
    assert [watch.n(stage) for stage in STAGES.split(",")] == [N] * 4
    sums = [watch.of(stage).sum_ns for stage in STAGES.split(",")]
    assert sums == sorted(sums) and sums[0] > 0 and sums[3] <= took
    assert watch.result.counts["udp_start_without_arrival"] == 0


def test_other_stages_and_tcp_are_not_udp_start(veth: Link, port: int) -> None:
    with watch_of(veth, "--port", port) as watch:
        with connected(veth, True, False, port) as (client, server):
            client.send(b"x")
            server.recv(1)
    assert watch.n("udp-start") == 0 and watch.n("ip-start") > 0


@pytest.mark.parametrize("by", ["port", "netns", "iface"])
def test_groups_are_those_of_the_other_stages(veth: Link, port: int, by: str) -> None:
    with watch_of(veth, "--port", port, "--group-by", by) as watch:
        with connected(veth, False, False, port) as (client, server):
            for _ in range(N):
                client.send(b"x")
                server.recv(1)
    of = {stage: {g for s, g in watch.result.histograms if s == stage} for stage in STAGES.split(",")}
    # A socket gets its group at the first hand-off; until then the interface is known as that of the packet, too.
    assert of["udp-socket-read"] <= of["udp-start"]
    assert watch.n("udp-start") == N


def test_filters_leave_out_others(veth: Link, port: int) -> None:
    with inside(veth.server):
        loopback, index = socket.if_nametoindex("lo"), socket.if_nametoindex(veth.interface)
    with (
        watch_of(veth, "--port", port, "--ifindex", index) as ours,
        watch_of(veth, "--port", port, "--ifindex", loopback) as other_device,
        watch_of(veth, "--port", port, "--pid", os.getpid() + 1) as other_process,
    ):
        with reserved() as (another,), watch_of(veth, "--port", another) as other_port:
            with connected(veth, False, False, port) as (client, server):
                for _ in range(N):
                    client.send(b"x")
                    server.recv(1)
    assert ours.n("udp-start") == N
    for watch in (other_device, other_process, other_port):
        assert watch.n("udp-start") == watch.result.counts["udp_start_without_arrival"] == 0


@pytest.mark.parametrize("merged", [False, True], ids=["parts", "merged"])
def test_a_merged_packet_is_counted_as_the_socket_gets_it(veth: Link, port: int, merged: bool) -> None:
    """Twenty packets of ten segments each stay merged over veth. Function probes see the packet before it is cut into its parts."""
    with watch_of(veth, "--port", port) as watch:
        with connected(veth, False, False, port) as (client, server):
            client.setsockopt(socket.SOL_UDP, UDP_SEGMENT, 100)
            if merged:
                server.setsockopt(socket.SOL_UDP, UDP_GRO, 1)
            for _ in range(20):
                client.send(b"x" * 1000)
                for _ in range(1 if merged else 10):
                    assert len(server.recv(2000)) == (1000 if merged else 100)
    n = 20 if merged else 200
    assert watch.n("udp-socket-enqueued") == watch.n("udp-socket-read") == n
    assert watch.n("udp-start") in (20, n)
    assert watch.n("ip-start") == 20
    counts = watch.result.counts
    assert counts["udp_start_without_arrival"] == counts["handoff_without_arrival_udp"] == 0


def test_extension_headers_hide_neither_arrival_nor_port(veth: Link, port: int) -> None:
    """A header of destination options (padding) lies between the IPv6 header and UDP's."""
    with watch_of(veth, "--port", port) as watch:
        with connected(veth, False, True, port) as (client, server):
            client.setsockopt(socket.IPPROTO_IPV6, IPV6_DSTOPTS, bytes([0, 0, 1, 4, 0, 0, 0, 0]))
            for _ in range(N):
                client.send(b"x")
                server.recv(1)
    assert [watch.n(stage) for stage in STAGES.split(",")] == [N] * 4
