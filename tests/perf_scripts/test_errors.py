# SPDX-License-Identifier: GPL-2.0-only
"""Unusable inputs and outputs: an error names the cause and the fix, and there is an exit code."""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perf_scripts import files, runs

pytestmark = pytest.mark.tools

NO_PT = runs.TOP / "tests/report/capture/data/loopback.data"
ROUTES = ("script", "program")
#: No working run takes this long, however busy the machine is.
HANGS_S = 120


def run(route: str, capture: Path, output: Path) -> subprocess.CompletedProcess[str]:
    return runs.by_script(capture, "-o", output) if route == "script" else runs.by_program(capture, output)


def fails(done: subprocess.CompletedProcess[str], code: int, why: str, hint: str) -> None:
    """An error as it should be, and no crash."""
    assert done.returncode == code, (done.returncode, done.stderr)
    error = re.search(r"^nsight[^:\n]*: error: (.*)\nhint: (.*)$", done.stderr, re.M)
    assert error, done.stderr
    assert why in error[1]
    assert hint in error[2]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.fixture
def damaged(captures, tmp_path) -> files.Damaged:
    return files.Damaged(captures["lock"], tmp_path / "damaged")


# -- input --------------------------------------------------------------------------------


def test_file_without_intel_pt(tmp_path):
    done = runs.perf("script", "-i", NO_PT, "--itrace=cr", "-s", runs.SCRIPT)
    fails(done, 3, f"{NO_PT}: no Intel PT in it", "perf record -e intel_pt// -a")
    argv = [sys.executable, runs.EDGES_PROGRAM, "-i", NO_PT, "-o", tmp_path / "out"]
    done = subprocess.run(argv, capture_output=True, text=True)
    fails(done, 3, f"{NO_PT}: no Intel PT in it", "perf record -e intel_pt// -a")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("route", ROUTES)
def test_other_hardware_trace(route, damaged, tmp_path):
    at, _ = next(damaged.records(files.AUXTRACE_INFO))
    damaged.put(at + 8, "I", 3)
    done = run(route, damaged.write(), tmp_path / "out")
    if route == "program":  # perf 6.1 cannot take CoreSight out of such a file, and ends before the script
        fails(done, 3, "its trace is ARM CoreSight", "intel_pt")
    else:
        assert done.returncode != 0


@pytest.mark.parametrize("route", ROUTES)
def test_file_of_another_architecture(route, damaged, tmp_path):
    start, size = struct.unpack_from("<QQ", damaged.data, 40)
    where = damaged.data.index(b"x86_64\0", start + size)
    damaged.data[where : where + 8] = b"aarch64\0"
    fails(run(route, damaged.write(), tmp_path / "out"), 3, "recorded on aarch64", "x86")


@pytest.mark.parametrize("route", ROUTES)
def test_file_cut_before_its_first_trace(route, damaged, tmp_path):
    at, _ = next(damaged.records(files.AUXTRACE))
    capture = damaged.write(at - 4)
    damaged.put(48, "Q", 0)  # perf writes the size when it ends
    done = run(route, damaged.write(at - 4), tmp_path / "out")
    fails(done, 3, "cut before the first data", "SIGINT")
    assert capture.exists()


@pytest.mark.parametrize("route", ROUTES)
def test_file_cut_later_is_read_as_far_as_it_goes(route, damaged, tmp_path):
    at, length = list(damaged.records(files.AUXTRACE))[4]
    damaged.put(48, "Q", 0)
    done = run(route, damaged.write(at + length + 100), tmp_path / "out")
    if done.returncode == 0:
        assert "the file is cut at byte" in done.stdout.partition("\n\n")[0]
        assert len(runs.read_stream(tmp_path / "out").edges) > 1000
    else:  # perf itself may refuse it: then this is reported
        assert done.returncode in (4, 255)
        assert done.stderr


def test_program_names_files_that_are_none(tmp_path, captures):
    def on(path: Path) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, runs.EDGES_PROGRAM, "-i", path, "-o", tmp_path / "out"]
        return subprocess.run(argv, capture_output=True, text=True)

    fails(on(tmp_path / "none"), 3, "No such file", "-i")
    (tmp_path / "empty").touch()
    fails(on(tmp_path / "empty"), 3, "empty or cut", "again")
    (tmp_path / "text").write_text("x" * 200)
    fails(on(tmp_path / "text"), 3, "not a perf.data", "perf record")
    original = (captures["lock"] / "capture.nsight/perf.data/data").read_bytes()[:4096]
    (tmp_path / "big").write_bytes(original[:8][::-1] + original[8:])
    fails(on(tmp_path / "big"), 3, "big-endian", "x86")
    (tmp_path / "piped").write_bytes(original[:8] + struct.pack("<Q", 16) + original[16:])
    fails(on(tmp_path / "piped"), 3, "perf record -o -", "perf inject")
    threads = tmp_path / "threads"
    threads.mkdir()
    (threads / "data.0").touch()
    fails(on(threads), 3, "--threads", "without it")


