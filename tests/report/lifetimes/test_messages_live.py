# SPDX-License-Identifier: GPL-2.0-only
"""Messages of known live traffic: TCP and UDP, both families, both directions, exact results."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from bpftrace.probe_run import record
from machinery.testbed import ports
from nsight_report import lifetimes
from nsight_report.capture import message_events
from nsight_report.tables.intervals import IntervalTable

from conftest import skip_or_fail

pytestmark = pytest.mark.live


def test_every_request_and_reply_is_one_message_with_all_its_stamps(tmp_path):
    if os.geteuid() or not shutil.which("bpftrace"):
        skip_or_fail("bpf", "probes need root and bpftrace")
    if not any(
        Path(p, "sock/sk_data_ready").exists()
        for p in ("/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events")
    ):
        skip_or_fail("bpf", "tracefs is not mounted, or the kernel is older than 6.3")
    with ports.reserved() as (port,):  # the probes see the whole machine
        _, truth = record("nsight-record.bt", tmp_path / "events.tsv", port, port)
    # nsecs is CLOCK_BOOTTIME, which is CLOCK_MONOTONIC plus a constant, so durations are equal.
    events, lost = message_events.load(tmp_path / "events.tsv", tmp_path, lambda ns: ns)
    assert [r for r in lost.to_pylist() if r["severity"] == "error"] == []
    messages, losses = lifetimes.build(IntervalTable(events.path), tmp_path)
    rows = pq.read_table(messages.path).to_pylist()
    for c in truth["connections"]:
        for direction in ("rx", "tx"):
            # The server's side is found by its port, the client's by the client's port.
            for own, peer in ((c["port"], c["client_port"]), (c["client_port"], c["port"])):
                mine = [
                    r
                    for r in rows
                    if (r["proto"], r["direction"], r["lport"], r["rport"])
                    == (c["proto"], direction, own, peer)
                    and (":" in r["laddr"]) == (c["family"] == 10)
                ]
                assert [r["nbytes"] for r in mine] == [10, 20, 30], (c, direction, own)
                assert {r["timestamps"] for r in mine} == {"nahr" if direction == "rx" else "sd"}
                assert all(r["latency_ns"] > 0 for r in mine)
                fd = c["server_fd"] if own == c["port"] else c["client_fd"]
                assert {r["fd"] for r in mine} == {fd}
    assert Counter(r["direction"] for r in rows) == {"rx": 24, "tx": 24}
    assert [r["cause"] for r in losses.to_pylist() if r["severity"] != "info"] == []
