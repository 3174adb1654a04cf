# SPDX-License-Identifier: GPL-2.0-only
"""Real recordings: what nsight-record does around its recorders, with the default recorder."""

import os
import signal
import subprocess

import pytest
from recorder_run import (
    SUDO,
    EchoServer,
    Running,
    manifest,
    owners,
    record,
    require_live,
    tool_pids,
    wait_gone,
)

from conftest import skip_or_fail

pytestmark = pytest.mark.live


@pytest.fixture(scope="module", autouse=True)
def live():
    require_live("bpf")


@pytest.fixture(scope="module")
def echo():
    server = EchoServer()
    yield server
    server.close()


def test_duration_is_kept(tmp_path):
    code, said = record(tmp_path / "a.nsight", "-d", "1")
    m = manifest(tmp_path / "a.nsight")
    assert code == 0, said
    assert (m["state"], m["stopped_by"], m["cut"]) == ("complete", "duration", [])
    assert m["stop"]["monotonic_ns"] - m["start"]["monotonic_ns"] >= 1_000_000_000


def test_recording_lasts_as_long_as_the_command(tmp_path):
    code, said = record(tmp_path / "a.nsight", "--", "sh", "-c", "echo from the command; exit 7")
    m = manifest(tmp_path / "a.nsight")
    assert code == 0, said
    assert (m["state"], m["stopped_by"], m["command_exit"]) == ("complete", "command", 7)
    assert "from the command" in said


ANY_UMASK = ("sh", "-c", 'umask 0002; exec "$@"', "sh")


def test_capture_under_sudo_is_private_and_the_users_and_the_command_keeps_its_surroundings(tmp_path):
    command = tmp_path / "bin/own-command"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\numask >{tmp_path}/umask\n")
    command.chmod(0o755)
    prefix = (*SUDO, f"PATH={command.parent}:{os.environ['PATH']}", *ANY_UMASK)
    code, said = record(tmp_path / "a.nsight", "--", "own-command", prefix=prefix)
    assert code == 0, said
    found = owners(tmp_path / "a.nsight")
    assert len(found) > 5
    assert {who for who, _ in found} == {(65534, 65533)}
    assert {mode for _, mode in found} == {0o700, 0o600}
    assert (tmp_path / "umask").read_text() == "0002\n"
    assert (tmp_path / "umask").stat().st_uid == 0


def test_cut_capture_under_sudo_is_the_users_too(tmp_path):
    running = Running(tmp_path / "a.nsight", prefix=SUDO)
    m = running.wait_recording()
    os.kill(m["tools"]["clock"]["pid"], signal.SIGKILL)
    _, err = running.end()
    assert running.process.returncode == 5, err
    assert {who for who, _ in owners(tmp_path / "a.nsight")} == {(65534, 65533)}


def test_capture_is_private_while_it_is_written_and_roots_after_kill_9(tmp_path):
    running = Running(tmp_path / "a.nsight", prefix=(*SUDO, *ANY_UMASK))
    m = running.wait_recording()
    assert owners(tmp_path / "a.nsight")[0] == ((0, 0), 0o700)
    assert not [mode for _, mode in owners(tmp_path / "a.nsight") if mode & 0o077]
    running.process.kill()
    running.end()
    assert wait_gone(tool_pids(m)) == []
    assert {who for who, _ in owners(tmp_path / "a.nsight")} == {(0, 0)}
    assert not [mode for _, mode in owners(tmp_path / "a.nsight") if mode & 0o077]


def test_recording_goes_where_it_began_when_somebody_puts_a_link_there(tmp_path):
    (tmp_path / "victim").mkdir()
    running = Running(tmp_path / "a.nsight")
    running.wait_for((tmp_path / "a.nsight/manifest.json").exists, "write its manifest")
    (tmp_path / "a.nsight").rename(tmp_path / "moved")
    (tmp_path / "a.nsight").symlink_to(tmp_path / "victim")
    running.directory = tmp_path / "moved"
    running.wait_recording()
    running.process.send_signal(signal.SIGINT)
    _, err = running.end()
    assert running.process.returncode == 130, err
    assert list((tmp_path / "victim").iterdir()) == []
    assert manifest(tmp_path / "moved")["state"] == "complete"


def test_packets_are_stored_only_on_request(tmp_path, echo):
    code, said = record(tmp_path / "without.nsight", "--port", str(echo.port), "--", *echo.client(20))
    assert code == 0, said
    assert not (tmp_path / "without.nsight/payload.pcap").exists()
    if subprocess.run(["which", "tcpdump"], capture_output=True).returncode:
        skip_or_fail("tcpdump", "tcpdump is not installed")
    options = ("--port", str(echo.port), "--payload", "120", "--", *echo.client(20))
    code, said = record(tmp_path / "a.nsight", *options)
    assert code == 0, said
    data = (tmp_path / "a.nsight/payload.pcap").read_bytes()
    # 20 requests and 20 answers, also those of the last second; 48 bytes of each are stored; libpcap shows it once on loopback.
    assert data.count(b"x" * 48) == 40
