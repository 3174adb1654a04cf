# SPDX-License-Identifier: GPL-2.0-only
"""Writing: full disks, read-only captures, users without privileges. Recorded data stays unchanged."""

import hashlib
import os
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from machinery.harness import nobody
from machinery.made_up.capture import write_capture
from machinery.pt_emulation.fixtures import unpack
from nsight_report.tables import seal

from .conftest import LAUNCHER, Run


def digest(directory: Path) -> dict[str, str]:
    """Content of every raw file of a capture."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.iterdir()
        if path.is_file()
    }


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB, which is unmounted afterwards."""
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
    """A directory that other users can reach (pytest's are private); files created meanwhile are readable for them."""
    directory = Path(tempfile.mkdtemp(prefix="nsight-test-"))
    directory.chmod(0o755)
    umask = os.umask(0o022)
    yield directory
    os.umask(umask)
    shutil.rmtree(directory)


def fill(disk: Path, leave: int) -> None:
    """Fill a file system up to ``leave`` bytes."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
    (disk / "ballast").write_bytes(b"x" * max(0, free - leave))


def test_full_disk_while_storing_tables_keeps_the_recorded_data(
    run: Run, small_disk: Path, capture: Path
) -> None:
    there = small_disk / "full.nsight"
    shutil.copytree(capture, there)  # shutil keeps timestamps, so stored stages stay fresh
    before = digest(there)
    fill(small_disk, 0)
    done = run(there, "--rerun", "attribution")
    assert done.returncode == 5, done.stderr
    assert done.stderr.count("error:") == 1
    assert "disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    assert digest(there) == before
    assert not list(there.rglob(".*.part")), "partial files were left behind"


@pytest.mark.slow
def test_full_disk_while_writing_the_report_leaves_no_half_files(
    run: Run, small_disk: Path, capture: Path
) -> None:
    before = digest(capture)
    fill(small_disk, 100_000)  # room for the first CSV, but not for all figures
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


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="root: needed to become another user")
def test_capture_of_root_is_analysed_by_nobody(run: Run, public: Path) -> None:
    capture = unpack.unpack("quiet", public) / "capture.nsight"
    output = public / "out"
    output.mkdir()
    output.chmod(0o777)
    as_root = run(capture)
    before = digest(capture)
    as_nobody = run(capture, "-o", output, wrap=nobody.command(), env={"HOME": "/nonexistent"})
    assert as_nobody.returncode == 0, as_nobody.stderr
    assert (output / "report.html").stat().st_uid == 65534
    shared = as_root.stdout.split("\nFigures and")[0]
    assert as_nobody.stdout.startswith(shared)
    assert digest(capture) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="root: needed to become another user")
def test_tables_that_another_user_made_are_not_believed(run: Run, public: Path) -> None:
    """The capture has no usable data: root sees its tables, but the user nobody does not."""
    capture = write_capture(public / "root.nsight")
    assert run(capture).returncode == 0
    done = run(capture, wrap=nobody.command())
    assert (done.returncode, "clock.tsv: not a recording" in done.stderr) == (3, True), done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="root: needed to become another user")
def test_stage_of_a_read_only_capture_is_stored_in_the_cache(run: Run, public: Path) -> None:
    """With tables that the user nobody made while it could write there."""
    capture = write_capture(public / "root.nsight")
    cache = public / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    key = public / "state/nsight/tables-65534.key"
    key.parent.mkdir(parents=True)
    key.write_bytes(seal._key())
    key.chmod(0o600)
    os.chown(key, 65534, 65534)
    env = {"XDG_CACHE_HOME": str(cache), "XDG_STATE_HOME": str(public / "state")}
    done = run(capture, "--rerun", "attribution", wrap=nobody.command(), env=env)
    assert done.returncode == 0, done.stderr
    assert [p.name for p in cache.rglob("causes.parquet")] == ["causes.parquet"]


@pytest.mark.skipif(os.geteuid() != 0, reason="root: needed to become another user")
def test_user_without_a_home_needs_none(run: Run, public: Path) -> None:
    """No HOME and no entry in /etc/passwd, as for a container's user."""
    capture = unpack.unpack("quiet", public) / "capture.nsight"
    user = ("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", "env", "-u", "HOME")
    done = run(capture, wrap=nobody.command(*user, "-u", "XDG_CACHE_HOME", "-u", "XDG_STATE_HOME"))
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="root: needed to become another user")
def test_unreadable_manifest_says_how_to_make_it_readable(run: Run, public: Path) -> None:
    capture = write_capture(public / "root.nsight")
    (capture / "manifest.json").chmod(0o600)
    done = run(capture, wrap=nobody.command())
    assert done.returncode == 3
    assert "not readable by this user" in done.stderr
    assert "chown" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="root: needed to become another user")
@pytest.mark.parametrize("closed", ["root.nsight", "."])
def test_capture_that_a_user_may_not_enter_says_how_to_make_it_readable(
    run: Run, public: Path, closed: str
) -> None:
    (public / "all").mkdir()
    capture = write_capture(public / "all/root.nsight")
    (public / "all" / closed).chmod(0o700)
    done = run(capture, wrap=nobody.command())
    assert done.returncode == 3, done.stderr
    assert "not readable by this user" in done.stderr


