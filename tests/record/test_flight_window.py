# SPDX-License-Identifier: GPL-2.0-only
"""What a window contains for a core that has written nothing for a long time because it is off, or isolated."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT, skip_or_fail

pytestmark = pytest.mark.tools

SECOND, HOUR = 10**9, 3600 * 10**9
SWITCH, IDLE = 2, 9
LONGEST = (1 << 40) - 1  # 18 minutes


@pytest.mark.parametrize(
    ("ago", "records"),
    [
        (SECOND // 2, [(SWITCH, 0), (IDLE, SECOND // 2)]),
        (2 * SECOND, [(IDLE, 2 * SECOND)]),
        (HOUR, [(IDLE, LONGEST)]),
        (50 * HOUR, [(IDLE, LONGEST)]),  # more than half of the range of 48 bits: looks like the future
        (2**48 + SECOND // 2, [(IDLE, LONGEST)]),  # 78 hours before the window
    ],
)
def test_old_records_are_not_in_a_window(tmp_path: Path, ago: int, records: list[tuple[int, int]]) -> None:
    if not shutil.which("gcc"):
        skip_or_fail("compiler", "gcc is not installed")
    tools = ROOT / "tools"
    argv = [
        "gcc",
        "-D_GNU_SOURCE",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-I",
        tools / "nsight-record/collect",
        "-I",
        tools / "bpf",
    ]
    source = Path(__file__).with_name("window_of_quiet_core.c")
    subprocess.run([*argv, source, tools / "bpf/fail.c", "-o", tmp_path / "x"], check=True)
    done = subprocess.run([tmp_path / "x", str(ago)], capture_output=True, text=True, check=True)
    told = [tuple(int(word) for word in line.split()) for line in done.stdout.splitlines()]
    assert told == records
