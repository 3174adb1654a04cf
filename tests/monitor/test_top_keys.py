# SPDX-License-Identifier: GPL-2.0-only
"""Keys of --top on a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import lines
import pytest
from test_monitor_cli import TOOL

HANGS_S = 120
CLEAR = "\x1b[H\x1b[2J"
#: The first has the larger p99, the second the larger count.
SLOW, OFTEN = (
    lines.histogram("tcp-socket-read", 0, 10_000, b14=1),
    lines.histogram("ip-start", 0, 1000, b9=100),
)


class Terminal:
    """nsight-monitor --top, whose lines the test writes, and whose keys it presses."""

    def __init__(self, fifo: Path) -> None:
        os.mkfifo(fifo)
        self._ours, its = pty.openpty()
        termios.tcsetwinsize(its, (24, 120))
        self.its = os.dup(its)
        self.process = subprocess.Popen(
            [sys.executable, TOOL, "--input", fifo, "--top"],
            stdin=its,
            stdout=its,
            env={k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
            | {"PYTHONIOENCODING": "utf-8"},
            start_new_session=True,
        )
        os.close(its)
        self._lines = fifo.open("w")
        self._drawn = ""

    def send(self, text: str) -> None:
        self._lines.write(text)
        self._lines.flush()

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def screen(self, fits: Callable[[str], bool]) -> list[str]:
        """First words of the lines of the first whole screen that fits."""
        while True:
            for screen in re.findall(rf"{re.escape(CLEAR)}([^\x1b]*\n)", self._drawn):
                if fits(screen):
                    self._drawn = ""
                    return [line.split()[0] for line in screen.splitlines() if line.split()]
            assert select.select([self._ours], [], [], HANGS_S)[0], self._drawn
            self._drawn += os.read(self._ours, 1 << 16).decode()

    def close(self) -> None:
        self._lines.close()
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self.its)


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path / "lines")
    yield made
    made.close()


def test_keys_sort_pause_and_end(top: Terminal) -> None:
    before = termios.tcgetattr(top.its)[3]
    top.send(lines.header() + lines.snapshot(10, SLOW, OFTEN))
    first = top.screen(lambda s: "by p99; keys: s sort, space pause, q end" in s)
    assert first[2:4] == ["tcp-socket-read", "ip-start"]
    assert not termios.tcgetattr(top.its)[3] & termios.ICANON
    for order in ("max", "mean", "count"):
        top.press("s")
        last = top.screen(lambda s, by=order: f"by {by};" in s)  # type: ignore[misc]
    assert last[2:4] == ["ip-start", "tcp-socket-read"]
    top.press(" ")
    assert top.screen(lambda s: "paused" in s)[2:4] == last[2:4]
    more = lines.histogram("udp-socket-read", 0, 10_000, b14=1)
    top.send(lines.snapshot(20, SLOW, OFTEN, more))
    top.press("s")
    # Drawn after the new sums came or before; they are not shown.
    assert "udp-socket-read" not in top.screen(lambda s: "by stage;" in s)
    top.press(" ")
    top.screen(lambda s: "paused" not in s)
    top.send(lines.snapshot(30, SLOW, OFTEN, lines.histogram("udp-socket-read", 0, 30_000, b14=3)))
    top.screen(lambda s: "udp-socket-read" in s)
    top.press("q")
    assert top.process.wait(120) == 130
    assert termios.tcgetattr(top.its)[3] == before


#: The first signal comes before the read has begun: it does not interrupt it.
EARLY = """
import os, threading
from nsight_monitor import cli

kill, calls = os.kill, []
os.kill = lambda *args: calls.append(args) or len(calls) > 1 and kill(*args)
stop = cli._Stop()
threading.Thread(target=stop.ask).start()
try:
    os.read(0, 1)
except KeyboardInterrupt:
    print("ended")
"""


def test_q_ends_a_read_that_its_first_signal_came_too_early_for() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", EARLY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], HANGS_S)[0]
        assert process.stdout.read() == "ended\n"
