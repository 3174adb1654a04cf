# SPDX-License-Identifier: GPL-2.0-only
"""perf/check begins again from sources and objects that a killed run has left."""

from __future__ import annotations

import subprocess
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

CHECK = Path(__file__).resolve().parents[2] / "kernel-patches/perf/check"


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    loader = SourceFileLoader("perf_check", str(CHECK))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    monkeypatch.setattr(module, "BUILD", tmp_path / "build")
    return module


def git(tree: Path, *argv: str) -> str:
    command = ["git", "-C", str(tree), "-c", "user.name=a", "-c", "user.email=a@localhost", *argv]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def sources(tmp_path: Path) -> tuple[Path, str]:
    """A tree with one file of perf, and its commit."""
    tree = tmp_path / "tree"
    (tree / "tools").mkdir(parents=True)
    (tree / "tools/a.c").write_text("int a;\n")
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "base")
    return tree, git(tree, "rev-parse", "HEAD")


def test_branch_without_its_objects_in_the_sources(check: ModuleType, sources: tuple[Path, str]) -> None:
    tree, commit = sources
    (check.BUILD / "base").mkdir(parents=True)
    work = check.worktree("base", tree, commit)
    (work / "tools/a.c").write_text("int b;\n")
    (tree / ".git/refs/heads/killed").write_text("1" * 40 + "\n")

    assert check.worktree("base", tree, commit) == work
    assert (work / "tools/a.c").read_text() == "int a;\n"


def test_newer_commit_of_the_sources(check: ModuleType, sources: tuple[Path, str]) -> None:
    tree, commit = sources
    (check.BUILD / "base").mkdir(parents=True)
    work = check.worktree("base", tree, commit)
    (tree / "tools/a.c").write_text("int newer;\n")
    git(tree, "commit", "-q", "-a", "-m", "newer")

    check.worktree("base", tree, git(tree, "rev-parse", "HEAD"))
    assert (work / "tools/a.c").read_text() == "int newer;\n"
