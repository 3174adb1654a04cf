# SPDX-License-Identifier: GPL-2.0-only
"""Real recordings of loopback traffic by bpftrace and perf: what a capture holds, however the recording ends."""

import functools
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
import recorder_run
from bpftrace.probe_run import MESSAGE_FIELDS
from machinery.harness.judged import judge
from recorder_run import (
    END_S,
    NO_TRACEFS,
    RECORDER,
    SMALL_DISK,
    EchoServer,
    fill,
    manifest,
    perf_script,
    require_live,
    tool_pids,
    wait_gone,
)

record = functools.partial(recorder_run.record, recorder="bpftrace")
Running = functools.partial(recorder_run.Running, recorder="bpftrace")

pytestmark = pytest.mark.live


@pytest.fixture(scope="module", autouse=True)
def live():
    require_live("bpftrace")


@pytest.fixture(scope="module")
def echo():
    server = EchoServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def capture(tmp_path_factory, echo):
    """One ordinary recording, as long as 300 requests take; (directory, manifest, the recorder's output)."""
    directory = tmp_path_factory.mktemp("live") / "ordinary.nsight"
    code, said = record(directory, "--port", str(echo.port), "--", *echo.client(300))
    assert code == 0, said
    return directory, manifest(directory), said


def lines(directory, kind):
    text = (directory / "events.tsv").read_text()
    return [line.split("\t") for line in text.splitlines() if line.startswith(kind + "\t")]


def payloads(directory, kind):
    """Bytes that each read (R) or send (S) returned, from the line of its message."""
    return [int(fields[MESSAGE_FIELDS.index("len")]) for fields in lines(directory, kind)]


def test_ordinary_recording_is_complete(capture):
    _, m, said = capture
    assert (m["state"], m["stopped_by"], m["cut"]) == ("complete", "command", [])
    assert m["command_exit"] == 0
    assert "nsight-report" in said
    assert m["losses"] == []
    assert "lost: nothing" in said


def test_every_request_is_in_the_capture(capture):
    # 300 requests and 300 answers of 64 bytes, each sent by one call and read by one call.
    directory, m, _ = capture
    for kind in ("S", "R"):
        assert payloads(directory, kind).count(64) == 600
    assert m["events"]["produced"]["S"] == m["events"]["written"]["S"] == 600


def test_no_message_lacks_the_activity_of_its_core(capture):
    directory, m, _ = capture
    boottime_minus_monotonic = m["start"]["boottime_ns"] - m["start"]["monotonic_ns"]
    stamps = [int(f[1]) - boottime_minus_monotonic for kind in "SR" for f in lines(directory, kind)]
    times = perf_script(directory, "--ns", "-F", "time").split()
    seconds = [float(t.rstrip(":")) for t in (times[0], times[-1])]
    assert seconds[0] * 1e9 < min(stamps)
    assert max(stamps) < seconds[1] * 1e9


def test_system_calls_of_the_recording_programs_are_left_out(capture):
    directory, m, _ = capture
    text = perf_script(directory, "-F", "tid,event")
    calls = [line.split() for line in text.splitlines() if "raw_syscalls:" in line]
    assert calls
    callers = {int(tid) for tid, _ in calls}
    assert not callers & {*tool_pids(m), m["recorder_pid"]}


def test_context_switches_of_the_recording_programs_stay_in(capture):
    directory, m, _ = capture
    text = perf_script(directory, "-F", "tid,event")
    switching = {int(line.split()[0]) for line in text.splitlines() if "sched:sched_switch" in line}
    assert m["tools"]["clock"]["pid"] in switching


def test_recording_programs_do_not_feed_on_their_own_events(capture):
    """A perf that records its own writes makes 700,000 events/s; the check above makes certain that it records none."""
    directory, m, _ = capture
    pids = {*tool_pids(m), m["recorder_pid"]}
    own = [t.split() for t in perf_script(directory, "-F", "tid,time").splitlines()]
    times = [float(stamp.rstrip(":")) for tid, stamp in own if int(tid) in pids]
    rate = len(times) / (max(times) - min(times))
    judge("live", "events of the recording programs a second", rate < 20_000, f"{rate:.0f}")


def test_clock_readings_span_the_recording(capture):
    directory, m, _ = capture
    if m["start"]["tsc"] is None:
        pytest.skip("the manifest has no TSC on this machine")
    readings = [line.split("\t") for line in (directory / "clock.tsv").read_text().splitlines()]
    before = [int(f[2]) for f in readings if f[0] == "B"]
    assert min(before) < m["start"]["tsc"]
    assert max(before) > m["stop"]["tsc"]
    assert readings[-1][0] == "E"


