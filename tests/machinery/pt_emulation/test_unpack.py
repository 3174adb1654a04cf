# SPDX-License-Identifier: GPL-2.0-only
"""Committed captures are unpacked once for all tests, and each test writes to a separate copy."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from machinery.pt_emulation.fixtures import unpack


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only fixture, "small", with one file."""
    monkeypatch.setattr(unpack, "HERE", tmp_path)
    monkeypatch.setattr(unpack, "CACHE", tmp_path / "cache")
    return pack(tmp_path / "small.tar.xz", "as committed")


def pack(path: Path, text: str) -> Path:
    directory = path.parent / "small"
    directory.mkdir(exist_ok=True)
    (directory / "file").write_text(text)
    with tarfile.open(path, "w:xz") as tar:
        tar.add(directory, "small")
    return path


def test_what_a_test_writes_nobody_else_reads(archive: Path, tmp_path: Path) -> None:
    first = unpack.unpack("small", tmp_path / "a")
    (first / "file").write_text("changed")
    (first / "more").write_text("added")
    second = unpack.unpack("small", tmp_path / "b")
    assert [p.name for p in second.iterdir()] == ["file"]
    assert (second / "file").read_text() == "as committed"


def test_an_archive_is_unpacked_once(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = []
    monkeypatch.setattr(unpack, "_extract", lambda *a, f=unpack._extract: (times.append(a), f(*a)))
    for name in "abc":
        unpack.unpack("small", tmp_path / name)
    assert len(times) == 1


def test_another_content_is_unpacked_anew_and_replaces_the_old(archive: Path, tmp_path: Path) -> None:
    unpack.unpack("small", tmp_path / "a")
    pack(archive, "another")
    assert (unpack.unpack("small", tmp_path / "b") / "file").read_text() == "another"
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_what_another_process_unpacked_meanwhile_stays(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = unpack.shared("small")
    (made / "in use").touch()
    looked: list[Path] = []
    exists = Path.exists

    def late(path: Path) -> bool:
        """At the first look it is not there yet."""
        if path == made and not looked:
            looked.append(path)
            return False
        return exists(path)

    monkeypatch.setattr(Path, "exists", late)
    assert unpack.shared("small") == made
    assert (made / "in use").exists()


def test_links_and_paths_that_lead_out_are_refused(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive, "w:xz") as tar:
        link = tarfile.TarInfo("small/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(ValueError, match=r"small/link is no plain file of a fixture"):
        unpack.unpack("small", tmp_path / "a")
    assert not (tmp_path / "a").exists()
