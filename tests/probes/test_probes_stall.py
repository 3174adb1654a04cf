# SPDX-License-Identifier: GPL-2.0-only
"""nsight-record.bt behind a reader that stalls: it must still end, and own up to what was lost."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time

import pytest
from probes.probe_run import BPFTRACE, parse

from conftest import skip_or_fail

pytestmark = [pytest.mark.live, pytest.mark.slow]
PORT = 7797
DATAGRAMS = 20_000


def test_stopping_while_output_is_stalled_still_ends_the_script():
    if os.geteuid() or not shutil.which("bpftrace"):
        skip_or_fail("bpf", "needs root and bpftrace")
    argv = ["bpftrace", str(BPFTRACE / "nsight-record.bt"), str(PORT)]
    # Stderr carries warnings only; 8 pages a core fill at once when nobody reads.
    probe = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "BPFTRACE_PERF_RB_PAGES": "8"},
    )
    try:
        assert probe.stdout is not None
        head = b""
        while b"#nsight" not in head:
            block = os.read(probe.stdout.fileno(), 4096)
            assert block, "bpftrace ended before its probes were attached"
            head += block
        time.sleep(1)  # BEGIN prints before the other probes are attached
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        ):
            receiver.bind(("127.0.0.1", PORT))
            cpus = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {0})  # bpftrace's interval probes, and so the hand-shake, run there
            try:
                for _ in range(DATAGRAMS):
                    sender.sendto(b"x", ("127.0.0.1", PORT))
            finally:
                os.sched_setaffinity(0, cpus)
        # Less than one line is free now; the small record of each second's print(@n) fills that too.
        time.sleep(10)
        probe.send_signal(signal.SIGCONT)
        time.sleep(1)  # the first hand-shake falls into the full buffer
        rest, _ = probe.communicate(timeout=60)
        assert probe.returncode == 0
    finally:
        if probe.poll() is None:
            probe.kill()
            probe.wait()
    output = parse((head + rest).decode())
    assert output.text.rstrip().endswith("#end")
    # One arrival a datagram was produced; the stall lost lines, and the counts still know of them.
    assert output.counts["A"] == DATAGRAMS
    assert output.lines()["A"] < DATAGRAMS