def test_manifest_says_what_recorded_what(capture, echo):
    directory, m, _ = capture
    assert m["mode"] == "tracepoints"
    assert m["filters"]["port"] == echo.port
    assert m["syscall_names"]["0"] == "read"
    assert m["host"]["kernel"] == os.uname().release
    assert m["host"]["n_cpus"] == os.cpu_count()
    assert m["probes"]["script"] in ("nsight-record.bt", "nsight-record-legacy.bt")
    assert {t: v["exit"] for t, v in m["tools"].items()} == {"clock": 0, "bpftrace": 0, "perf": -2}
    assert any(n["name"] == "lo" for n in m["nics"])
    assert (directory / "formats/sched/sched_switch").read_text().startswith("name: sched_switch")
    assert not (directory / ".reserve").exists()


def test_ctrl_c_reaches_only_the_recorder_and_keeps_the_data(tmp_path, echo):
    running = Running(tmp_path / "a.nsight", "--port", str(echo.port), prefix=("setsid",))
    m = running.wait_recording()
    echo.requests(50)
    os.killpg(running.process.pid, signal.SIGINT)  # as a terminal does
    _, err = running.end()
    assert running.process.returncode == 130, err
    m = manifest(tmp_path / "a.nsight")
    assert (m["state"], m["stopped_by"], m["losses"]) == ("complete", "signal", [])
    assert payloads(tmp_path / "a.nsight", "R").count(64) == 100
    assert wait_gone(tool_pids(m)) == []


def test_ctrl_c_before_the_recording_began_leaves_nothing_running(tmp_path):
    running = Running(tmp_path / "a.nsight")
    running.wait_for((tmp_path / "a.nsight/clock.tsv").exists, "start its programs")
    running.process.send_signal(signal.SIGINT)
    _, err = running.end()
    m = manifest(tmp_path / "a.nsight")
    assert running.process.returncode == 130, err
    assert m["state"] == "cut"
    assert m["cut"] == ["the recording did not begin"]
    assert wait_gone(tool_pids(m)) == []


@pytest.mark.parametrize("victim", ["perf", "bpftrace", "clock"])
def test_killed_program_is_named_and_the_rest_is_kept(tmp_path, echo, victim):
    running = Running(tmp_path / "a.nsight", "--port", str(echo.port))
    m = running.wait_recording()
    echo.requests(50)
    os.kill(m["tools"][victim]["pid"], signal.SIGKILL)
    _, err = running.end()
    m = manifest(tmp_path / "a.nsight")
    assert running.process.returncode == 5, err
    assert m["state"] == "cut"
    assert m["cut"] == [f"{victim}: killed by SIGKILL"]
    assert m["stopped_by"].startswith(f"error: {victim} ended early (killed by SIGKILL)")
    assert {t: v["exit"] for t, v in m["tools"].items() if t != victim} == {
        t: e for t, e in {"clock": 0, "bpftrace": 0, "perf": -2}.items() if t != victim
    }
    assert f"the capture is cut: {victim}" in err
    assert wait_gone(tool_pids(m)) == []


def test_killed_recorder_leaves_a_readable_capture_and_no_processes(tmp_path, echo):
    running = Running(tmp_path / "a.nsight", "--port", str(echo.port))
    m = running.wait_recording()
    echo.requests(50)
    running.process.kill()
    running.end()
    assert wait_gone(tool_pids(m)) == []
    directory = tmp_path / "a.nsight"
    assert manifest(directory)["state"] == "recording"
    # The programs were stopped by a signal, so each wrote out what it had.
    assert (directory / "events.tsv").read_text().rstrip().endswith("#end")
    assert (directory / "clock.tsv").read_text().splitlines()[-1].startswith("E\t")
    assert "sched:sched_switch" in perf_script(directory, "-F", "event")


