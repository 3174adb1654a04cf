# SPDX-License-Identifier: GPL-2.0-only
"""When a core received packets of some TCP ports: from the begin of their receive path until TCP has them, with all rules of a firewall
between."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from socket import htons

import numpy as np
from nsight_demo.processes import BedError, wait_until

from .bed import Testbed
from .interrupt import AGAIN_S

#: The tracepoints have to be mounted, and whoever runs this need not have them.
MOUNTED = (
    'mountpoint -q /sys/kernel/tracing || mount -t tracefs nodev /sys/kernel/tracing; exec bpftrace "$@"'
)
#: Within which bpftrace ends.
END_S = 60
#: Only tracepoints of the kernel, so nothing of NSight takes part. A packet ends with its TCP, or, where its socket is in use and TCP takes
#: it later, with the next packet or the end of the softirq. A plain veth's packets are received one by one; it has no NAPI that would
#: begin several of them first.
PROGRAM = """
BEGIN {{ printf("ready\\n"); }}
tracepoint:net:netif_receive_skb {{
	if (@begin[cpu]) {{ printf("%llu %llu %d\\n", @begin[cpu], nsecs, cpu); }}
	@begin[cpu] = 0;
	$ip = ((struct sk_buff *)args->skbaddr)->data;
	if (*(uint8 *)$ip == 0x45 && *(uint8 *)($ip + 9) == 6 && *(uint16 *)($ip + 22) == {port}) {{
		$from = *(uint16 *)($ip + 20);
		if ({lports}) {{ @begin[cpu] = nsecs; }}
	}}
}}
tracepoint:tcp:tcp_probe /@begin[cpu]/ {{ printf("%llu %llu %d\\n", @begin[cpu], nsecs, cpu); @begin[cpu] = 0; }}
tracepoint:irq:softirq_exit /@begin[cpu] && args->vec == 3/ {{
	printf("%llu %llu %d\\n", @begin[cpu], nsecs, cpu); @begin[cpu] = 0;
}}
END {{ clear(@begin); printf("end\\n"); }}
"""


def read(log: Path) -> np.ndarray:
    """The rows of a complete log; BedError if it lacks its end, or if bpftrace lost some."""
    lines = log.read_text().splitlines()
    if "end" not in lines or any("Lost" in line for line in lines):
        raise BedError(f"{log}: not a complete log of receive processing: {lines[-5:]}")
    words = [line.split() for line in lines]
    rows = [[int(n) for n in row] for row in words if len(row) == 3 and all(map(str.isdigit, row))]
    return np.array(sorted(rows), np.int64).reshape(-1, 3)


class Walks:
    """``rows``: begin, end (CLOCK_MONOTONIC ns) and core of each packet's receive processing, once its recording has ended."""

    def __init__(self) -> None:
        self.rows = np.zeros((0, 3), np.int64)


@contextlib.contextmanager
def recorded(bed: Testbed, port: int, lports: list[int]) -> Iterator[Walks]:
    """Record what a server at ``port`` receives from the clients' ports ``lports``."""
    ports = " || ".join(f"$from == {htons(lport)}" for lport in lports)
    walks = Walks()
    argv = ["unshare", "--mount", "sh", "-c", MOUNTED, "bpftrace", "-e"]
    process = bed.start("bpftrace", [*argv, PROGRAM.format(port=htons(port), lports=ports)], cpu=bed.load_cpu)
    log = process.log
    assert log is not None

    def ready() -> bool:
        process.check_alive()
        return "ready" in log.read_text()

    wait_until(ready, "bpftrace's probes", END_S)
    yield walks
    process.check_alive()
    deadline = time.monotonic() + END_S
    while process.poll() is None and time.monotonic() < deadline:
        # Again and again: it ignores a Ctrl-C that comes while it does not wait for events.
        process.signal(signal.SIGINT)
        with contextlib.suppress(BedError):
            process.wait(AGAIN_S)
    walks.rows = read(log)