@pytest.mark.parametrize("option", ["--categories", "--intervals"])
def test_file_that_cannot_even_be_looked_at_is_an_error(run: Run, capture: Path, option: str) -> None:
    """As for a file in a directory that the user may not enter."""
    name = "a" * 300
    done = run(capture, option, name)
    assert done.returncode == 3, done.stderr
    assert "internal error" not in done.stderr
    assert name in done.stderr


def test_tables_that_are_a_symlink_are_neither_read_nor_written_through(
    run: Run, tmp_path: Path, capture: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.move(capture / "tables", elsewhere)
    (capture / "tables").symlink_to(elsewhere)
    before = {p.name: p.stat().st_mtime_ns for p in elsewhere.iterdir()}
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run(capture, "--rerun", "attribution", env=cache)
    # All stages must run, but this capture has no data for them.
    assert (done.returncode, "clock.tsv: not a recording" in done.stderr) == (3, True), done.stderr
    assert {p.name: p.stat().st_mtime_ns for p in elsewhere.iterdir()} == before


@pytest.mark.parametrize("form", ["folded", "chrome", "perfetto"])
def test_export_to_a_fifo_leaves_it_one_and_its_reader_gets_all(
    run: Run, capture: Path, tmp_path: Path, form: str
) -> None:
    argv = ("export", form, capture, "--messages", "200", "-o")
    assert run(*argv, tmp_path / "file").returncode == 0
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["cat", str(fifo)], stdout=subprocess.PIPE) as reader:
        try:
            done = run(*argv, fifo)
            assert done.returncode == 0, done.stderr
            assert fifo.is_fifo()
            assert reader.communicate(timeout=300)[0] == (tmp_path / "file").read_bytes()
        finally:
            reader.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="root: needed to make a device node")
def test_export_to_a_device_leaves_it_one(run: Run, capture: Path, tmp_path: Path) -> None:
    null = tmp_path / "null"  # a device node like /dev/null
    os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    done = run("export", "folded", capture, "-o", null)
    assert done.returncode == 0, done.stderr
    assert null.is_char_device()


def test_export_to_standard_output_has_nothing_else_there(run: Run, capture: Path, tmp_path: Path) -> None:
    link = tmp_path / "stdout"  # like /dev/stdout
    link.symlink_to("/proc/self/fd/1")
    run("export", "folded", capture, "-o", tmp_path / "file")
    piped = run("export", "folded", capture, "-o", link)
    assert piped.returncode == 0, piped.stderr
    assert piped.stdout == (tmp_path / "file").read_text()
    assert "flamegraph.pl draws it" in piped.stderr
    assert link.is_symlink()
    log = tmp_path / "log"  # output to a file is appended at its end
    log.write_text("before\n")
    with log.open("a") as to:
        subprocess.run([LAUNCHER, "export", "folded", capture, "-o", link], stdout=to, stderr=to, check=True)
    assert log.read_text().startswith(f"before\n{piped.stdout}")
    both = run("export", "folded", capture, "-o", link, "--json")
    assert both.returncode == 2
    assert "both are standard output" in both.stderr


def test_export_follows_a_symlink_and_replaces_what_it_leads_to(
    run: Run, capture: Path, tmp_path: Path
) -> None:
    disk, link = tmp_path / "disk", tmp_path / "link"
    disk.mkdir()
    link.symlink_to(disk / "stacks")
    for before in (None, "what was there before"):
        if before:
            (disk / "stacks").write_text(before)
        assert run("export", "folded", capture, "-o", link).returncode == 0
        assert link.is_symlink()
        assert (disk / "stacks").read_text().startswith("(A);")
        assert [p.name for p in disk.iterdir()] == ["stacks"]


def test_export_refuses_what_is_neither_a_file_nor_a_pipe(
    run: Run, capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        monkeypatch.chdir(
            tmp_path
        )  # a socket address is limited to 107 bytes, a directory name can be much longer
        bound.bind("socket")
        done = run("export", "folded", capture, "-o", tmp_path / "socket")
        assert done.returncode == 5
        assert "it is neither a file nor a pipe" in done.stderr
        assert (tmp_path / "socket").is_socket()


@pytest.mark.parametrize("command", [["top"], ["show"], []])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_reader_that_goes_away_is_no_error(capture: Path, command: list[str], options: list[str]) -> None:
    done = subprocess.run(
        [
            "bash",
            "-o",
            "pipefail",
            "-c",
            '"$@" | true',
            "bash",
            str(LAUNCHER),
            *command,
            str(capture),
            *options,
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_without_its_packages_the_launcher_names_the_fix(tmp_path: Path) -> None:
    """A copy outside the project has no .venv next to it; -S -I hides installed packages."""
    bare = tmp_path / "tools/nsight-report"
    bare.mkdir(parents=True)
    shutil.copy(LAUNCHER, bare / "nsight-report")
    done = subprocess.run(
        ["/usr/bin/python3", "-S", "-I", str(bare / "nsight-report"), "x"], capture_output=True, text=True
    )
    assert done.returncode == 4
    assert "not installed: numpy" in done.stderr
    assert "make" in done.stderr.splitlines()[1]
