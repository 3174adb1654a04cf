# SPDX-License-Identifier: GPL-2.0-only
"""Kernel sources are the pinned ones or none. They are imported again only when the pin or the format changes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import kernels
import pytest
from fake_archive import FakeArchive, archive, package

sys.path.insert(0, str(kernels.TOP / "kernel-patches"))
import sources

__all__ = ["archive"]

PINNED = package("linux-source-6.1", "6.1.1-1")
BASE = sources.Base("6.1", "bookworm", PINNED.name, PINNED.version, PINNED.sha256, "c0ffee")


@pytest.fixture
def imports(archive: FakeArchive, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The commits that imports should result in; the unpacked content is not checked."""

    class Finished:
        stdout = None

        def __init__(self, *_: object, **__: object) -> None: ...

        def wait(self) -> int:
            return 0

    commits = ["c0ffee"]
    archive.suites["bookworm"] = [PINNED]
    monkeypatch.setattr(sources, "BUILD", tmp_path)
    monkeypatch.setattr(sources, "_import", lambda base: commits.pop(0))
    monkeypatch.setattr(sources.subprocess, "Popen", Finished)
    return commits


def test_a_second_run_needs_no_network(archive: FakeArchive, imports: list[str]) -> None:
    sources.fetch(BASE)
    archive.reachable = False
    sources.fetch(BASE)
    assert archive.asked == ["update bookworm", "download linux-source-6.1=6.1.1-1"]


@pytest.mark.parametrize("old", [PINNED.sha256, ""])
def test_an_import_of_an_older_format_is_made_anew(
    archive: FakeArchive, imports: list[str], tmp_path: Path, old: str
) -> None:
    (tmp_path / "6.1").mkdir()
    (tmp_path / "6.1/done").write_text(old)
    sources.fetch(BASE)
    assert len(archive.asked) == 2


def test_an_edited_base_is_followed(archive: FakeArchive, imports: list[str]) -> None:
    sources.fetch(BASE)
    newer = package("linux-source-6.1", "6.1.2-1")
    archive.suites["bookworm"] = [newer]
    imports.append("decade")
    sources.fetch(replace(BASE, version=newer.version, sha256=newer.sha256, commit="decade"))
    assert archive.asked[-1] == "download linux-source-6.1=6.1.2-1"


def test_a_dropped_base_is_an_error_and_leaves_nothing(
    archive: FakeArchive, imports: list[str], tmp_path: Path
) -> None:
    archive.suites["bookworm"] = [package("linux-source-6.1", "6.1.2-1")]
    with pytest.raises(sources.PatchError, match=r"the archive has no linux-source-6.1 6.1.1-1 .*hint"):
        sources.fetch(BASE)
    assert not (tmp_path / "6.1/done").exists()


def test_an_archive_out_of_reach_is_no_dropped_base(archive: FakeArchive, imports: list[str]) -> None:
    archive.reachable = False
    with pytest.raises(kernels.GuestError, match="reachable"):
        sources.fetch(BASE)


def test_another_import_is_an_error_and_leaves_nothing(imports: list[str], tmp_path: Path) -> None:
    imports[:] = ["another"]
    with pytest.raises(sources.PatchError, match=r"commit another, bases.lock says c0ffee"):
        sources.fetch(BASE)
    assert not (tmp_path / "6.1/done").exists()
