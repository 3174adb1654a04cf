# SPDX-License-Identifier: GPL-2.0-only
"""Guest kernels are the pinned ones, or the newest with a warning. A wrong package is refused. Both kinds are reused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import kernels
import pytest
from fake_archive import FakeArchive, archive, package, write_lock

__all__ = ["archive"]

PINNED = package("linux-image-6.1.0-1-amd64", "6.1.1-1")
NEWEST = package("linux-image-6.1.0-2-amd64", "6.1.2-1")


def drop_the_pinned(archive: FakeArchive) -> None:
    """The archive goes on to the next version."""
    archive.suites["bookworm"] = [NEWEST]
    archive.metas["bookworm", "linux-image-amd64"] = NEWEST.name


def test_every_series_is_pinned() -> None:
    for series in kernels.SUITES:
        pin = kernels.pinned(series)
        assert pin.name.startswith("linux-image-" if series == "newest" else f"linux-image-{series}.")
        assert len(pin.sha256) == 64


def test_a_series_without_a_pin_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "kernels.lock").write_text("# nothing\n")
    with pytest.raises(kernels.GuestError, match=r"no kernel 6\.1 .*hint"):
        kernels.pinned("6.1", tmp_path / "kernels.lock")


def test_the_pinned_package_is_taken(archive: FakeArchive, capsys: pytest.CaptureFixture[str]) -> None:
    # As in a suite that keeps old versions: another is newer.
    archive.suites["bookworm"].insert(0, NEWEST)
    archive.metas["bookworm", "linux-image-amd64"] = NEWEST.name
    kernel = kernels.fetch("6.1")
    assert (kernel.release, kernel.pinned) == (PINNED.name, True)
    assert capsys.readouterr().err == ""


def test_another_content_is_refused(archive: FakeArchive) -> None:
    write_lock(replace(PINNED, sha256="0" * 64))
    with pytest.raises(kernels.GuestError, match="SHA-256"):
        kernels.fetch("6.1")
    assert not (kernels.BUILD / "6.1/done").exists()


def test_the_newest_comes_when_the_archive_dropped_the_pinned(
    archive: FakeArchive, capsys: pytest.CaptureFixture[str]
) -> None:
    drop_the_pinned(archive)
    kernel = kernels.fetch("6.1")
    assert (kernel.release, kernel.pinned) == (NEWEST.name, False)
    said = capsys.readouterr().err
    assert f"names {PINNED}, which the archive dropped: 6.1 is {NEWEST} (hint: make pins" in said
    # What was requested, and what was downloaded: never one under the checksum of the other.
    done = json.loads((kernels.BUILD / "6.1/done").read_text())
    assert done == {
        "format": kernels.FORMAT,
        "series": "6.1",
        "pin": {"name": PINNED.name, "version": PINNED.version, "sha256": PINNED.sha256},
        "came": {"name": NEWEST.name, "version": NEWEST.version, "sha256": NEWEST.sha256},
    }


def split(archive: FakeArchive, *kinds: str) -> None:
    """The pinned kernel consists of packages of these kinds. The archive has them in its version and in another one."""
    names = [PINNED.name.replace("image", kind) for kind in kinds]
    archive.suites["bookworm"] += [package(name, v) for name in names for v in ("6.1.0-9", PINNED.version)]
    archive.metas["bookworm", PINNED.name] = "\n  Depends: ".join(names)


def test_a_kernel_in_several_packages_is_put_together(archive: FakeArchive) -> None:
    split(archive, "base", "binary", "modules")
    archive.asked.clear()
    kernels.fetch("6.1")
    came = [line.removeprefix("download ") for line in archive.asked if line.startswith("download")]
    assert came == [
        f"linux-{kind}-6.1.0-1-amd64={PINNED.version}" for kind in ("image", "base", "binary", "modules")
    ]
    kernel = kernels.fetch("6.1")
    assert kernel.image == kernel.modules / kernel.release / "vmlinuz"
    assert len(list(kernel.modules.iterdir())) == 4  # each fake package has a directory of its own


def test_a_kernel_of_which_a_package_is_missing_is_refused(archive: FakeArchive) -> None:
    split(archive, "binary", "modules")
    archive.suites["bookworm"] = [p for p in archive.suites["bookworm"] if "modules" not in p.name]
    with pytest.raises(kernels.GuestError, match=r"lacks one of .*linux-modules-.*hint"):
        kernels.fetch("6.1")
    assert not (kernels.BUILD / "6.1").exists()


@pytest.mark.parametrize("dropped", [False, True])
def test_a_second_run_needs_no_network(
    archive: FakeArchive, capsys: pytest.CaptureFixture[str], dropped: bool
) -> None:
    if dropped:
        drop_the_pinned(archive)
    first, said = kernels.fetch("6.1"), capsys.readouterr().err
    archive.asked.clear()
    archive.reachable = False
    assert kernels.fetch("6.1") == first
    assert archive.asked == []
    assert capsys.readouterr().err == said  # it warns again, or is silent again
    assert bool(said) == dropped


def test_an_edited_pin_is_followed(archive: FakeArchive) -> None:
    kernels.fetch("6.1")
    drop_the_pinned(archive)
    write_lock(NEWEST)
    kernel = kernels.fetch("6.1")
    assert (kernel.release, kernel.pinned) == (NEWEST.name, True)


def test_a_pin_that_cannot_be_fetched_leaves_what_is_there(archive: FakeArchive) -> None:
    first = kernels.fetch("6.1")
    archive.reachable = False
    write_lock(NEWEST)
    with pytest.raises(kernels.GuestError):
        kernels.fetch("6.1")
    write_lock(PINNED)
    assert kernels.fetch("6.1") == first


@pytest.mark.parametrize("old", [PINNED.sha256, "", "{}", "1e9", json.dumps({"came": {"version": "1"}})])
def test_a_tree_of_an_older_format_is_fetched_anew(archive: FakeArchive, old: str) -> None:
    stale = kernels.BUILD / "6.1/lib/modules/stale"
    stale.mkdir(parents=True)
    (kernels.BUILD / "6.1/done").write_text(old)
    assert kernels.fetch("6.1").release == PINNED.name
    assert not stale.exists()


def test_a_raised_format_fetches_anew(archive: FakeArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels.fetch("6.1")
    archive.asked.clear()
    monkeypatch.setattr(kernels, "FORMAT", kernels.FORMAT + 1)
    kernels.fetch("6.1")
    assert archive.asked == ["update bookworm", f"download {PINNED.name}={PINNED.version}"]


def test_an_archive_out_of_reach_is_no_dropped_package(
    archive: FakeArchive, capsys: pytest.CaptureFixture[str]
) -> None:
    archive.reachable = False
    with pytest.raises(kernels.GuestError, match=r"package lists of bookworm: .*reachable"):
        kernels.fetch("6.1")
    assert "dropped" not in capsys.readouterr().err


def test_a_failed_download_is_no_dropped_package(archive: FakeArchive) -> None:
    archive.suites["bookworm"].insert(0, NEWEST)
    archive.metas["bookworm", "linux-image-amd64"] = NEWEST.name
    archive.missing.add(f"{PINNED.name}={PINNED.version}")
    with pytest.raises(kernels.GuestError, match=r"linux-image-6.1.0-1-amd64 6.1.1-1: .*reachable"):
        kernels.fetch("6.1")
    assert not (kernels.BUILD / "6.1/done").exists()
