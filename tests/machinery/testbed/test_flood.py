# SPDX-License-Identifier: GPL-2.0-only
"""The flood's log against the kernel's own tracepoint of dropped packets."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from nsight_demo.namespaces import LinkOptions
from nsight_demo.processes import wait_until

from machinery.testbed.bed import Testbed
from machinery.testbed.injections import Flood

# Alone: a softirq that interrupts a BPF program of another test runs without bpftrace's program, and drops are missed.
pytestmark = [pytest.mark.live, pytest.mark.alone]

BURST, N_BURSTS = 400, 4
#: Of a dropped datagram: headers and the flood's 64 bytes. Other packets are dropped there, too.
LENGTH = 20 + 8 + 64
#: Interfaces through which the server receives, by their prefix: the bridge, if there is one.
LINKS = {"srv": LinkOptions(rps_cpu=1), "br": LinkOptions(bridge_rps_cpu=1)}


@pytest.mark.parametrize("prefix", LINKS)
def test_a_burst_ends_when_its_last_datagram_leaves_the_receivers_queue(
    needs: Callable[..., None], tmp_path: Path, prefix: str
) -> None:
    """When it was sent tells nothing: its receiver needs several times as long for a datagram as its sender."""
    needs("memcached", "nft", "bpftrace")
    log = tmp_path / "drops"

    def lines() -> list[str]:
        return log.read_text().splitlines()

    with Testbed(LINKS[prefix]) as bed:
        server = bed.start_server("memcached")
        interface = bed.link.interface.replace("srv", prefix)
        program = (
            'BEGIN { printf("ready\\n"); } tracepoint:skb:kfree_skb '
            f'/((struct sk_buff *)args->skbaddr)->dev->name == "{interface}" && '
            f'((struct sk_buff *)args->skbaddr)->len == {LENGTH}/ {{ printf("%llu\\n", nsecs); }}'
        )
        with log.open("w") as out, subprocess.Popen(["bpftrace", "-e", program], stdout=out) as bpftrace:
            try:
                wait_until(lambda: "ready" in lines(), "bpftrace's probe", 60)
                flood = Flood(0, ["-b", str(BURST), "-e", "200000"], n_rules=1000)
                with flood.active(bed, server):
                    wait_until(lambda: len(lines()) > N_BURSTS * BURST, "dropped datagrams", 60)
            finally:
                bpftrace.terminate()
    assert len(flood.intervals) > 2
    drops = np.sort([int(line) for line in lines() if line.isdigit()])
    for (start, end), following in zip(flood.intervals[:-1], flood.intervals[1:, 0], strict=True):
        of_burst = drops[(drops >= start) & (drops < following)]
        assert len(of_burst) == BURST
        # The one that is being processed is in no queue any more.
        assert (of_burst > end).sum() <= 1
