# SPDX-License-Identifier: GPL-2.0-only
"""The system of tests/machinery/guest/trixie is built once, and built again when its inputs change."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import kernels
import pytest

PROGRAMS = {
    "id": "echo 0",
    "apt-get": "echo http://archive.invalid/debian",
    "debootstrap": 'echo "$*" >>"$CALLS"; [ ! -e "$CALLS.fails" ] || exit 1\n'
    'for root in "$@"; do case $root in */build/trixie) mkdir -p "$root/usr";; esac; done',
    # The versions that came; the last words are the packages.
    "dpkg-query": '[ ! -e "$CALLS.lacks" ] || exit 1\nwhile [ "$1" != -f ]; do shift; done; shift 2\n'
    'for name in "$@"; do echo "$name 1.0-1"; done',
}


class Trixie:
    """The program in a separate tree, with stub programs that only record how they are called."""

    def __init__(self, directory: Path) -> None:
        self.top, self.calls = directory / "top", directory / "calls"
        self.program = self.top / "tests/machinery/guest/trixie"
        self.done = self.top / "build/trixie/.done"
        for path in ("tests/machinery/guest/trixie", "tools/downloads"):
            (self.top / path).parent.mkdir(parents=True)
            shutil.copy(kernels.TOP / path, self.top / path)
        self.bin = directory / "bin"
        self.bin.mkdir()
        for name, text in PROGRAMS.items():
            (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
            (self.bin / name).chmod(0o755)

    def prepare(self) -> subprocess.CompletedProcess[str]:
        """Make the system unless it is there."""
        env = {"PATH": f"{self.bin}:{os.environ['PATH']}", "CALLS": str(self.calls)}
        return subprocess.run(
            [self.program, "--prepare"], env=env, capture_output=True, text=True, timeout=60
        )

    def made(self) -> int:
        """How often debootstrap ran."""
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0


@pytest.fixture
def trixie(tmp_path: Path) -> Trixie:
    return Trixie(tmp_path)


def test_it_is_made_once_and_says_which_versions_came(trixie: Trixie) -> None:
    for _ in range(2):
        done = trixie.prepare()
        assert done.returncode == 0, done.stderr
    assert trixie.made() == 1
    assert "--include=bpftrace,qemu-system-x86,linux-perf trixie" in trixie.calls.read_text()
    assert trixie.done.read_text().splitlines() == [
        "format 2: trixie bpftrace qemu-system-x86 linux-perf",
        *(f"{name} 1.0-1" for name in ("bpftrace", "qemu-system-x86", "linux-perf")),
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('packages="', 'packages="strace '),
        ("suite=trixie", "suite=forky"),
        ("format 2", "format 3"),
    ],
)
def test_it_is_made_anew_when_it_is_made_of_something_else(trixie: Trixie, old: str, new: str) -> None:
    trixie.prepare()
    text = trixie.program.read_text()
    assert text.count(old) == 1
    trixie.program.write_text(text.replace(old, new))
    (trixie.done.parent / "stale").touch()
    assert trixie.prepare().returncode == 0
    assert trixie.made() == 2
    assert not (trixie.done.parent / "stale").exists()
    assert trixie.prepare().returncode == 0
    assert trixie.made() == 2


def test_one_that_an_older_program_made_is_made_anew(trixie: Trixie) -> None:
    trixie.done.parent.mkdir(parents=True)
    trixie.done.touch()
    assert trixie.prepare().returncode == 0
    assert trixie.made() == 1


@pytest.mark.parametrize("why", ["fails", "lacks"])
def test_a_failure_is_no_finished_system(trixie: Trixie, why: str) -> None:
    reason = trixie.calls.with_name(f"calls.{why}")
    reason.touch()
    done = trixie.prepare()
    assert done.returncode == 125
    assert "error: " in done.stderr and "hint: " in done.stderr
    assert not trixie.done.exists()
    reason.unlink()
    assert trixie.prepare().returncode == 0
