# SPDX-License-Identifier: GPL-2.0-only
"""No loss may go unreported: each loss is an event in the stream, and is printed first."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import pytest

from perf_scripts import files, runs

pytestmark = pytest.mark.tools

ROUTES = ("script", "script with e", "process_event", "program")


def streams(capture: Path, tmp_path: Path, route: str) -> tuple[runs.Stream, str]:
    """The stream of one route, and its messages."""
    output = tmp_path / "out"
    if route == "program":
        done = runs.by_program(capture, output, perf_options=["--itrace=cr"])
    else:
        api = "process_event" if route == "process_event" else "tables"
        itrace = "cre" if route == "script with e" else "cr"
        done = runs.by_script(capture, "-o", output, "--api", api, itrace=itrace)
    assert done.returncode == 0, done.stderr
    return runs.read_stream(output), done.stdout


def first_lines(text: str) -> list[str]:
    """The messages before anything else."""
    return text.partition("\n\n")[0].splitlines()


def the_error(capture: Path) -> tuple[int, int, int, int]:
    """Time, core, process and thread of the one error that stock perf reports."""
    argv = ["perf", "script", "-i", capture / "capture.nsight" / "perf.data", "--symfs", capture / "symfs"]
    done = subprocess.run([*map(str, argv), "--itrace=e"], capture_output=True, text=True)
    (found,) = re.findall(
        r"trace error type 1 time (\d+)\.(\d{9}) cpu (\d+) pid (\d+) tid (\d+)", done.stdout + done.stderr
    )
    seconds, rest, cpu, pid, tid = map(int, found)
    return seconds * 10**9 + rest, cpu, pid, tid


@pytest.fixture
def damaged(captures, tmp_path) -> files.Damaged:
    return files.Damaged(captures["lock"], tmp_path / "damaged")


@pytest.mark.parametrize("route", ROUTES)
def test_nothing_is_said_to_be_lost_where_nothing_is(route, captures, tmp_path):
    stream, text = streams(captures["lock"], tmp_path, route)
    assert first_lines(text) == ["Lost or not decoded", "  nothing"]
    assert {event[4] for event in stream.events} == {runs.SWITCH_IN, runs.SWITCH_OUT}


@pytest.mark.parametrize("route", ROUTES)
def test_overflow_is_an_event(route, captures, tmp_path):
    stream, text = streams(captures["overflow"], tmp_path, route)
    time, cpu, pid, tid = the_error(captures["overflow"])
    assert stream.codes(runs.OVERFLOW) == [(time, cpu, pid, tid, runs.OVERFLOW, 7)]
    assert "1 overflow(s)" in first_lines(text)[1]
    assert f"core {cpu} at {time // 10**9}.{time % 10**9:09}" in first_lines(text)[1]
    assert first_lines(text)[2].startswith("    hint: ")


@pytest.mark.parametrize("route", ROUTES)
def test_full_buffer_is_an_event(route, damaged, tmp_path):
    at, length = list(damaged.records(files.AUX))[3]
    size, flags = struct.unpack_from("<QQ", damaged.data, at + 16)
    assert (flags, size > 0) == (0, True)
    damaged.put(at + 24, "Q", 1)  # PERF_AUX_FLAG_TRUNCATED
    time = damaged.time_at(at, length)
    stream, text = streams(damaged.write(), tmp_path, route)
    assert [event[:2] + event[4:] for event in stream.codes(runs.TRUNCATED)] == [
        (time, 0, runs.TRUNCATED, size)
    ]
    # perf loses track there, and reports it.
    assert [event[5] for event in stream.codes(runs.ERROR)] == [8]
    assert "trace buffer of a core was full" in text.partition("\n\n")[0]


@pytest.mark.parametrize("route", ROUTES)
def test_damaged_packets_are_events(route, damaged, tmp_path):
    at, length = list(damaged.records(files.AUXTRACE))[2]
    for place in range(at + length + 1000, at + length + 1060):
        damaged.data[place] = 0x02  # 02 02 is no packet
    stream, text = streams(damaged.write(), tmp_path, route)
    assert stream.codes(runs.ERROR)
    assert "packet" in first_lines(text)[1] or "not decoded" in first_lines(text)[1]


@pytest.mark.parametrize("route", ROUTES)
def test_every_error_is_told_where_there_are_many(route, damaged, tmp_path):
    # A bad packet every 5000 bytes; the bytes after it are read as other packets, including overflows. perf reports each error, and their number at the end.
    for at, length in damaged.records(files.AUXTRACE):
        size = struct.unpack_from("<Q", damaged.data, at + 8)[0]
        for place in range(at + length + 200, at + length + size - 200, 5000):
            damaged.put(place, "H", 0x0202)
    capture = damaged.write()
    said = runs.perf("script", *runs.inputs(capture), "--itrace=e").stderr
    counted = int(re.search(r"(\d+) instruction trace errors", said)[1])
    stream, text = streams(capture, tmp_path, route)
    assert len(stream.codes(runs.ERROR) + stream.codes(runs.OVERFLOW)) == counted > 300
    told = re.findall(r"^  - ([\d,]+) (?:interval|damaged|overflow)", text, re.M)
    assert sum(int(n.replace(",", "")) for n in told) == counted


@pytest.mark.parametrize("route", ROUTES)
def test_lost_records_are_an_event(route, damaged, tmp_path):
    # A COMM record (pid, tid, 16 bytes or more of name) becomes a LOST one: u64 id, u64 lost.
    at, length = next((a, n) for a, n in damaged.records(files.COMM) if n >= 56)
    time = damaged.time_at(at, length)
    damaged.put(at, "I", files.LOST)
    damaged.put(at + 8, "QQ", 1, 4242)
    stream, text = streams(damaged.write(), tmp_path, route)
    assert [(event[0], event[5]) for event in stream.codes(runs.LOST)] == [(time, 4242)]
    assert "4,242 record(s) lost" in text.partition("\n\n")[0]


def test_totals_of_lost_samples_are_not_counted_twice(damaged, tmp_path):
    # perf's totals at the end include losses that LOST records reported before: 100 + (130 - 100) = 130.
    first, second = [a for a, n in damaged.records(files.COMM) if n >= 56][:2]
    damaged.put(first, "I", files.LOST)
    damaged.put(first + 8, "QQ", 1, 100)
    damaged.put(second, "I", files.LOST_SAMPLES)
    damaged.put(second + 8, "Q", 130)
    stream, text = streams(damaged.write(), tmp_path, "program")
    assert sorted(event[5] for event in stream.codes(runs.LOST)) == [30, 100]
    assert "130 record(s) lost" in text


@pytest.mark.parametrize("flag", [2, 4, 8])  # overwritten, partial, collision
def test_incomplete_buffers_are_events(flag, damaged, tmp_path):
    at, _ = list(damaged.records(files.AUX))[1]
    damaged.put(at + 24, "Q", flag)
    size = struct.unpack_from("<Q", damaged.data, at + 16)[0]
    stream, text = streams(damaged.write(), tmp_path, "program")
    assert [event[5] for event in stream.codes(runs.PARTIAL)] == [size]
    assert "overwritten or partial" in text.partition("\n\n")[0]


def test_throttling_is_an_event(damaged, tmp_path):
    at, _ = next((a, n) for a, n in damaged.records(files.COMM) if n >= 64)
    damaged.put(at, "I", files.THROTTLE)
    stream, text = streams(damaged.write(), tmp_path, "program")
    assert [event[5] for event in stream.codes(runs.LOST)] == [0]
    assert "throttled" in text.partition("\n\n")[0]


def test_snapshot_mode_is_told(damaged, tmp_path):
    at, _ = next(damaged.records(files.AUXTRACE_INFO))
    damaged.put(at + 16 + 8 * 8, "Q", 1)
    for route in ("script", "program"):
        _, text = streams(damaged.write(), tmp_path, route)
        assert "snapshot mode" in text.partition("\n\n")[0], route


def test_gap_of_an_overflow_is_time_of_no_function(captures, edges):
    # From the last edge before it to the trace begin after it.
    made = edges["overflow"]
    begin = next(i for i, e in enumerate(made) if i and e[8] == 7)
    lost = made[begin][0] - made[begin - 1][0]
    text = runs.by_script(captures["overflow"]).stdout
    percent = float(re.search(r"^  0 .* ([\d.]+) % +\d+$", text, re.M)[1])
    assert percent == round(100 * lost / (made[-1][0] - made[0][0]), 1)
