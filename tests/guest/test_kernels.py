# SPDX-License-Identifier: GPL-2.0-only
"""Guest kernels are the pinned ones, or the newest with a warning; a wrong package is refused."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

import kernels
import pytest

DEB = b"a package"
SHA = hashlib.sha256(DEB).hexdigest()


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What apt-get can download; the pinned package and version unless a test takes it away."""
    has = {"linux-image-1=1.0"}

    def run(argv: list[str], cwd: Path, **_: Any) -> subprocess.CompletedProcess[bytes]:
        name = argv[-1]
        if name in has:
            (cwd / f"{name}.deb").write_bytes(DEB)
        return subprocess.CompletedProcess(argv, 0 if name in has else 100)

    monkeypatch.setattr(kernels.subprocess, "run", run)
    monkeypatch.setattr(kernels, "_image_package", lambda options: "linux-image-2")
    return has


def test_every_series_is_pinned() -> None:
    for series in kernels.SUITES:
        pin = kernels.pinned(series)
        assert pin.package.startswith(f"linux-image-{series}.")
        assert len(pin.sha256) == 64


def test_a_series_without_a_pin_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "kernels.lock").write_text("# nothing\n")
    with pytest.raises(kernels.GuestError, match=r"no kernel 6\.1 .*hint"):
        kernels.pinned("6.1", tmp_path / "kernels.lock")


def test_the_pinned_package_is_taken(
    archive: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive.add("linux-image-2")
    deb = kernels._fetch_deb(kernels.Pin("linux-image-1", "1.0", SHA), [], tmp_path)
    assert deb.name == "linux-image-1=1.0.deb"
    assert capsys.readouterr().err == ""


def test_another_content_is_refused(archive: set[str], tmp_path: Path) -> None:
    with pytest.raises(kernels.GuestError, match="SHA-256"):
        kernels._fetch_deb(kernels.Pin("linux-image-1", "1.0", "0" * 64), [], tmp_path)


def test_the_newest_comes_when_the_archive_dropped_the_pinned(
    archive: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive.clear()
    archive.add("linux-image-2")
    deb = kernels._fetch_deb(kernels.Pin("linux-image-1", "1.0", SHA), [], tmp_path)
    assert deb.name == "linux-image-2.deb"
    assert "no longer has linux-image-1 1.0" in capsys.readouterr().err
