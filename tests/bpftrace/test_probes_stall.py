# SPDX-License-Identifier: GPL-2.0-only
"""nsight-record.bt with a reader that stalls: it must still end, and report what was lost."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from bpftrace.probe_run import ATTACH_S, ATTACHED, BPFTRACE, parse
from machinery.testbed import ports

from conftest import skip_or_fail

pytestmark = [pytest.mark.live, pytest.mark.slow]
#: Each datagram makes two lines or so of 200 bytes: some fill a ring buffer of 8 pages, many more fill the pipe, too.
BATCH = 500
RING_PAGES = 8
#: Numbers of write and writev, and of standard output, in /proc/PID/syscall of a process that waits in such a call.
WRITING = {("1", "0x1"), ("20", "0x1")}


def waits_in_write(pid: int) -> bool:
    """Whether the process sleeps in a write to its standard output: the pipe is full."""
    return tuple(Path(f"/proc/{pid}/syscall").read_text().split()[:2]) in WRITING


def send(port: int, n: int) -> None:
    """Send ``n`` datagrams over loopback from core 0, each received before the next is sent: none can be dropped."""
    cpus = os.sched_getaffinity(0)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", port))
        os.sched_setaffinity(0, {0})  # bpftrace's interval probes, and so the handshake, run there
        try:
            for _ in range(n):
                sender.sendto(b"x", ("127.0.0.1", port))
                receiver.recv(1)
        finally:
            os.sched_setaffinity(0, cpus)


def test_stopping_while_output_is_stalled_still_ends_the_script():
    if os.geteuid() or not shutil.which("bpftrace"):
        skip_or_fail("bpf", "needs root and bpftrace")
    with ports.reserved() as (port,):
        stalled(port)


def stalled(port: int) -> None:
    """Fill pipe and ring buffer, stop the script, and only then read."""
    argv = ["bpftrace", str(BPFTRACE / "nsight-record.bt"), str(port)]
    # Stderr has only warnings.
    probe = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "BPFTRACE_PERF_RB_PAGES": str(RING_PAGES)},
    )
    try:
        assert probe.stdout is not None
        head = b""
        while ATTACHED not in head:
            block = os.read(probe.stdout.fileno(), 4096)
            assert block, "bpftrace ended before its probes were attached"
            head += block
        n_sent, deadline = 0, time.monotonic() + ATTACH_S
        while not waits_in_write(probe.pid):
            assert time.monotonic() < deadline, f"{n_sent} datagrams do not fill the pipe"
            send(port, BATCH)
            n_sent += BATCH
        # Nobody reads the ring buffer any more. After these datagrams, less than one line is free in it.
        send(port, BATCH)
        n_sent += BATCH
        # The small record of each second's print(@n) fills that, too. It comes by timer, even if the core is busy.
        time.sleep(10)
        assert waits_in_write(probe.pid)
        probe.send_signal(signal.SIGCONT)
        time.sleep(1)  # the first handshake, at the timer's next 100 ms, falls into the full buffer
        rest, _ = probe.communicate(timeout=ATTACH_S)
        assert probe.returncode == 0
    finally:
        if probe.poll() is None:
            probe.kill()
            probe.wait()
    output = parse((head + rest).decode())
    assert output.text.rstrip().endswith("#end")
    # One read per datagram was produced; the stall lost lines, but the counts include them.
    assert output.counts["R"] == n_sent
    assert output.lines()["R"] < n_sent
