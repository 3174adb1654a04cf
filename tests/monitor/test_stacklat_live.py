# SPDX-License-Identifier: GPL-2.0-only
"""nsight-stacklat.bt beside nsight-monitor: both count the same messages of the same traffic."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from machinery.testbed.interrupt import interrupt
from machinery.testbed.ports import reserved
from monitored import HANGS_S, Watch, connected, inode, link

from conftest import skip_or_fail

pytestmark = [pytest.mark.live, pytest.mark.tools]
SCRIPT = Path(__file__).resolve().parents[2] / "bpftrace/nsight-stacklat.bt"
N = 200
STAGES = ("tcp-socket-enqueued", "udp-socket-enqueued", "handoff-to-read")


class Script:
    """The running script; after the end of the block, ``counts`` by stage."""

    def __init__(self, port: int, netns: int) -> None:
        if not shutil.which("bpftrace"):
            skip_or_fail("bpf", "bpftrace is not installed")
        self._argv = ["bpftrace", "-f", "json", str(SCRIPT), str(port), str(netns)]
        self.counts: dict[str, int] = {}
        self.n: dict[str, int] = {}

    def __enter__(self) -> Script:
        self.process = subprocess.Popen(self._argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout
        for line in self.process.stdout:
            row = json.loads(line) if line.startswith("{") else {}
            if row.get("type") == "printf" and row["data"].startswith("measuring"):
                return self
        skip_or_fail("bpf", self.process.communicate()[1])

    def __exit__(self, *error: object) -> None:
        out, _ = interrupt(self.process, HANGS_S)
        for line in out.splitlines():
            row = json.loads(line) if line.startswith("{") else {}
            for name, value in (row.get("data") or {}).items() if row.get("type") in ("hist", "map") else ():
                if name == "@n":
                    self.n = value
                elif row["type"] == "hist":
                    self.counts[name[1:].replace("_", "-")] = sum(b["count"] for b in value)


@pytest.mark.parametrize("tcp", [True, False], ids=["tcp", "udp"])
def test_script_and_monitor_count_the_same_messages(tcp: bool) -> None:
    """N requests and N replies in the server's namespace: N hand-offs and N reads."""
    if os.geteuid():
        skip_or_fail("root", "probes need root")
    with link("lat") as veth, reserved() as (port,):
        space = inode(veth.server)
        with Script(port, space) as script, Watch("--port", port, "--netns", space) as watch:
            with connected(veth, tcp, False, port) as (client, server):
                for _ in range(N):
                    client.send(b"x" * 100)
                    server.send(server.recv(200))
                    client.recv(200)
    assert script.n == {}
    assert script.counts == {s: watch.n(s) for s in STAGES if watch.n(s)}
    assert (
        script.counts["handoff-to-read"]
        == script.counts["tcp-socket-enqueued" if tcp else "udp-socket-enqueued"]
        == N
    )
