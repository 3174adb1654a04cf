# SPDX-License-Identifier: GPL-2.0-only
"""A program is complete when its test executes it, even if another test builds it at the same time."""

from __future__ import annotations

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from machinery.harness import built

#: Like a linker: the output is there, newer than its source, long before the last byte is written.
MAKEFILE = """\
program: source
\texec 9>$@ && cat /bin/true >&9 && chmod 755 $@ && echo began >>builds && sleep 1
"""


def test_program_is_executed_only_after_another_test_has_built_it(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "source").touch()

    def build_and_execute() -> int:
        built.make(tmp_path, "program")
        return subprocess.run([str(tmp_path / "program")]).returncode

    with ThreadPoolExecutor() as pool:
        first = pool.submit(build_and_execute)
        deadline = time.monotonic() + 30
        while not (tmp_path / "builds").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        second = pool.submit(build_and_execute)
        assert (first.result(), second.result()) == (0, 0)
    assert (tmp_path / "builds").read_text() == "began\n", "it was built twice"


def test_failed_build_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("program:\n\tfalse\n")
    with pytest.raises(subprocess.CalledProcessError):
        built.make(tmp_path, "program")
