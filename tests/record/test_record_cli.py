# SPDX-License-Identifier: GPL-2.0-only
"""The command: one clear error with its fix and exit code, and nothing left behind."""

import os
import shutil
import subprocess
import sys
import threading

import pytest
from machinery.harness import nobody
from nsight_record import cli, netns
from nsight_record.errors import Usage
from nsight_record.machine import Machine

from conftest import ROOT, skip_or_fail

RECORDER = ROOT / "tools/nsight-record/nsight-record"


def run(*options, prefix=(), **more):
    done = subprocess.run(
        [*prefix, sys.executable, str(RECORDER), *map(str, options)],
        capture_output=True,
        text=True,
        timeout=120,
        **more,
    )
    assert "Traceback" not in done.stderr
    return done


def needs_root():
    if os.geteuid() != 0:
        skip_or_fail("root", "needs root")


@pytest.mark.parametrize("options", [["-d", "0"], ["-d", "x"], ["--port", "65536"], ["--cpus", "3-1"]])
def test_impossible_value_is_wrong_usage(options):
    done = run(*options)
    assert done.returncode == 2
    assert "error: argument" in done.stderr


@pytest.mark.parametrize("option", [["--syscalls", "waits"], ["--compress"]])
def test_options_of_the_bpf_recorder_are_refused_with_the_other_one(tmp_path, option):
    done = run("-o", tmp_path / "a.nsight", "--recorder", "bpftrace", *option)
    assert done.returncode == 2
    assert f"{option[0]} needs recorder bpf" in done.stderr


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--netns", "no-such-space"], "no such network namespace"),
        (["--iface", "nope0"], "no such interface"),
        (["--cgroup", "/no/such"], "no such cgroup"),
        (["--lwip", "/no/such"], "no such file"),
        (["--", "/no/such"], "not found"),
        (["--pid", "4194305"], "no such process"),  # above the largest possible pid
    ],
)
def test_name_of_nothing_is_wrong_usage(tmp_path, options, what):
    done = run("-o", tmp_path / "a.nsight", *options)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {' '.join(options).removeprefix('-- ')}")
    assert what in done.stderr
    assert not (tmp_path / "a.nsight").exists()


def test_a_thread_is_no_process(tmp_path):
    ready, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (ready.set(), end.wait()))
    thread.start()
    try:
        done = run("-o", tmp_path / "a.nsight", "--pid", str(thread.native_id))
    finally:
        end.set()
        thread.join()
    assert (done.returncode, f"hint: give --pid {os.getpid()}" in done.stderr) == (2, True)


def test_user_without_root_is_told_to_use_sudo(tmp_path):
    needs_root()
    if not shutil.which("setpriv"):
        pytest.skip("setpriv is not installed")
    tmp_path.chmod(0o777)
    done = subprocess.run(
        [*nobody.command(), "/usr/bin/python3", str(RECORDER), "-o", str(tmp_path / "a.nsight")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 4
    assert "error: not root" in done.stderr
    assert "hint: run it with sudo" in done.stderr
    assert not (tmp_path / "a.nsight").exists()


def test_absent_programs_are_all_named_at_once(tmp_path, capsys):
    needs_root()
    machine = Machine(path=str(tmp_path), callers_path="")
    argv = ["-o", str(tmp_path / "a.nsight"), "-d", "1", "--recorder", "bpftrace"]
    assert cli.main(argv, machine) == 4
    said = capsys.readouterr().err
    assert "error: perf is not installed" in said
    assert "error: bpftrace is not installed" in said
    assert not (tmp_path / "a.nsight").exists()


def test_unwritable_place_is_an_output_error():
    needs_root()
    done = run("-o", "/proc/a.nsight", "-d", "1")
    assert done.returncode == 5
    assert "choose another place" in done.stderr or "hint: choose" in done.stderr


def test_existing_capture_is_not_overwritten_without_force(tmp_path):
    needs_root()
    (tmp_path / "a.nsight").mkdir()
    (tmp_path / "a.nsight/manifest.json").write_text("{}")
    done = run("-o", tmp_path / "a.nsight", "-d", "1")
    assert "Traceback" not in done.stderr
    assert done.returncode in (4, 5)
    assert (tmp_path / "a.nsight/manifest.json").read_text() == "{}"


def test_help_documents_every_exit_code():
    text = run("--help").stdout
    for code in (0, 2, 4, 5, 130):
        assert f"\n  {code:<4} " in text


def test_namespace_is_found_by_process_and_by_inode_number():
    mine = os.stat("/proc/self/ns/net").st_ino
    assert netns.find(str(os.getpid())).inum == mine
    assert netns.find(str(mine)).path is not None


def test_namespace_without_a_name_or_process_is_known_by_number_only():
    # 4294967295 is the largest inode number; namespaces count up from 4026531840.
    assert netns.find("4294967295").path is None
    with pytest.raises(Usage, match="no such network namespace"):
        netns.find("blue")


def test_ctrl_c_while_it_starts_ends_it_without_a_traceback(tmp_path):
    """Loading its modules takes a second on a busy machine."""
    shutil.copy(ROOT / "tools/nsight-record/nsight-record", tmp_path)
    (tmp_path / "nsight_record").mkdir()
    (tmp_path / "nsight_record/__init__.py").touch()
    (tmp_path / "nsight_record/cli.py").write_text("raise KeyboardInterrupt\n")
    done = subprocess.run([sys.executable, tmp_path / "nsight-record"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