@pytest.mark.parametrize("rest_kib", [34 * 1024, 0])
def test_full_disk_stops_the_recording_and_keeps_what_is_there(tmp_path, rest_kib):
    disk = tmp_path / "disk"
    disk.mkdir()
    # In a new mount namespace: the disk disappears with the recorder.
    prefix = ("unshare", "-m", "sh", "-c", SMALL_DISK, "sh", str(disk))
    running = Running(disk / "a.nsight", "-d", "600", prefix=prefix)
    inside = f"/proc/{running.process.pid}/root{disk}"
    running.directory = Path(inside) / "a.nsight"
    running.wait_recording()
    held = os.open(inside, os.O_RDONLY)  # keeps the disk after the recorder's end
    try:
        # The filler must not take the space that the recorder frees for its last manifest.
        running.process.send_signal(signal.SIGSTOP)
        fill(Path(f"/proc/self/fd/{held}/filler"), rest_kib * 1024)
        running.process.send_signal(signal.SIGCONT)
        _, err = running.end()
        with open(os.open("a.nsight/manifest.json", os.O_RDONLY, dir_fd=held)) as f:
            m = json.load(f)
        names = set(os.listdir(os.open("a.nsight", os.O_RDONLY, dir_fd=held)))
    finally:
        os.close(held)
    assert running.process.returncode == 5, err
    assert m["stopped_by"].startswith("error: ")
    assert m["state"] != "recording"
    assert {"perf.data", "events.tsv", "clock.tsv"} <= names
    if rest_kib:
        assert "the disk is nearly full" in err
        assert m["state"] == "complete"


def test_unmounted_tracefs_is_refused_and_left_alone(tmp_path):
    code, said = record(
        tmp_path / "a.nsight", "-d", "1", prefix=("unshare", "-m", "sh", "-c", NO_TRACEFS, "sh")
    )
    assert code == 4
    assert "error: tracefs is not mounted" in said
    assert "hint: mount -t tracefs" in said
    assert "still mounted" not in said
    assert not (tmp_path / "a.nsight").exists()


def test_unmounted_tracefs_is_mounted_with_fix_and_unmounted_afterwards(tmp_path):
    prefix = ("unshare", "-m", "sh", "-c", NO_TRACEFS, "sh")
    code, said = record(tmp_path / "a.nsight", "-d", "1", "--fix", prefix=prefix)
    m = manifest(tmp_path / "a.nsight")
    assert code == 0, said
    assert [(c["what"], c["restored"]) for c in m["changed"]] == [("mount /sys/kernel/tracing", True)]
    assert "still mounted" not in said


# The mounts belong to this namespace, and so must the notes about them: another run of the tests makes the same mounts.
KILLED_WITH_FIX = """
mkdir -p /run/nsight && mount -t tmpfs -o mode=0700 tmpfs /run/nsight || exit 1
umount -l /sys/kernel/debug/tracing 2>/dev/null
umount -l /sys/kernel/tracing
umount -l /sys/kernel/debug
"$1" -o "$2" --recorder bpftrace --fix -q &
until grep -qs '"start"' "$2/manifest.json"; do
	kill -0 $! || exit 1
	sleep 0.05
done
"$1" --restore
echo "with $!"
kill -9 $!
wait
test -d /sys/kernel/tracing/events && echo mounted
"$1" --restore
test -d /sys/kernel/tracing/events && echo mounted still
"$1" --restore
"""


def test_tracefs_that_a_killed_recorder_mounted_is_unmounted_by_restore(tmp_path):
    argv = ["unshare", "-m", "sh", "-c", KILLED_WITH_FIX, "sh", str(RECORDER), str(tmp_path / "a.nsight")]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=END_S)
    said = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    pid = next(line.split()[1] for line in said if line.startswith("with "))
    by = f"nsight-record {pid} ({tmp_path / 'a.nsight'})"
    own = [line for line in said if "tracing" in line or line.split()[0] in ("nothing", "mounted")]
    assert own == [
        f"left alone: mount /sys/kernel/tracing: needed by {by}",
        "nothing to restore",
        "mounted",
        f"restored: mount /sys/kernel/tracing: unmounted (left by {by})",
        "nothing to restore",
    ]
    assert wait_gone(tool_pids(manifest(tmp_path / "a.nsight"))) == []


OTHER_PERF = """
perf record -q -a $2 -e sched:sched_switch -o "$1" 2>/dev/null &
while [ ! -s "$1" ]; do sleep 0.05; done
bpftrace -e 'tracepoint:sched:sched_process_exec { } BEGIN { exit(); }'
code=$?
kill $!
wait
exit $code
"""


@pytest.mark.parametrize("option", ["", "--buildid-mmap"])
def test_programs_that_come_while_another_perf_records_leave_the_capture_readable(tmp_path, option):
    """BPF programs, and mappings whose build ids were requested only by the other perf, or by both."""
    command = ("sh", "-c", OTHER_PERF, "sh", str(tmp_path / "other"), option)
    code, said = record(tmp_path / "a.nsight", "--", *command)
    assert code == 0, said
    assert manifest(tmp_path / "a.nsight")["command_exit"] == 0
    assert "sched:sched_switch" in perf_script(tmp_path / "a.nsight", "-F", "event", "--show-mmap-events")
