# SPDX-License-Identifier: GPL-2.0-only
"""tests/lint fails when it finds no files to check, instead of passing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]


def lint(directory: Path) -> tuple[int, str]:
    """Exit code and output of tests/lint in ``directory``, with linters that find nothing wrong."""
    (directory / "tests").mkdir(parents=True)
    shutil.copy2(TESTS / "lint", directory / "tests/lint")
    tools = directory / "tools"
    tools.mkdir()
    for name in ("ruff", "mypy", "clang-format", "shellcheck", "cargo"):
        (tools / name).write_text('#!/bin/sh\n[ "$2" != --show-files ] || echo a.py\n')
        (tools / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PY": str(tools / "python"),
           "GIT_CEILING_DIRECTORIES": str(directory.parent)}  # fmt: skip
    done = subprocess.run([directory / "tests/lint"], env=env, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def test_without_git_nothing_is_clean(tmp_path: Path) -> None:
    code, said = lint(tmp_path / "tree")
    assert code == 1
    assert "lint: git cannot list *.c *.h :!tools/nsight-decode/libipt/ (hint: run it in a clone)" in said
    assert "clean" not in said


def test_without_files_nothing_is_clean(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path / "tree")], check=True)
    code, said = lint(tmp_path / "tree")
    assert code == 1
    assert "lint: no file matches *.c *.h" in said
    assert "no Cargo.toml" in said
