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
    print(capture.causes[["cause", "share", "n_messages"]].head(3).to_string())
    # 20 requests come while nobody accepts. On a busy machine, a client can wait for a core itself and come too late, and a thread
    # can wait for a core once it has the connection. So half of the requests are enough, each with half of its time.
    found = capture.anomalies
    found = found[(found["subject"] == "in the accept queue") & (found["deviation_ns"] > AWAY_S * 1e9 / 4)]
    assert len(found) >= CONNECTIONS / EVERY / 2
    waited = received[received["message_id"].isin(found["message_id"])]
    assert waited["unaccepted"].all()
    assert set(found["category"]) == {"Accept queue"}
    # A request begins when its message begins.
    of_requests = nsight_report.open(tmp_path / "a.nsight", direction="request", slow="10ms-").anomalies
    assert set(found["message_id"]) <= set(
        of_requests.loc[of_requests["subject"] == "in the accept queue", "message_id"]
    )
