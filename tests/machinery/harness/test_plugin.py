# SPDX-License-Identifier: GPL-2.0-only
"""How the plugin handles skips, failures and order, shown on small test files in separate runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from machinery.harness.plugin import Files

ROOT = Path(__file__).resolve().parents[3]


def run(path: Path, text: str, *options: str, **environment: str) -> tuple[int, str]:
    """pytest on a file with this text: exit code and what it printed."""
    path.write_text(text)
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("NSIGHT_REQUIRE", "NSIGHT_TEST_RUN", "PYTEST"))
    }
    argv = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", *options, str(path)]
    done = subprocess.run(argv, cwd=ROOT, env=env | environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


SKIPS = {
    "a listed one": ("import pytest\ndef test_a():\n    pytest.skip('browser: there is none')\n", "", 0),
    "one of a mark": ("import pytest\n@pytest.mark.skipif(True, reason='root: a mount')\ndef test_a(): pass\n", "", 0),
    "another reason": ("import pytest\ndef test_a():\n    pytest.skip('not today')\n", "", 1),
    "another reason of a mark": ("import pytest\n@pytest.mark.skip(reason='slow')\ndef test_a(): pass\n", "", 1),
    "a required one": ("import pytest\ndef test_a():\n    pytest.skip('browser: there is none')\n", "perf,browser", 1),
    "in a fixture": ("import pytest\n@pytest.fixture\ndef b():\n    pytest.skip('browser: none')\ndef test_a(b): pass\n",
                     "browser", 1),
    "all required": ("import pytest\ndef test_a():\n    pytest.skip('groff: there is none')\n", "all", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", SKIPS)
def test_only_skips_of_the_list_that_nothing_requires_are_skips(tmp_path: Path, name: str) -> None:
    text, required, failed = SKIPS[name]
    code, said = run(tmp_path / "test_it.py", text, NSIGHT_REQUIRE=required)
    assert code == failed, said
    assert ("1 skipped" in said) == (not failed)
    if failed:
        assert "NSIGHT_REQUIRE names" in said or "not in tests/machinery/harness/capabilities.py: " in said


def test_a_requirement_that_is_no_capability_is_an_error(tmp_path: Path) -> None:
    code, said = run(tmp_path / "test_it.py", "def test_a(): pass\n", NSIGHT_REQUIRE="browser,qemu")
    assert code == 4
    assert "NSIGHT_REQUIRE: 'qemu' is no capability (hint: one of root, bpf, " in said


FAILING = '''
RUNS = []
def test_half_of_two_is_three():
    """Halves are integers."""
    RUNS.append(1)
    assert 2 / 2 == 3
def test_it_was_not_run_again():
    assert len(RUNS) <= 1
'''


def test_a_failure_tells_its_claim_and_how_to_repeat_it_and_is_not_run_again(tmp_path: Path) -> None:
    code, said = run(tmp_path / "test_it.py", FAILING, "--randomly-seed=7")
    assert code == 1
    assert "1 failed, 1 passed" in said
    assert "half of two is three\nHalves are integers." in said
    assert "test_it.py::test_half_of_two_is_three' --randomly-seed=7" in said.replace("three -", "three' -")


def test_the_order_is_that_of_the_seed(tmp_path: Path) -> None:
    text = "".join(f"def test_{n}():\n    print('<{n}>')\n" for n in range(12))

    def order(seed: int) -> list[str]:
        code, said = run(tmp_path / "test_it.py", text, "-s", f"--randomly-seed={seed}")
        assert code == 0
        return re.findall(r"<\d+>", said)

    assert len(order(1)) == 12
    assert order(1) == order(1) != order(2)


DRAWN = """
import time
from hypothesis import given, settings, strategies as st
@settings(max_examples=3, database=None)
@given(st.integers())
def test_drawn(n):
    time.sleep(0.3)
    print(f"<{n}>")
"""


def test_drawn_cases_are_those_of_the_seed_and_may_take_their_time(tmp_path: Path) -> None:
    def cases(seed: int) -> list[str]:
        code, said = run(tmp_path / "test_it.py", DRAWN, "-s", f"--hypothesis-seed={seed}")
        assert code == 0, said
        return re.findall(r"<-?\d+>", said)

    assert len(cases(1)) == 3
    assert cases(1) == cases(1) != cases(2)


def test_fast_leaves_out_what_is_live_a_guest_or_slow(tmp_path: Path) -> None:
    text = "import pytest\ndef test_pure(): pass\n" + "".join(
        f"@pytest.mark.{mark}\ndef test_{mark}(): pass\n"
        for mark in ("live", "alone", "guest", "trixie", "tools", "slow")
    )
    assert "7 passed" in run(tmp_path / "test_it.py", text)[1]
    assert "1 passed, 6 deselected" in run(tmp_path / "test_it.py", text, "--fast")[1]


def test_tests_that_wait_for_each_other_get_one_process() -> None:
    scope = Files.__new__(Files)._split_scope
    assert scope("tests/capsule/test_a.py::test_x") == scope("tests/capsule/test_b.py::test_y")
    assert scope("tests/record/test_a.py::test_x") != scope("tests/record/test_b.py::test_y")


HANGING = """
import signal, time
def test_hangs():
    signal.setitimer(signal.ITIMER_REAL, 0)
    time.sleep(1000)
def test_is_quick():
    pass
"""


def test_a_test_that_hangs_fails_with_its_stack_and_the_others_run(tmp_path: Path) -> None:
    """As in the part of the run that shares the machine, though with its options in the order of pytest."""
    limits = ["-o", "timeout=3", "-o", "faulthandler_timeout=1"]
    options = ["-c", str(ROOT / "pyproject.toml"), *limits, "-n", "1", "-p", "no:randomly"]
    code, said = run(tmp_path / "test_it.py", HANGING, *options)
    assert code == 1
    assert "1 failed, 1 passed" in said, said
    assert "crashed while running" in said and "test_hangs" in said
    assert "in test_hangs" in said and "Timeout (0:00:01)!" in said
