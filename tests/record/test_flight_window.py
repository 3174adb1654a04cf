# SPDX-License-Identifier: GPL-2.0-only
"""Parts of the flight recorder in C: what a window contains, and which slow messages are examined."""

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


def run(source: str, directory: Path, *argv: str, beside: tuple[str, ...] = ()) -> list[str]:
    """Lines of a C program that includes a part of the recorder; ``beside``: other parts of the recorder that it needs."""
    if not shutil.which("gcc"):
        skip_or_fail("compiler", "gcc is not installed")
    collect, bpf = ROOT / "tools/nsight-record/collect", ROOT / "tools/bpf"
    command = ["gcc", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-I", collect, "-I", bpf]
    # Parts that it does not use need not be there.
    command += ["-ffunction-sections", "-Wl,--gc-sections"]
    command += [Path(__file__).with_name(source), bpf / "fail.c", *(collect / name for name in beside)]
    subprocess.run([*command, "-o", directory / "x"], check=True)
    done = subprocess.run([directory / "x", *argv], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


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
    told = [
        tuple(int(word) for word in line.split())
        for line in run("window_of_quiet_core.c", tmp_path, str(ago))
    ]
    assert told == records


def test_slow_message_that_is_replaced_while_it_is_read_is_counted_not_mixed(tmp_path: Path) -> None:
    """Number 63 of 64 is replaced by number 127 after its first half was read."""
    assert run("torn_trigger.c", tmp_path, "torn", beside=("triggers.c",)) == ["62 62", "unseen 1"]


def test_two_programs_never_write_one_slow_message(tmp_path: Path) -> None:
    """A program finds number 127 while another one has half of number 63 written: 63 is whole, 127 is counted as not
    examined, and the ones after it are examined."""
    found = run("torn_trigger.c", tmp_path, "both", beside=("triggers.c",))
    assert found == ["62 62", "63 63", "126 126", "128 128", "unseen 1"]


def test_slow_message_that_is_not_written_yet_is_examined_at_the_next_look(tmp_path: Path) -> None:
    """Its place still has the one of 64 numbers before."""
    assert run("torn_trigger.c", tmp_path, beside=("triggers.c",)) == ["62 62", "63 63", "64 64", "unseen 0"]


@pytest.mark.parametrize(
    ("n", "since", "told"),
    [
        (4096, 1, "4096 0"),
        (5000, 905, "4096 0"),  # 904 are not kept, all of them older
        (5000, 904, "4096 1"),
        (5000, 800, "4096 105"),  # those of the times 800 to 904
        (5000, 4900, "101 0"),
    ],
)
def test_steal_time_that_is_not_kept_is_counted(tmp_path: Path, n: int, since: int, told: str) -> None:
    """The newest 4096 entries are kept, one for each time from 1 to n."""
    assert run("steal_entries.c", tmp_path, str(n), str(since)) == [told]