def test_header_with_impossible_offsets(damaged, tmp_path):
    damaged.put(24, "QQ", 1 << 60, 1 << 40)
    fails(run("program", damaged.write(), tmp_path / "out"), 3, "header is damaged", "again")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("size", [1 << 63, (1 << 64) - 40])
def test_records_of_impossible_size(size, route, damaged, tmp_path):
    # Stock perf reads such a file forever.
    at, _ = list(damaged.records(files.AUXTRACE))[2]
    damaged.put(at + 8, "Q", size)
    done = run(route, damaged.write(), tmp_path / "out")
    fails(done, 3, f"the record at byte {at:,} is damaged", "copy")


def test_compressed_records_are_named(damaged, tmp_path):
    at, _ = next(damaged.records(files.COMM))
    damaged.put(at, "I", files.COMPRESSED)
    done = run("program", damaged.write(), tmp_path / "out")
    assert ("compressed" in done.stdout and "without -z" in done.stdout) or done.returncode == 4


def test_pipe_is_read_but_its_limits_are_told(captures):
    # perf inject writes what perf record -o - would.
    lock = captures["lock"]
    argv = ["perf", "inject", "-i", str(lock / "capture.nsight/perf.data/data"), "-o", "-"]
    inject = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    argv = [
        "perf",
        "script",
        "-i",
        "-",
        "--symfs",
        str(lock / "symfs"),
        "--itrace=cre",
        "-s",
        str(runs.SCRIPT),
    ]
    done = subprocess.run(argv, stdin=inject.stdout, capture_output=True, text=True)
    inject.stdout.close()
    inject.wait()
    assert done.returncode == 0, done.stderr
    assert "read from a pipe" in done.stdout.partition("\n\n")[0]


def test_recording_without_branches_is_told(captures):
    done = runs.by_script(captures["lock"], itrace="e")
    assert done.returncode == 0
    assert "perf gave no call and no return" in done.stdout.partition("\n\n")[0]


# -- output -------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
def test_output_in_a_directory_that_is_not_there(route, captures, tmp_path):
    output = tmp_path / "none" / "out"
    fails(run(route, captures["lock"], output), 5, f"cannot write {output}: No such file", "-o")


@pytest.mark.parametrize("route", ROUTES)
def test_full_disk(route, captures):
    fails(run(route, captures["lock"], Path("/dev/full")), 5, "cannot write /dev/full: No space", "space")


def test_filter_alone_names_its_errors(captures, tmp_path):
    done = runs.by_filter(captures["lock"], tmp_path / "none" / "out")
    assert done.returncode != 0
    assert "cannot write" in done.stderr and "hint: " in done.stderr
    argv = [*runs.inputs(captures["lock"]), "--itrace=cr", "--dlfilter", runs.FILTER]
    done = runs.perf("script", *argv)
    assert done.returncode != 0
    assert "hint: --dlarg FILE" in done.stderr


