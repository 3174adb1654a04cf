# SPDX-License-Identifier: GPL-2.0-only
"""A server that accepts late (slow_acceptor.py): the report names the accept queue."""

from __future__ import annotations

import sys
from pathlib import Path

import nsight_report
import pytest
from machinery.testbed.ports import reserved
from recorder_run import record, require_live
from slow_acceptor import AWAY_S, CONNECTIONS, EVERY

pytestmark = pytest.mark.live

PROGRAM = Path(__file__).with_name("slow_acceptor.py")


@pytest.mark.parametrize("kind", ["threads", "pool"])
def test_late_accept_is_the_cause(tmp_path: Path, kind: str):
    require_live("bpf")
    with reserved() as (port,):
        command = (sys.executable, str(PROGRAM), str(port), kind)
        code, said = record(tmp_path / "a.nsight", "--port", str(port), "--", *command)
    assert code == 0, said
    capture = nsight_report.open(tmp_path / "a.nsight", slow="10ms-")
    messages = capture.messages
    received = messages[(messages["direction"] == "rx") & (messages["lport"] == port)]
    assert len(received) == CONNECTIONS
    # The client sends as soon as its kernel has the connection: some are accepted by then, and none that waits long.
    long = received[received["latency_ns"] > AWAY_S * 1e9 / 2]
    assert len(long) >= CONNECTIONS / EVERY - 1
    assert long["unaccepted"].all()
    causes = capture.causes
    assert causes["cause"].iloc[0] == "Accept queue (A)"
    assert causes["share"].iloc[0] > 0.9
