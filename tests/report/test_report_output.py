# SPDX-License-Identifier: GPL-2.0-only
"""Writing: full disks, read-only captures, users without privileges. Recorded data stays as it was."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Run
from .synthetic import write_capture

NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")


def digest(directory: Path) -> dict[str, str]:
    """Content of every raw file of a capture."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.iterdir()
        if path.is_file()
    }


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB that is unmounted again."""
    if os.geteuid() != 0:
        from conftest import skip_or_fail

        skip_or_fail("root", "mounting a small file system needs root")
    directory = tmp_path / "disk"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(directory)], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Path]:
    """A directory that other users can reach (pytest's own are private)."""
    directory = Path(tempfile.mkdtemp(prefix="nsight-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def fill(disk: Path, leave: int) -> None:
    """Fill a file system up to ``leave`` bytes."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
    (disk / "ballast").write_bytes(b"x" * max(0, free - leave))


def test_full_disk_while_storing_tables_keeps_the_recorded_data(
    run: Run, small_disk: Path, capture: Path
) -> None:
    there = small_disk / "full.nsight"
    shutil.copytree(capture, there)  # shutil keeps times, so that stored stages stay fresh
    before = digest(there)
    fill(small_disk, 0)
    done = run(there, "--rerun", "attribution")
    assert done.returncode == 5, done.stderr
    assert done.stderr.count("error:") == 1
    assert "disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    assert digest(there) == before
    assert not list(there.rglob(".*.part")), "partial files were left behind"


def test_full_disk_while_writing_the_report_leaves_no_half_files(
    run: Run, small_disk: Path, capture: Path
) -> None:
    before = digest(capture)
    fill(small_disk, 100_000)  # room for the first CSV, not for all figures
    done = run(capture, "-o", small_disk / "report")
    assert done.returncode == 5, done.stderr
    assert "disk is full" in done.stderr
    assert done.stdout == ""
    assert digest(capture) == before
    assert not list(small_disk.rglob(".*.part"))
    assert not (small_disk / "report/report.html").exists()


def test_output_directory_that_cannot_be_made(run: Run, capture: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = run(capture, "-o", tmp_path / "file/report")
    assert done.returncode == 5
    assert done.stderr.splitlines()[0].startswith("error: ")
    assert done.stderr.splitlines()[1].startswith("hint: ")
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="root: needed to become another user")
def test_capture_of_root_is_analysed_by_nobody(run: Run, public: Path) -> None:
    capture = write_capture(public / "root.nsight")
    output = public / "out"
    output.mkdir()
    output.chmod(0o777)
    before = digest(capture)
    as_root = run(capture)
    as_nobody = run(capture, "-o", output, wrap=NOBODY, env={"HOME": "/nonexistent"})
    assert as_nobody.returncode == 0, as_nobody.stderr
    assert (output / "report.html").stat().st_uid == 65534
    shared = as_root.stdout.split("\nFigures and")[0]
    assert as_nobody.stdout.startswith(shared)
    assert digest(capture) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="root: needed to become another user")
def test_stage_of_a_read_only_capture_is_stored_in_the_cache(run: Run, public: Path) -> None:
    capture = write_capture(public / "root.nsight")
    cache = public / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    done = run(capture, "--rerun", "attribution", wrap=NOBODY, env={"XDG_CACHE_HOME": str(cache)})
    assert done.returncode == 0, done.stderr
    assert [p.name for p in cache.rglob("causes.parquet")] == ["causes.parquet"]


@pytest.mark.skipif(os.geteuid() != 0, reason="root: needed to become another user")
def test_unreadable_manifest_says_how_to_make_it_readable(run: Run, public: Path) -> None:
    capture = write_capture(public / "root.nsight")
    (capture / "manifest.json").chmod(0o600)
    done = run(capture, wrap=NOBODY)
    assert done.returncode == 3
    assert "not readable by this user" in done.stderr
    assert "chmod" in done.stderr


def test_tables_that_are_a_symlink_are_not_written_through(run: Run, tmp_path: Path, capture: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.move(capture / "tables", elsewhere)
    (capture / "tables").symlink_to(elsewhere)
    before = {p.name: p.stat().st_mtime_ns for p in elsewhere.iterdir()}
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run(capture, "--rerun", "attribution", env=cache)
    assert done.returncode == 0, done.stderr
    assert {p.name: p.stat().st_mtime_ns for p in elsewhere.iterdir()} == before


def test_reader_that_goes_away_is_no_error(capture: Path) -> None:
    from .conftest import LAUNCHER

    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", '"$0" "$1" --json | true', str(LAUNCHER), str(capture)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_without_its_packages_the_launcher_names_the_cure(tmp_path: Path) -> None:
    """A copy outside the project has no .venv beside it; -S -I hides what is installed."""
    from .conftest import LAUNCHER

    bare = tmp_path / "tools/nsight-report"
    bare.mkdir(parents=True)
    shutil.copy(LAUNCHER, bare / "nsight-report")
    done = subprocess.run(
        ["/usr/bin/python3", "-S", "-I", str(bare / "nsight-report"), "x"], capture_output=True, text=True
    )
    assert done.returncode == 4
    assert "not installed: numpy" in done.stderr
    assert "make" in done.stderr.splitlines()[1]
