# SPDX-License-Identifier: GPL-2.0-only
"""Groups end when nothing is measured in them and most places are taken."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from socket import socket

import pytest
from monitored import Watch, connected, inode, link
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
