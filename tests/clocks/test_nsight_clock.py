# SPDX-License-Identifier: GPL-2.0-only
"""nsight-clock itself, on this machine: its records, options, errors and exit codes."""

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import clock_lines as cl
import numpy as np
import ordering_record
import pytest
from machinery.harness import built
from nsight_report import clocks
from nsight_report.clocks import clock_readings

pytestmark = pytest.mark.timing
PROGRAM = str(ordering_record.NSIGHT_CLOCK)
HANGS_S = 120
#: The program's intervals: from one bracketed reading until the next is due, and the sleep before it polls the page.
CHECK_MS, POLL_MS, CALM_POLL_MS = 100, 1, 3


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    built.make(ordering_record.NSIGHT_CLOCK.parent)


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=HANGS_S)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until ``condition()``, while the program runs."""
    deadline = time.monotonic() + HANGS_S
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


def bracket_lines(path: Path) -> list[list[str]]:
    """The fields of every complete line with a reading of CLOCK_REALTIME."""
    text = path.read_text() if path.exists() else ""
    return [line.split("\t") for line in text.split("\n")[:-1] if line.startswith("B\trealtime\t")]


def late_looks(path: Path, cycles: int) -> list[int]:
    """For each two successive bracketed readings: the number of polls between them, ``cycles`` or more after the first."""
    found, due = [], None
    for fields in (line.split("\t") for line in path.read_text().splitlines()):
        if fields[:2] == ["B", "realtime"]:
            due = int(fields[4]) + cycles
            found.append(0)
        elif fields[0] == "V" and due is not None:
            found[-1] += int(fields[2]) >= due
    return found[:-1]


def test_a_whole_recording_has_every_record_and_says_what_it_cost(tmp_path: Path) -> None:
    path = tmp_path / "clock.tsv"
    begin = time.monotonic_ns()
    done = run("-d", "1", "-o", str(path))
    took = time.monotonic_ns() - begin
    assert done.returncode == 0 and done.stdout == ""
    readings = clock_readings.load(path)
    assert readings.ledger.table().num_rows == 0
    assert readings.end is not None
    polls, updates, missed, cpu_ns, wall_ns = readings.end
    # the first state is no update; all others are, and each missed one counts 2 in the sequence
    seq = readings.polled.seq
    assert updates == len(seq) - 1 and missed == (seq[-1] - seq[0]) // 2 - updates
    # -d counts TSC cycles. The header says how many are a ms: exact to a thousandth, whatever NTP does.
    assert 0.999e9 < wall_ns < took and 0 < cpu_ns < wall_ns and polls >= updates
    # It sleeps before each poll, except for polls that belong to a bracketed reading: no core is kept busy.
    n_brackets = len(readings.brackets["realtime"])
    assert polls - n_brackets <= wall_ns / (POLL_MS * 1e6) + 1
    assert f"{polls} polls, {updates} timekeeper updates, {missed} missed; " in done.stderr
    assert set(readings.brackets) == set(clock_readings.TIMEKEEPER_DOMAINS)
    # A reading comes at the first poll after every 100 ms, and once at the end. Polls that see no update write no line. Of
    # the polls that see one, two belong to the reading itself, and one may have been interrupted between time and page.
    assert 2 <= n_brackets <= wall_ns / (CHECK_MS * 1e6) + 2
    assert max(late_looks(path, CHECK_MS * readings.tsc_khz)) <= 3
    _, losses = clocks.build(readings)
    assert "error" not in [severity for severity, _ in cl.losses(losses).values()]


def calm_cycles(readings: clock_readings.Readings) -> int:
    """The TSC cycles of the recording that follow 64 updates along one line."""
    p, calm, cycles = readings.polled, 0, 0
    for i in range(1, len(p)):
        before, here = p.take(np.array([i - 1])), p.take(np.array([i]))
        at = before.snsec + (here.cycle_last - before.cycle_last) * before.mult
        shift = int(here.shift[0])
        same = (before.sec - here.sec) * 10**9 + (at >> shift) - (here.snsec >> shift)
        cycles += int(here.tsc_now[0] - before.tsc_now[0]) if calm >= 64 else 0
        calm = calm + 1 if not same.any() and before.mult[0] == here.mult[0] else 0
    return cycles


def test_a_clock_that_nobody_disciplines_is_looked_at_every_three_ms(tmp_path: Path) -> None:
    """A busy core has a tick, and so an update, every few ms. The clock is calm after 64 of them, as the states show."""
    path = tmp_path / "clock.tsv"
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as busy:
        done = run("-d", "3", "-o", str(path))
        busy.kill()
    readings = clock_readings.load(path)
    assert done.returncode == 0 and readings.end is not None
    polls, _, _, _, wall_ns = readings.end
    calm_ms = calm_cycles(readings) / readings.tsc_khz
    most = (wall_ns / 1e6 - calm_ms) / POLL_MS + calm_ms / CALM_POLL_MS
    if (
        np.diff(readings.polled.seq) > 2
    ).sum() < 4:  # otherwise the kernel updates more often, and the usual polling rate is kept
        assert polls - len(readings.brackets["realtime"]) <= most + 2


def test_the_map_covers_the_whole_recording(tmp_path: Path) -> None:
    path = tmp_path / "clock.tsv"
    begin = time.monotonic_ns()
    run("-d", "0.5", "-o", str(path))
    clock_map = clocks.ClockMap(clocks.build(clock_readings.load(path))[0])
    start, end = clock_map.range_tsc("monotonic")
    ns, _ = clock_map.convert(cl.ints(start, end - 1), "tsc", "monotonic")
    # from before its first reading up to its last one, half a second later
    brackets = bracket_lines(path)
    assert start <= int(brackets[0][2]) and int(brackets[-1][4]) <= end
    assert begin < ns[0] and ns[1] - ns[0] > 480_000_000
    assert ns[1] < time.monotonic_ns()


def test_a_killed_recorder_leaves_a_usable_file(tmp_path: Path) -> None:
    path = tmp_path / "clock.tsv"
    with subprocess.Popen([PROGRAM, "-o", str(path)], stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: len(bracket_lines(path)) >= 5, process)
        process.kill()
    readings = clock_readings.load(path)
    table, losses = clocks.build(readings)
    assert cl.losses(losses)["clock readings cut"] == ("info", 1)
    assert readings.end is None
    start, end = clocks.ClockMap(table).range_tsc("realtime")
    # each reading, at least 100 ms after the last, says how far the states hold
    last = int(bracket_lines(path)[-1][2])
    assert start <= int(bracket_lines(path)[0][2]) and last <= end
    assert (end - start) / readings.tsc_khz > 300


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_recording_properly(tmp_path: Path, sig: signal.Signals) -> None:
    path = tmp_path / "clock.tsv"
    with subprocess.Popen([PROGRAM, "-o", str(path)], stderr=subprocess.PIPE) as process:
        wait_for(lambda: bool(bracket_lines(path)), process)
        process.send_signal(sig)
        assert process.wait(HANGS_S) == 0
    assert clock_readings.load(path).end is not None


@pytest.mark.parametrize(
    ("args", "code", "message", "hint"),
    [
        (["--nonsense"], 2, "usage:", ""),
        (["-d", "1", "argument"], 2, "usage:", ""),
        (["-d", "nan"], 2, "--duration nan: not a number", ""),
        (["-d", "-1"], 2, "--duration -1: not a number", ""),
        (["-d", "0"], 2, "--duration 0", "leave out -d"),
        (["--poll-us", "1e9"], 2, "--poll-us 1e9: not a number from 0 to 1000000", ""),
        (["--phc", "/dev/no-such-clock"], 4, "/dev/no-such-clock: No such file", "hint: ls /dev/ptp*"),
        (["--phc", "/dev/null"], 4, "/dev/null: not a PTP hardware clock", "hint: "),
        (["--iface", "no-such-if"], 4, "no-such-if: no such interface", "hint: ip link"),
        (["--iface", "x" * 200], 4, "no such interface", "hint: ip link"),
        (["--iface", "lo"], 4, "lo: no PTP hardware clock", "hint: leave out --iface"),
        (["-o", "/no/such/directory/clock.tsv"], 5, "/no/such/directory/clock.tsv: No such file", ""),
        (["-o", "/dev/full"], 5, "/dev/full: ", ""),
    ],
)
def test_errors_name_the_cause_the_fix_and_the_exit_code(
    args: list[str], code: int, message: str, hint: str
) -> None:
    done = run(*args)
    assert done.returncode == code
    assert message in done.stderr and hint in done.stderr
    assert done.stdout == ""


def test_a_recording_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "clock.tsv"
    path.write_text("precious")
    done = run("-d", "0.1", "-o", str(path))
    assert done.returncode == 5 and "never overwritten" in done.stderr
    assert path.read_text() == "precious"


def test_a_full_disk_is_one_error_and_keeps_what_was_written() -> None:
    # /dev/full refuses every write; opened as standard output
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [PROGRAM, "-d", "1"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=HANGS_S
        )
    assert done.returncode == 5
    assert done.stderr.startswith("error: standard output: No space left on device\nhint: ")


def test_a_closed_pipe_is_an_error_not_a_signal() -> None:
    with subprocess.Popen([PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        message = process.stderr.read()
        assert process.wait(HANGS_S) == 5 and "standard output: Broken pipe" in message


def test_help_names_every_exit_code_and_option() -> None:
    done = run("--help")
    assert done.returncode == 0 and done.stderr == ""
    for text in ("exit codes: 0 done, 2 usage, 4", "--duration", "--output", "--poll-us", "--phc", "--iface"):
        assert text in done.stdout
