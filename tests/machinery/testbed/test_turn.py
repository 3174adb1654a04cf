# SPDX-License-Identifier: GPL-2.0-only
"""The machine's turn: one run measures at a time, in order of arrival, and no run waits for itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from nsight_demo.processes import BedError

from machinery.testbed import turn as module
from machinery.testbed.locks import LockFile
from machinery.testbed.turn import turn

TESTS = Path(__file__).resolve().parents[2]
#: Takes the turn of the directory, writes a word into the file there, and keeps it until its input ends.
TAKE = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(TESTS)!r})
from machinery.testbed import turn as module
directory = Path(sys.argv[1])
module.run_dir = lambda: directory
with module.turn():
    with open(directory / "order", "a") as file:
        file.write(sys.argv[2] + "\\n")
    print("has it", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Private turns for this test, in a process that was not started by a holder of the turn."""
    monkeypatch.setattr(module, "run_dir", lambda: tmp_path)
    monkeypatch.setattr(module, "_depth", Counter())
    monkeypatch.delenv(module.HOLDER, raising=False)
    return tmp_path


def taker(
    directory: Path, word: str, stdin: int = subprocess.PIPE, **environment: str
) -> subprocess.Popen[str]:
    """A process that takes the turn."""
    return subprocess.Popen(
        [sys.executable, "-c", TAKE, str(directory), word],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def is_taken(directory: Path) -> bool:
    """Whether any process has the turn."""
    locks = LockFile(directory / "turn")
    try:
        return module.holder(locks) != ""
    finally:
        locks.close()


def test_another_run_waits_says_for_whom_and_goes_on(own: Path) -> None:
    with turn():
        other = taker(own, "other", stdin=subprocess.DEVNULL, **{module.HOLDER: ""})
        assert other.stderr and other.stdout
        told = other.stderr.readline()
        assert told == f"waiting for another test run on this machine (pid {os.getpid()})\n"
        assert other.poll() is None and not (own / "order").exists()
    assert other.communicate(timeout=60)[0] == "has it\n"
    assert other.returncode == 0


def test_turn_of_a_killed_holder_is_free(own: Path) -> None:
    other = taker(own, "other")
    assert other.stdout and other.stdout.readline() == "has it\n"
    assert is_taken(own)
    other.kill()
    other.wait()
    assert not is_taken(own)
    with turn():
        assert is_taken(own)
    assert not is_taken(own)


def test_one_who_waits_is_next_although_the_holder_wants_it_again_at_once(own: Path) -> None:
    with turn():
        other = taker(own, "other", stdin=subprocess.DEVNULL, **{module.HOLDER: ""})
        assert other.stderr and other.stderr.readline().startswith("waiting")
    with turn(), open(own / "order", "a") as file:
        file.write("this\n")
    other.communicate(timeout=60)
    assert (own / "order").read_text() == "other\nthis\n"


def test_nobody_waits_for_himself_or_for_who_started_him(own: Path) -> None:
    with turn():
        with turn():
            pass
        assert is_taken(own)
        child = taker(own, "child", stdin=subprocess.DEVNULL)
        out, err = child.communicate(timeout=60)
        assert (child.returncode, out, err) == (0, "has it\n", "")
        assert is_taken(own)
    assert not is_taken(own) and module.HOLDER not in os.environ


@pytest.mark.parametrize("begins", ["nobody has it", "another has it"])
def test_program_that_outlives_the_turn_it_was_started_in_takes_its_own(own: Path, begins: str) -> None:
    with turn():
        was = os.environ[module.HOLDER]
    if begins == "nobody has it":
        late = taker(own, "late", **{module.HOLDER: was})
        assert late.stdout and late.stdout.readline() == "has it\n"
        assert is_taken(own)
    else:
        other = taker(own, "other")
        assert other.stdout and other.stdout.readline() == "has it\n"
        late = taker(own, "late", **{module.HOLDER: was})
        assert late.stderr and late.stderr.readline().endswith(f"(pid {other.pid})\n")
        other.communicate("", timeout=60)
    assert late.communicate("", timeout=60)[1] == ""
    assert not is_taken(own)


def test_turns_at_different_things_do_not_wait_for_each_other(own: Path) -> None:
    with module.turn("capsule"):
        assert not is_taken(own)
        with taker(own, "measures", stdin=subprocess.DEVNULL) as other:
            assert other.communicate()[0] == "has it\n"
        late = LockFile(own / "capsule")
        assert not late.take(0)
    assert late.take(0)
    late.close()


def test_empty_name_of_a_holder_is_none(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(module.HOLDER, "")
    with turn():
        assert is_taken(own)


def test_wait_has_an_end(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT_S", 0)
    other = taker(own, "other")
    assert other.stdout and other.stdout.readline() == "has it\n"
    with pytest.raises(BedError, match=rf"pid {other.pid}\) has measured for 0 s"), turn():
        pass
    other.communicate("", timeout=60)
    with turn():
        pass


def test_turn_ends_with_an_exception(own: Path) -> None:
    with pytest.raises(KeyError), turn():
        raise KeyError
    assert not is_taken(own)
