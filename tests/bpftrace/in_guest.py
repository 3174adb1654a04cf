#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Runs inside a guest, where function probes work: the three scripts that a locked-down host refuses.

Writes into the given directory: legacy.json, counts of nsight-record-legacy.bt, checked against the
known traffic; tx.txt, output of nsight-tx-stamp.bt; clock.tsv and timekeeper.txt, the same
seconds recorded by nsight-clock and by nsight-timekeeper.bt.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bpftrace.probe_run import ATTACH_S, BPFTRACE, ROOT, check_counts, check_traffic, record
from machinery.testbed.interrupt import interrupt

PORT = 7791  # nobody else uses the guest
N_REQUESTS = 3
N_STAMPS = 3 * N_REQUESTS  # each is scheduled, sent and acknowledged
FIRST_LINE = re.compile(rb"^(#nsight|K\t).*\n", re.M)
SO_TIMESTAMPING = 37
TX_SOFTWARE, SOFTWARE, TX_SCHED, TX_ACK = 1 << 1, 1 << 4, 1 << 8, 1 << 9


def legacy(directory: Path) -> None:
    """Record the known traffic, and check it here, so that the events need not leave the guest."""
    output, truth = record("nsight-record-legacy.bt", directory / "legacy.txt", PORT, PORT)
    check_traffic(output, truth)
    check_counts(output)
    (directory / "legacy.json").write_text(json.dumps(output.counts))


def wait_for(condition: Callable[[], bool], child: subprocess.Popen[bytes], what: str) -> None:
    """Wait until ``condition()``, while ``child`` runs."""
    deadline = time.monotonic() + ATTACH_S
    while not condition():
        assert child.poll() is None, f"the probes ended before {what}"
        assert time.monotonic() < deadline, f"{what}: not within {ATTACH_S} s"
        time.sleep(0.05)


def attached(script: str, out: Path, *args: str) -> subprocess.Popen[bytes]:
    """bpftrace, once it has printed a line of the script: then every probe is attached (see probe_run.around)."""
    with open(out, "wb") as stdout, open(out.with_suffix(".err"), "wb") as stderr:
        child = subprocess.Popen(["bpftrace", str(BPFTRACE / script), *args], stdout=stdout, stderr=stderr)
    wait_for(lambda: bool(FIRST_LINE.search(out.read_bytes())), child, f"{script} was attached")
    return child


def transmit(directory: Path) -> None:
    """Three requests of 10 bytes from a socket that requests every software timestamp."""
    out = directory / "tx.txt"
    probe = attached("nsight-tx-stamp.bt", out, str(PORT))
    with socket.create_server(("127.0.0.1", PORT)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            while data := connection.recv(100):
                connection.sendall(data)
            connection.close()

        server = threading.Thread(target=serve)
        server.start()
        with socket.create_connection(("127.0.0.1", PORT)) as client:
            client.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, TX_SOFTWARE | SOFTWARE | TX_SCHED | TX_ACK)
            for _ in range(N_REQUESTS):
                client.sendall(bytes(10))
                client.recv(100)
            # The last timestamp may come after the last answer, and at SIGINT bpftrace drops the events that it has not read.
            wait_for(
                lambda: len(re.findall(rb"^T\t", out.read_bytes(), re.M)) >= N_STAMPS, probe, "all timestamps"
            )
        server.join()
    interrupt(probe, ATTACH_S)


def timekeeper(directory: Path) -> None:
    """Five seconds of the timekeeper, polled and probed at the same time."""
    probe = attached("nsight-timekeeper.bt", directory / "timekeeper.txt")
    clock = ROOT / "tools/nsight-record/clock/nsight-clock"
    subprocess.run(
        [clock, "-d", "5", "--poll-us", "300", "-o", directory / "clock.tsv"], check=True, timeout=ATTACH_S
    )
    interrupt(probe, ATTACH_S)


def main() -> None:
    """Entry point."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    shared = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        legacy(directory)
        transmit(directory)
        timekeeper(directory)
        for path in directory.iterdir():
            (shared / path.name).write_bytes(path.read_bytes())


if __name__ == "__main__":
    main()