def test_reader_that_goes_away(captures):
    argv = ["perf", "script", *runs.inputs(captures["lock"]), "--itrace=cr", "-s", str(runs.SCRIPT)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as perf:
        perf.stdout.close()
        said = perf.stderr.read()
    assert (perf.returncode, said) == (0, "")
    program = [sys.executable, runs.EDGES_PROGRAM, *runs.inputs(captures["lock"])[:2], "-o", os.devnull]
    program += ["--", *runs.inputs(captures["lock"])[2:]]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as made:
        made.stdout.close()
        said = made.stderr.read()
    assert (made.returncode, said) == (0, "")


@pytest.mark.timing
def test_interrupted_perf_prints_what_it_has_and_says_so(captures, tmp_path):
    """Its output is a pipe that is read only after the signal, so it cannot finish earlier."""
    pipe, out = tmp_path / "pipe", tmp_path / "out"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # whether it has a writer yet or not
    argv = ["perf", "script", *runs.inputs(captures["hog"]), "--itrace=cre", "-s", str(runs.SCRIPT), "--"]
    argv += ["--api", "process_event", "-o", str(pipe)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as perf:
        waits_for(lambda: waits_in_write(perf.pid) or perf.poll() is not None)
        perf.send_signal(signal.SIGINT)
        os.set_blocking(reader, True)
        with open(reader, "rb") as stream:
            out.write_bytes(stream.read())
        text, said = perf.communicate()
    assert "Traceback" not in said
    assert perf.returncode == 0
    assert "perf was interrupted" in text.partition("\n\n")[0]
    assert runs.read_stream(out).edges


# -- usage --------------------------------------------------------------------------------


def test_help_and_wrong_options(captures):
    done = runs.by_script(captures["lock"], "--help")
    assert done.returncode == 0
    assert "exit codes:" in done.stdout
    done = runs.by_script(captures["lock"], "--nonsense")
    assert done.returncode == 2
    assert "--nonsense" in done.stderr


def test_script_outside_of_perf():
    done = subprocess.run([sys.executable, runs.SCRIPT], capture_output=True, text=True)
    fails(done, 2, "runs within perf only", "perf script -i perf.data --itrace=cr -s nsight.py")


def test_program_without_perf_or_filter(captures, tmp_path):
    done = runs.by_program(captures["lock"], tmp_path / "out", "--perf", tmp_path / "perf")
    fails(done, 4, "cannot run", "linux-perf")
    done = runs.by_program(captures["lock"], tmp_path / "out", "--filter", tmp_path / "filter.so")
    fails(done, 4, "is not there", "make build")


def waits_for(condition) -> None:
    """Wait until ``condition()``, or fail."""
    end = time.monotonic() + HANGS_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def waits_in_write(pid: int) -> bool:
    """Whether a process sleeps in write(2), system call 1, because nobody reads."""
    return Path(f"/proc/{pid}/syscall").read_text().startswith("1 ")


def state(pid: int) -> str:
    """R, S, T, Z ... as in /proc/PID/stat; Z too if the process no longer exists."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def runs_still(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    return state(pid) != "Z"


@pytest.mark.timing
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_perf_ends_with_the_program(number, captures, tmp_path):
    perf = tmp_path / "perf"
    perf.write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/new\nmv {tmp_path}/new {tmp_path}/pid\nexec sleep 600\n"
    )
    perf.chmod(0o755)
    data = runs.inputs(captures["lock"])[:2]
    argv = [sys.executable, str(runs.EDGES_PROGRAM), *data, "-o", str(tmp_path / "out"), "--perf", str(perf)]
    with subprocess.Popen(argv) as program:
        waits_for((tmp_path / "pid").exists)
        program.send_signal(number)
        assert program.wait(HANGS_S) == (143 if number == signal.SIGTERM else -number)
    waits_for(lambda: not runs_still(int((tmp_path / "pid").read_text())))


@pytest.mark.timing
def test_second_perf_ends_with_the_first(captures):
    """The second one is stopped while it decodes, so that it still exists when the first one ends."""
    assert any(second_perf_was_stopped_and_ended(captures["hog"]) for _ in range(10))


def second_perf_was_stopped_and_ended(capture: Path) -> bool:
    """False if it finished its work before it could be stopped: then the test proves nothing."""
    # The script's own child is perf. Nobody reads the output of the first one, so it does not end.
    argv = ["perf", "script", *runs.inputs(capture), "--itrace=cr", "-s", str(runs.SCRIPT)]
    argv += ["--", "--api", "process_event"]
    children: list[str] = []
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as first:
        listed = Path(f"/proc/{first.pid}/task/{first.pid}/children")
        waits_for(lambda: children.extend(listed.read_text().split()) or children)
        # Before it executes perf, it has not yet requested to end with the first one.
        second, own = (Path(f"/proc/{pid}/cmdline") for pid in (children[0], first.pid))
        waits_for(lambda: second.read_bytes() != own.read_bytes())
        os.kill(int(children[0]), signal.SIGSTOP)
        waits_for(lambda: state(int(children[0])) in "TZ")
        stopped = state(int(children[0])) == "T"
        first.kill()
    try:
        waits_for(lambda: not runs_still(int(children[0])))
    finally:
        if runs_still(int(children[0])):
            os.kill(int(children[0]), signal.SIGKILL)
    return stopped


def test_program_says_when_perf_fails(captures, tmp_path):
    perf = tmp_path / "perf"
    perf.write_text("#!/bin/sh\necho 'no such thing' >&2\nexit 7\n")
    perf.chmod(0o755)
    done = runs.by_program(captures["lock"], tmp_path / "out", "--perf", perf)
    fails(done, 4, "perf failed: 7", "above")
    assert "no such thing" in done.stderr


@pytest.mark.parametrize(
    ("given", "asked"), [("cr", "cre"), ("crd+e", "crd+ee"), ("cre-o", "cre-o"), (None, "crepw")]
)
def test_program_asks_perf_for_errors(given, asked, captures, tmp_path):
    """A letter after + or - is a flag of the letter before."""
    perf = tmp_path / "perf"
    perf.write_text(f'#!/bin/sh\nfor word; do echo "$word"; done > {tmp_path}/words\nexit 7\n')
    perf.chmod(0o755)
    options = [f"--itrace={given}"] if given else []
    runs.by_program(captures["lock"], tmp_path / "out", "--perf", perf, perf_options=options)
    words = (tmp_path / "words").read_text().splitlines()
    assert [word for word in words if word.startswith("--itrace")][-1] == f"--itrace={asked}"


def test_errors_that_perf_counts_but_does_not_tell(captures, tmp_path):
    perf = tmp_path / "perf"
    real = shutil.which("perf")
    perf.write_text(f'#!/bin/sh\n{real} "$@" | grep -v "trace error"; true\n')
    perf.chmod(0o755)
    done = runs.by_program(captures["overflow"], tmp_path / "out", "--perf", perf)
    assert "perf counted 1 more decode errors" in done.stdout.partition("\n\n")[0]
