# SPDX-License-Identifier: GPL-2.0-only
"""A guest that dies is started again, and the retry is recorded. A guest that dies each time fails the test; one that cannot be prepared skips it."""

from __future__ import annotations

import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
from machinery.guest import retried
from machinery.harness import notes, retries

#: Counts its starts in a file, and ends as its next argument says.
FAKE = """
import pathlib, sys
starts = pathlib.Path(sys.argv[1])
n = len(starts.read_text()) if starts.exists() else 0
starts.write_text("x" * (n + 1))
code = int(sys.argv[2].split(",")[n])
print("out", n)
print("\\n".join(f"console {k}" for k in range(100)), file=sys.stderr)
print("panic", n, file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file whose length is the number of starts."""
    (tmp_path / "run").write_text(FAKE)
    monkeypatch.setattr(retried, "RUN", tmp_path / "run")
    monkeypatch.setenv(notes.DIRECTORY, str(tmp_path / "notes"))
    return tmp_path / "starts"


def test_a_guest_that_dies_twice_and_then_works_is_two_noted_retries(starts: Path) -> None:
    done = retried.run_guest([str(starts), "125,125,0"])
    assert (done.returncode, done.stdout) == (0, "out 2\n")
    noted = retries.all_of()
    assert [row["what"] for row in noted] == ["guest", "guest"]
    assert [row["why"].splitlines()[-1] for row in noted] == ["panic 0", "panic 1"]
    assert len(noted[0]["why"].splitlines()) == retried.LINES


def test_a_guest_that_dies_three_times_fails_the_test(starts: Path) -> None:
    with pytest.raises(AssertionError, match=r"died 3 times(.|\n)*console 99\npanic 2$"):
        retried.run_guest([str(starts), "125,125,125,0"])
    assert starts.read_text() == "xxx"
    assert len(retries.all_of()) == 2


def test_a_guest_that_cannot_be_prepared_is_not_tried_again(starts: Path) -> None:
    with pytest.raises(retried.GuestUnavailable, match="panic 0"):
        retried.run_guest([str(starts), "126,0"])
    assert starts.read_text() == "x"
    assert retries.all_of() == []


def test_a_command_that_fails_is_not_tried_again(starts: Path) -> None:
    assert retried.run_guest([str(starts), "3,0"]).returncode == 3
    assert starts.read_text() == "x"


@pytest.fixture
def run() -> ModuleType:
    """``tests/machinery/guest/run`` as a module."""
    path = Path(__file__).with_name("run")
    spec = importlib.util.spec_from_loader("guest_run", SourceFileLoader("guest_run", str(path)))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_clock_that_ran_away_is_told_from_a_slow_guest(run: ModuleType, tmp_path: Path) -> None:
    assert run.ran_away(tmp_path, 10) == ""
    (tmp_path / "uptime").write_text("694.31 12.00\n")
    assert run.ran_away(tmp_path, 94) == "the guest's clock says 694 s after 94 s"
    assert run.ran_away(tmp_path, 700) == ""


def test_a_guest_that_does_not_boot_is_told_from_a_command_that_takes_long(
    run: ModuleType, tmp_path: Path
) -> None:
    assert not run.stuck(tmp_path, run.BOOT_S - 1)
    assert run.stuck(tmp_path, run.BOOT_S + 1)
    (tmp_path / "err").touch()
    assert not run.stuck(tmp_path, run.BOOT_S + 1)


def test_exit_codes_are_those_of_the_program_and_no_command_has_them(run: ModuleType) -> None:
    assert (retried.DIED, retried.UNPREPARED) == (run.EXIT_GUEST, run.EXIT_PREPARE)
    # A shell ends with 126 when a program is not executable: that is a failed test, not a missing guest.
    assert [run.passed_on(n) for n in (0, 3, 124, 125, 126, 127)] == [0, 3, 1, 1, 1, 127]


def test_the_program_says_that_a_guest_cannot_be_prepared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Neither QEMU nor busybox is found. The image is given, so that no kernel is downloaded before that.
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(notes.DIRECTORY, str(tmp_path / "notes"))
    with pytest.raises(retried.GuestUnavailable, match=r"busybox is not installed .*hint"):
        retried.run_guest(["--image", str(tmp_path / "none"), "--", "true"])
