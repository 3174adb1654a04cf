# SPDX-License-Identifier: GPL-2.0-only
"""As root, programs come only from directories that root alone owns; the caller's PATH does not matter."""

import os
import subprocess
import sys

import pytest
from nsight_record import preflight, programs
from nsight_record.child import Child
from nsight_record.machine import Machine

from conftest import ROOT, skip_or_fail

RECORDER = ROOT / "tools/nsight-record/nsight-record"


@pytest.fixture
def root():
    if os.geteuid() != 0:
        skip_or_fail("root", "only root runs programs for root")


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_directories_that_others_can_write_to_are_left_out(tmp_path, root):
    tmp_path.chmod(0o755)
    names = ("good", "by-all", "by-group", "by-roots-group", "a-users", "sticky", "a-users/below", "gone")
    directories = {name: tmp_path / name for name in names}
    for name in names[:-1]:
        directories[name].mkdir()
        directories[name].chmod(0o755)
    directories["by-all"].chmod(0o757)
    directories["by-group"].chmod(0o775)
    os.chown(directories["by-group"], 0, 50)
    directories["by-roots-group"].chmod(0o775)
    os.chown(directories["a-users"], 1000, 0)
    directories["sticky"].chmod(0o1777)
    (tmp_path / "link").symlink_to(directories["by-all"])
    kept = programs.trusted([str(d) for d in (*directories.values(), tmp_path / "link")]).split(":")
    assert [d.rpartition("/")[2] for d in kept] == ["good", "by-roots-group"]


def test_this_machine_has_trusted_directories(root):
    assert "/usr/bin" in programs.trusted().split(":")
    assert Machine().path == programs.trusted()


def test_program_on_the_callers_path_is_not_run_as_root(tmp_path, root):
    for name in ("perf", "bpftrace", "tcpdump", "ip", "mount"):
        program(tmp_path / "bin" / name, f"touch {tmp_path}/ran-{name}; exit 0")
    env = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    argv = [sys.executable, RECORDER, "--preflight", "--payload"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 4), done.stderr
    assert [p.name for p in tmp_path.glob("ran-*")] == []


def test_program_that_is_only_elsewhere_is_named_with_where_it_is(tmp_path):
    program(tmp_path / "bin/perf", "")
    machine = Machine(path=str(tmp_path), callers_path=str(tmp_path / "bin"), euid=0)
    found = preflight.check(machine, preflight.Request(mode="tracepoints", capture_parent=tmp_path))
    assert any(f.what.startswith(f"perf is only at {tmp_path}/bin/perf; as root") for f in found)


def test_version_is_that_of_the_program_that_is_run(tmp_path):
    program(tmp_path / "perf", "echo mine $PATH")
    assert Machine(path=f"{tmp_path}:/bin").version_of(["perf", "--version"]) == (0, f"mine {tmp_path}:/bin")
    assert Machine(path=str(tmp_path)).version_of(["no-such"])[0] == 127


def test_child_is_looked_for_where_it_is_told_and_looks_there(tmp_path, monkeypatch):
    program(tmp_path / "good/tool", "helper")
    program(tmp_path / "good/helper", "echo good")
    program(tmp_path / "bad/tool", "echo bad")
    program(tmp_path / "bad/helper", "echo bad")
    monkeypatch.setenv("PATH", f"{tmp_path}/bad:{os.environ['PATH']}")
    child = Child("tool", ["tool"], tmp_path / "log", path=f"{tmp_path}/good")
    child.release()
    assert child.wait(300) == 0
    assert (tmp_path / "log").read_text() == "good\n"


def test_child_that_is_nowhere_says_so(tmp_path):
    child = Child("tool", ["no-such-tool"], tmp_path / "log", path=str(tmp_path))
    child.release()
    assert child.wait(300) == 127
    assert "cannot start no-such-tool" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("reason 1 A\nreason 2 B\nerror: no space\nhint: free some\n", "error: no space; hint: free some"),
        ("one\ntwo\nthree\nfour\n", "two; three; four"),
    ],
)
def test_end_of_a_log_is_its_error_without_what_came_before(tmp_path, said, kept):
    (tmp_path / "log").write_text(said)
    child = Child("true", ["true"], tmp_path / "log")
    child.release()
    child.wait(300)
    assert child.log_tail() == kept
