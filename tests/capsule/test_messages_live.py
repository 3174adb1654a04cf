# SPDX-License-Identifier: GPL-2.0-only
"""nsight-record and nsight-capsule at once: each message has its packet's path before the arrival."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import nsight_report
import pytest
from nsight_report.cli import main
from nsight_report.export import page_data
from nsight_report.export.page_data import embedded
from nsight_report.tables.data_frames import each

from capsule.bed import Bed
from capsule.stamping import ROOT, Stamping

pytestmark = pytest.mark.live

N = 40
RECORDER = ROOT / "tools/nsight-record/nsight-record"


def talk(bed: Bed) -> None:
    """Send N requests of different lengths over TCP, and N over UDP; replies have 5 bytes."""
    client, server = bed.connection(socket.AF_INET, 7051)
    sender, receiver = bed.datagrams(socket.AF_INET6, 7051)
    receiver.connect(bed.in_place("a", sender.getsockname))
    for one, other in ((client, server), (sender, receiver)):
        for n in range(N):
            one.send(b"m" * (100 + n))
            assert len(other.recv(1 << 16)) == 100 + n
            other.send(b"reply")
            assert one.recv(99) == b"reply"


def test_every_message_has_its_packet_and_the_way_is_before_its_arrival(
    bed: Bed, everywhere: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = tmp_path / "both.nsight"
    words = [sys.executable, str(RECORDER), "--port", "7051", "-o", str(capture)]
    with (
        Stamping(tmp_path / "way", *everywhere, "--rate", "1", "--port", "7051") as run,
        subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as recorder,
    ):
        try:
            _until_recording(capture, recorder)
            talk(bed)
            run.end()
            recorder.send_signal(signal.SIGINT)
            recorder.communicate(timeout=120)
        finally:
            recorder.kill()
    shutil.move(tmp_path / "way", capture / "way.capsules")
    tables = nsight_report.open(str(capture))
    ways, messages = tables.ways, tables.messages
    assert ways.problem == ""
    assert ways.collection is not None
    requests = messages[(messages["direction"].astype(str) == "rx") & (messages["lport"] == 7051)]
    assert len(requests) == 2 * N
    for m in each(requests):
        (packet,) = ways.packets_of(int(m.message_id))
        assert packet["born_ns"] < m.arrival_ns
        assert packet["last_ns"] < m.handoff_ns
        assert len(packet["layers"]) == (8 if m.proto == 6 else 7)
        assert sum(layer["ns"] for layer in packet["layers"]) == packet["latency_ns"]
        assert int(ways.collection.packets["length"].iloc[packet["packet"]]) == m.nbytes
    number = int(requests["message_id"].iloc[3])
    assert main(["show", str(capture), str(number)]) == 0
    said = capsys.readouterr().out
    assert "Way of its packets before it arrived" in said
    assert "sending stack" in said
    assert json.loads(embedded(page_data._ways(ways.packets_of(number))))[0][4][0][1] == "sending stack"


def _until_recording(capture: Path, recorder: subprocess.Popen[str]) -> None:
    while recorder.poll() is None:
        path = capture / "manifest.json"
        if path.exists() and "start" in json.loads(path.read_text()):
            return
    raise AssertionError(recorder.communicate()[1])
