# SPDX-License-Identifier: GPL-2.0-only
"""make pins renews kernels.lock from the archive as one commit. For the kernel sources it only prints what the archive has."""

from __future__ import annotations

import importlib.util
import subprocess
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import kernels
import pytest
from fake_archive import FakeArchive, archive, package, write_lock

__all__ = ["archive"]

OLD = package("linux-image-6.1.0-1-amd64", "6.1.1-1")
NEW = package("linux-image-6.1.0-2-amd64", "6.1.2-1")
SOURCE = package("linux-source-6.1", "6.1.1-1")


def git(directory: Path, *argv: str) -> str:
    """What git prints."""
    done = subprocess.run(["git", "-C", str(directory), *argv], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def pins(archive: FakeArchive, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The program; its kernels.lock is committed in a repository of its own."""
    # Variables that a git hook of the enclosing repository would set.
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "test")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "test@localhost")
    path = Path(__file__).with_name("pins")
    spec = importlib.util.spec_from_loader("pins", SourceFileLoader("pins", str(path)))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    base = module.sources.Base("6.1", "bookworm", SOURCE.name, SOURCE.version, SOURCE.sha256, "c0ffee")
    monkeypatch.setattr(module.sources, "bases", lambda: {"6.1": base})
    monkeypatch.setattr(kernels, "SUITES", {"6.1": "bookworm"})
    archive.suites["bookworm"].append(SOURCE)
    archive.metas["bookworm", "linux-source"] = SOURCE.name
    git(tmp_path, "init", "-q")
    (tmp_path / "other").write_text("committed\n")
    git(tmp_path, "add", "kernels.lock", "other")
    git(tmp_path, "commit", "-q", "-m", "first")
    return module


def move_on(archive: FakeArchive) -> None:
    """The archive has a newer kernel."""
    archive.suites["bookworm"][0] = NEW
    archive.metas["bookworm", "linux-image-amd64"] = NEW.name


def test_the_newest_is_pinned_and_committed_alone(
    pins: ModuleType, archive: FakeArchive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    move_on(archive)
    (tmp_path / "other").write_text("staged\n")
    git(tmp_path, "add", "other")
    assert pins.main() == 0
    change = f"6.1: {OLD} -> {NEW}"
    assert change in capsys.readouterr().out.splitlines()
    assert git(tmp_path, "log", "-1", "--format=%B") == f"guest: newest kernels pinned\n\n{change}"
    assert git(tmp_path, "show", "--format=", "--name-only") == "kernels.lock"
    assert git(tmp_path, "status", "--porcelain") == "M  other"
    assert kernels.LOCK.read_text() == f"# comment\n6.1 {NEW.name} {NEW.version} {NEW.sha256}\n"
    assert kernels.pinned("6.1") == NEW
    # Version and checksum are those of the lists.
    assert archive.asked == ["update bookworm"]


def test_nothing_is_committed_when_all_are_the_newest(
    pins: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pins.main() == 0
    assert git(tmp_path, "log", "--format=%s") == "first"
    assert capsys.readouterr().out.splitlines() == [
        f"6.1: {OLD} is the newest of bookworm",
        f"base 6.1: {SOURCE} is the newest of bookworm",
    ]


@pytest.mark.parametrize("staged", [False, True])
def test_uncommitted_changes_are_refused_before_anything_else(
    pins: ModuleType,
    archive: FakeArchive,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    staged: bool,
) -> None:
    move_on(archive)
    write_lock(package("linux-image-6.1.0-0-amd64", "6.1.0-1"))
    edited = kernels.LOCK.read_text()
    if staged:
        git(tmp_path, "add", "kernels.lock")
    assert pins.main() == 1
    err = capsys.readouterr().err
    assert "error: kernels.lock has changes that are not committed" in err
    assert "hint: " in err
    assert (kernels.LOCK.read_text(), archive.asked) == (edited, [])
    assert git(tmp_path, "log", "--format=%s") == "first"


def test_an_archive_out_of_reach_changes_nothing(
    pins: ModuleType, archive: FakeArchive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    move_on(archive)
    archive.reachable = False
    assert pins.main() == 1
    assert "error: package lists of bookworm" in capsys.readouterr().err
    assert git(tmp_path, "status", "--porcelain", "--untracked-files=no") == ""


@pytest.mark.parametrize("kept", [False, True])
def test_bases_are_only_reported(
    pins: ModuleType, archive: FakeArchive, capsys: pytest.CaptureFixture[str], kept: bool
) -> None:
    newer = package("linux-source-6.2", "6.2.1-1")
    archive.suites["bookworm"][1:] = [newer, SOURCE] if kept else [newer]
    archive.metas["bookworm", "linux-source"] = newer.name
    before = (kernels.TOP / "kernel-patches/bases.lock").read_bytes()
    assert pins.main() == 0
    said = "is still in" if kept else "is no longer in"
    assert f"base 6.1: {SOURCE} {said} bookworm, the newest is {newer} (SHA-256 {newer.sha256})" in (
        capsys.readouterr().out
    )
    assert (kernels.TOP / "kernel-patches/bases.lock").read_bytes() == before


def test_a_commit_that_git_refuses_is_an_error(
    pins: ModuleType, archive: FakeArchive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    move_on(archive)
    hook = tmp_path / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho no >&2\nexit 1\n")
    hook.chmod(0o755)
    assert pins.main() == 1
    err = capsys.readouterr().err
    assert "error: git commit: no" in err and "hint: kernels.lock is renewed, though" in err
