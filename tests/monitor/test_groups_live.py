# SPDX-License-Identifier: GPL-2.0-only
"""Groups end when nothing is measured in them and most places are taken; however many there are, they take no more memory."""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from socket import SOCK_DGRAM, socket

import pytest
from monitored import Watch, connected, inode, inside, link
from nsight_monitor import snapshots
from nsight_monitor.histogram import total
from nsight_monitor.snapshots import Snapshot

pytestmark = pytest.mark.live
STAGE = "handoff-to-read"


def until(watch: Watch, holds: Callable[[Snapshot], bool]) -> Snapshot:
    """The next sums for which ``holds`` is true."""
    assert watch.process.stdout
    while not holds(found := snapshots.snapshot(watch.process.stdout.readline())):
        pass
    return found


def by_port(of: Snapshot) -> dict[object, int]:
    """Number of latencies per port."""
    return {
        of.groups.get(group, group): h.count for (stage, group), h in of.histograms.items() if stage == STAGE
    }


def test_new_groups_get_the_places_of_those_that_ended() -> None:
    """Four places; three ports fall silent, and three others come. The first port's socket is used again: this is a new group."""
    with ExitStack() as stack:
        veth = stack.enter_context(link("groups"))
        pairs: dict[int, tuple[socket, socket]] = {
            port: stack.enter_context(connected(veth, tcp=False, v6=False, port=port))
            for port in range(7001, 7007)
        }

        def receive(port: int, n: int) -> None:
            client, server = pairs[port]
            for _ in range(n):
                client.send(b"x")
                server.recv(9)

        limits = ("--groups", 4, "--group-idle-ms", 300, "--interval-ms", 200)
        watch = Watch("--netns", inode(veth.server), "--group-by", "port", *limits, "--stages", STAGE)
        with watch:
            for port in (7001, 7002):
                receive(port, 3)
            # Half of the places are taken: a silent group stays.
            before = until(watch, lambda s: len(s.groups) == 2)
            until(watch, lambda s: s.monotonic_ns > before.monotonic_ns + 2_000_000_000)
            receive(7003, 3)
            crowded = until(watch, lambda s: len(s.groups) == 3)
            assert by_port(crowded) == {7001: 3, 7002: 3, 7003: 3}
            ended = until(watch, lambda s: s.counts["groups_ended"] == 3)
            # A packet on its way may still be counted in them.
            assert by_port(ended) == by_port(crowded)
            free = until(watch, lambda s: not s.groups)
            assert by_port(free) == {}
            # Their latencies are still there.
            assert free.ended == {STAGE: total(h for h in ended.histograms.values())}
            assert free.ended[STAGE].count == 9
            for port in (7004, 7005, 7006, 7001):
                receive(port, 2)
        assert by_port(watch.result) == dict.fromkeys((7001, 7004, 7005, 7006), 2)
        assert watch.result.ended == free.ended
        # One of the four is the first in its place.
        assert watch.result.group_began_ns.keys() == watch.result.groups.keys() - {5}
        assert all(ended.realtime_ns < at for at in watch.result.group_began_ns.values())
        assert 0 < watch.header.began_ns < before.realtime_ns and before.group_began_ns == {}
        assert watch.result.counts["group_overflow"] == 0
        assert not watch.result.groups.keys() & (ended.groups.keys() | crowded.groups.keys())


PR_SET_NAME = 15  # include/uapi/linux/prctl.h
OFFERED = 100_000
#: What Documentation/monitor.md states: tables for 64 groups, and bytes of each group and core.
TABLES, EACH = 4 << 20, 4920


def map_bytes(pid: int) -> int:
    """Kernel memory of the BPF maps that a process holds."""
    found = {}
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        if number := re.search(r"^map_id:\s*(\d+)", text := path.read_text(), re.M):
            found[number[1]] = int(re.findall(r"^memlock:\s*(\d+)", text, re.M)[0])
    return sum(found.values())


def resident_bytes(pid: int) -> int:
    return int(re.findall(r"^RssAnon:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.M)[0]) << 10


def read_under_names(netns: str) -> None:
    """One datagram for each of many names of the reading thread, each of a socket of its own."""
    prctl = ctypes.CDLL(None).prctl
    with inside(netns):
        for i in range(OFFERED):
            with socket(type=SOCK_DGRAM) as s:
                s.bind(("127.0.0.1", 0))
                s.connect(s.getsockname())
                s.send(b"x")
                prctl(PR_SET_NAME, b"n%d" % i)
                assert s.recv(9) == b"x"


@pytest.mark.parametrize("most", [64, 4096])
def test_a_hundred_thousand_groups_take_no_more_memory_and_others_is_exact(most: int) -> None:
    with link("manygroups") as veth:
        options = ("--group-by", "comm", "--groups", most, "--stages", "udp-socket-read")
        with Watch("--netns", inode(veth.server), *options) as watch:
            pid = watch.process.pid
            before, own = map_bytes(pid), resident_bytes(pid)
            thread = threading.Thread(target=read_under_names, args=(veth.server,))
            thread.start()
            thread.join()
            after, grown = map_bytes(pid), resident_bytes(pid) - own
    counts = {group: h.count for (_, group), h in watch.result.histograms.items()}
    print(f"{most} groups: {after} bytes of maps, the loader grew by {grown}")
    others = counts.pop(0)
    assert len(counts) == len(watch.result.groups) == most
    assert set(counts.values()) == {1}
    assert others == watch.result.counts["group_overflow"] == OFFERED - most
    assert before == after <= TABLES + (most + 2) * EACH * (os.cpu_count() or 1) + most * 200
    assert grown <= 1 << 20
