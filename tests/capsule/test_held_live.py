# SPDX-License-Identifier: GPL-2.0-only
"""The report names what held packets in a layer: a program between two taps without a core, or stopped, or a queue discipline.

x:ta == switch == tb:y, like a hypervisor between the taps of its guests, in one kernel. Packets are matched by their fields.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from machinery.harness.judged import judge
from nsight_report.cli import main

from capsule.bed import CLONE_NEWNET, run
from capsule.stamping import ROOT, Stamping
from conftest import skip_or_fail

pytestmark = [pytest.mark.live, pytest.mark.alone]

RECORDER = ROOT / "tools/nsight-record/nsight-record"
CPU = "1"
PORT = 7081
#: A packet every 2 ms; six times, something holds the packets of 30 ms.
N, EVERY_S, STALLS, STALL_S = 600, 0.002, 6, 0.03
#: Has a higher priority than any other program: while it runs, the switch does not run.
HOG = f"""
import os, time
open("/proc/self/comm", "w").write("held-by-this")
os.sched_setaffinity(0, {{{CPU}}})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
for _ in range({STALLS}):
    time.sleep({N * EVERY_S / (STALLS + 1) - STALL_S})
    end = time.monotonic() + {STALL_S}
    while time.monotonic() < end:
        pass
"""


class Taps:
    """Both namespaces and the program between them."""

    def __init__(self) -> None:
        self.x, self.y = (f"nsight-cap-{os.getpid()}-{place}" for place in "xy")
        self.process: subprocess.Popen[str] | None = None

    @contextmanager
    def built(self) -> Iterator[Taps]:
        try:
            for space in (self.x, self.y):
                run("ip", "netns", "add", space)
            words = [
                sys.executable,
                str(Path(__file__).with_name("user_space_switch.py")),
                self.x,
                "ta",
                self.y,
                "tb",
                CPU,
            ]
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            assert self.process.stdout
            assert self.process.stdout.readline() == "ready\n"
            self._up()
            yield self
        finally:
            if self.process:
                self.process.kill()
                self.process.communicate()
            for space in (self.x, self.y):
                subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)

    def _up(self) -> None:
        for space, device, n in ((self.x, "ta", 1), (self.y, "tb", 2)):
            run("ip", "-n", space, "addr", "add", f"10.96.0.{n}/24", "dev", device)
            run("ip", "-n", space, "link", "set", device, "up")
        line = run("ip", "-n", self.y, "-o", "link", "show", "tb")
        run(
            "ip",
            "-n",
            self.x,
            "neigh",
            "replace",
            "10.96.0.2",
            "lladdr",
            line.split("link/ether ")[1].split()[0],
            "dev",
            "ta",
        )

    def socket(self, space: str) -> socket.socket:
        """A UDP socket of that namespace."""
        made: list[socket.socket] = []

        def work() -> None:
            with Path(f"/run/netns/{space}").open() as file:
                assert ctypes.CDLL(None).setns(file.fileno(), CLONE_NEWNET) == 0
            made.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return made[0]


@pytest.fixture
def taps(one_capsule: None) -> Iterator[Taps]:
    if os.geteuid():
        skip_or_fail("root", "packets are stamped by root")
    with Taps().built() as made:
        yield made


def _stop(taps: Taps) -> None:
    assert taps.process
    for _ in range(STALLS):
        time.sleep(N * EVERY_S / (STALLS + 1) - STALL_S)
        taps.process.send_signal(signal.SIGSTOP)
        time.sleep(STALL_S)
        taps.process.send_signal(signal.SIGCONT)


def _talk(taps: Taps) -> None:
    """Send N datagrams to y at a constant rate, and read them there."""
    with taps.socket(taps.x) as sender, taps.socket(taps.y) as receiver:
        receiver.bind(("10.96.0.2", PORT))
        receiver.settimeout(30)
        sender.connect(("10.96.0.2", PORT))
        reader = threading.Thread(target=lambda: [receiver.recv(1 << 16) for _ in range(N)])
        reader.start()
        due = time.monotonic()
        for n in range(N):
            sender.send(b"%4d" % n * 25)
            due += EVERY_S
            time.sleep(max(due - time.monotonic(), 0))
        reader.join()


def _record(taps: Taps, directory: Path, hold: str) -> tuple[Path, Path]:
    """Record while the packets of some intervals are held; nsight-capsule's directory and the capture."""
    if hold == "queue":
        words = ("root", "tbf", "rate", "500kbit", "burst", "2000", "limit", "100000")
        run("tc", "-n", taps.x, "qdisc", "replace", "dev", "ta", *words)
    capsules, capture = directory / "way.capsules", directory / "core.nsight"
    words_of = [sys.executable, str(RECORDER), "--port", str(PORT), "-o", str(capture)]
    points = [
        "--point",
        f"{taps.x}:ta",
        "--point",
        f"{taps.y}:tb",
        "--port",
        str(PORT),
        "--rate",
        "1",
        "--match",
    ]
    with (
        Stamping(capsules, *points) as stamping,
        subprocess.Popen(words_of, stderr=subprocess.PIPE, text=True) as recorder,
    ):
        try:
            _until_recording(capture, recorder)
            holding = {
                "hog": lambda: subprocess.run([sys.executable, "-c", HOG], check=True),
                "stop": lambda: _stop(taps),
                "queue": lambda: None,
            }[hold]
            thread = threading.Thread(target=holding)
            thread.start()
            _talk(taps)
            thread.join()
            stamping.end()
            recorder.send_signal(signal.SIGINT)
            recorder.communicate(timeout=120)
        finally:
            recorder.kill()
    return capsules, capture


def _until_recording(capture: Path, recorder: subprocess.Popen[str]) -> None:
    while recorder.poll() is None:
        path = capture / "manifest.json"
        if path.exists() and "start" in json.loads(path.read_text()):
            return
        time.sleep(0.01)
    raise AssertionError(recorder.communicate()[1])


def _causes(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["hops", *words, "--json"]) == 0
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    return made


@pytest.mark.parametrize("hold", ["hog", "stop", "queue"])
def test_what_held_the_packets_is_named(
    taps: Taps, tmp_path: Path, capsys: pytest.CaptureFixture[str], hold: str
) -> None:
    capsules, capture = _record(taps, tmp_path, hold)
    found = _causes(capsys, str(capsules), str(capture), "--slowest", "5")
    assert found["n_arrived"] == N
    assert found["layers"][0]["layer"] == f"{taps.x}:ta out -> {taps.y}:tb in"
    first = found["causes"][0]
    wanted = {
        "hog": "CPU contention with held-by-this [",
        "stop": "switch stopped",
        "queue": f"queue discipline tbf of {taps.x}:ta, or its link",
    }[hold]
    judge(
        "live",
        f"held by {hold}",
        first["cause"].startswith(wanted) and first["share"] > 0.5,
        str(found["causes"]),
    )
