# SPDX-License-Identifier: GPL-2.0-only
"""Recordings of a server for which workers of io_uring read and send: no system call says which descriptor is used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nsight_report
import pytest
from machinery.testbed.ports import reserved
from recorder_run import CLIENT, EchoServer, Running, require_live

from conftest import ROOT, skip_or_fail

pytestmark = pytest.mark.live

SERVER = ROOT / "tests/machinery/testbed/io_uring_echo.py"
N = 100


@pytest.fixture
def server() -> Iterator[int]:
    with reserved() as (port,):
        process = subprocess.Popen(
            [sys.executable, str(SERVER), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout
        if process.stdout.readline() != "ready\n":
            skip_or_fail("io_uring", process.communicate()[1].splitlines()[-1])
        yield port
        process.kill()
        process.communicate()


@pytest.mark.parametrize("recorder", ["bpf", "bpftrace"])
def test_messages_of_a_worker_have_its_thread_and_no_descriptor(
    tmp_path: Path, server: int, recorder: str
) -> None:
    require_live(recorder)
    directory = tmp_path / "a.nsight"
    client = [sys.executable, "-c", CLIENT, str(server), str(N), str(EchoServer.SIZE)]
    run = Running(directory, "--port", str(server), "--", *client, recorder=recorder)
    out, err = run.end()
    assert run.process.returncode == 0, out + err
    messages = nsight_report.open(directory).messages
    read = messages[(messages["direction"] == "rx") & (messages["lport"] == server)]
    sent = messages[(messages["direction"] == "tx") & (messages["lport"] == server)]
    assert (len(read), len(sent)) == (N, N)
    assert set(read["comm"].astype(str).str.partition("-")[0]) == {"iou"}
    assert set(read["fd"]) == set(sent["fd"]) == {-1}
    assert sent["call_ns"].isna().all()
