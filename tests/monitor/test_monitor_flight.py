# SPDX-License-Identifier: GPL-2.0-only
"""Triggers for the flight recorder, and which windows hold a slow latency."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Container
from pathlib import Path

import lines
import pytest
from nsight_monitor import flight, snapshots
from nsight_monitor.snapshots import Slow, Window
from nsight_record import flight_directory
from nsight_record.errors import RecordError, Usage

HOUR_NS = 3600 * 10**9


def slow(at_ns: int, ns: int = 20_000_000, stage: str = "handoff-to-read") -> Slow:
    return Slow(stage, 0, ns, at_ns, at_ns + 10**18)


def window(directory: Path, n: int, start_ns: int, stop_ns: int, state: str = "complete") -> str:
    name = f"20261124T135943Z-1-{n}.nsight"
    (directory / name).mkdir(exist_ok=True)
    (directory / name / "manifest.json").write_text(
        json.dumps({"state": state, "start": {"monotonic_ns": start_ns}, "stop": {"monotonic_ns": stop_ns}})
    )
    return name


def found(recorder: flight.Recorder) -> dict[str, list[int]]:
    """For each new window: the ends of its slow latencies."""
    lines = [snapshots.other(line) for line in recorder.windows()]
    return {w.name: [s.monotonic_ns for s in w.slow] for w in lines if isinstance(w, Window)}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """Processes that got a request for a window, one set per request."""
    calls: list[set[int]] = []

    def ask_all(_root: Path, only: Container[int] | None = None) -> list[int]:
        assert isinstance(only, set)
        calls.append(only)
        return list(only)

    monkeypatch.setattr(flight_directory, "ask_all", ask_all)
    return calls


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Directory of a running recorder, which is this process, and of one that has ended."""
    (tmp_path / f".run-{os.getpid()}").mkdir()
    (tmp_path / ".run-4194305").mkdir()  # beyond the kernel's largest PID
    window(tmp_path, 1, 0, 10**18)  # an older window
    return tmp_path


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("handoff-to-read=10ms", ("handoff-to-read", 10_000_000)),
        ("ip-start=1.5us", ("ip-start", 1_500)),
        ("qdisc=2s", ("qdisc", 2_000_000_000)),
    ],
)
def test_a_trigger_is_a_stage_and_a_latency(text: str, known: tuple[str, int]) -> None:
    assert flight.trigger(text) == known


@pytest.mark.parametrize(
    "text", ["", "ip-start", "ip-start=", "ip-start=1", "ip-start=0ms", "ip-start=1h", "=1ms", "a=9e9s"]
)
def test_anything_else_is_no_trigger(text: str) -> None:
    with pytest.raises(Usage):
        flight.trigger(text)


def test_a_directory_that_no_recorder_writes_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".run-4194305").mkdir()
    with pytest.raises(Usage, match="no flight recorder") as error:
        flight.Recorder(tmp_path, 20)
    assert "nsight-record --flight -o" in error.value.hint


def test_the_recorder_is_asked_at_once_and_then_not_too_often(
    directory: Path, asked: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 requests an hour: one every 180 s."""
    clock = [10**12]
    monkeypatch.setattr(time, "monotonic_ns", lambda: clock[0])
    recorder = flight.Recorder(directory, 20)
    for second in range(0, 400, 10):
        clock[0] = 10**12 + second * 10**9
        recorder.add(slow(clock[0]))
    assert asked == [{os.getpid()}] * 3  # at 0, 180, 360 s


def test_a_window_has_the_latencies_that_it_covers_and_no_others(
    directory: Path, asked: list[set[int]]
) -> None:
    recorder, now = flight.Recorder(directory, 20), time.monotonic_ns()
    for at in (now - 50, now - 20, now, now + 20):
        recorder.add(slow(at))
    assert found(recorder) == {}
    name = window(directory, 2, now - 20, now)
    empty = window(directory, 3, now + 1, now + 2)
    assert found(recorder) == {name: [now - 20, now]}
    assert found(recorder) == {} and empty not in found(recorder)
    later = window(directory, 4, now - 100, now + 100)
    (line,) = recorder.windows()
    held = snapshots.other(line)
    assert isinstance(held, Window)
    assert (held.name, held.n, [s.monotonic_ns for s in held.slow]) == (later, 2, [now - 50, now + 20])
    assert not recorder.waits


def test_a_window_is_taken_when_it_is_whole(directory: Path, asked: list[set[int]]) -> None:
    recorder, now = flight.Recorder(directory, 20), time.monotonic_ns()
    recorder.add(slow(now))
    name = window(directory, 2, now - 1, now + 1, state="recording")
    assert found(recorder) == {}
    window(directory, 2, now - 1, now + 1, state="cut")
    assert found(recorder) == {name: [now]}


def test_what_is_no_window_is_left_alone(directory: Path, asked: list[set[int]], tmp_path: Path) -> None:
    recorder, now = flight.Recorder(directory, 20), time.monotonic_ns()
    recorder.add(slow(now))
    real = directory / window(directory, 9, now - 1, now + 1)
    real.rename(directory / "elsewhere")
    (directory / "20261124T135943Z-1-2.nsight").symlink_to(directory / "elsewhere")
    (directory / "20261124T135943Z-1-3.nsight").mkdir()
    (directory / "20261124T135943Z-1-3.nsight/manifest.json").symlink_to(
        directory / "elsewhere/manifest.json"
    )
    for n, text in enumerate(
        ("[]", "{", "[" * 100_000, '{"state": "complete"}', '{"state": 1, "start": 2}'), 4
    ):
        (directory / f"20261124T135943Z-1-{n}.nsight").mkdir()
        (directory / f"20261124T135943Z-1-{n}.nsight/manifest.json").write_text(text)
    (directory / "20261124T135943Z-1-10.nsight").mkdir()
    os.mkfifo(directory / "20261124T135943Z-1-10.nsight/manifest.json")
    (directory / "20261124T135943Z-1-11.nsight").write_text("a file")
    assert found(recorder) == {}


def n_without(recorder: flight.Recorder, last: bool = False) -> int:
    """The count of latencies without a window, from a line of sums."""
    return snapshots.snapshot(recorder.counted(lines.snapshot(1, counts={"peek": 1}, last=last))).counts[
        "slow_without_window"
    ]


def test_latencies_without_a_window_are_counted_and_forgotten_in_time(
    directory: Path, asked: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, now = flight.Recorder(directory, 20), time.monotonic_ns()
    for n in range(1000):
        recorder.add(slow(now + n))
    assert recorder.waits
    # 256 wait; one of them gets a window.
    assert (n_without(recorder), n_without(recorder, last=True)) == (744, 1000)
    assert list(found(recorder).values()) == []
    window(directory, 2, now + 999, now + 999)
    assert list(found(recorder).values()) == [[now + 999]]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now + HOUR_NS)
    assert found(recorder) == {} and not recorder.waits
    assert n_without(recorder) == n_without(recorder, last=True) == 999


def test_lines_that_are_no_sums_stay_as_they_are(directory: Path) -> None:
    recorder = flight.Recorder(directory, 20)
    for line in (lines.header(), '{"names":{}}\n', '{"monotonic_ns"'[:-1], ""):
        assert recorder.counted(line) == line


def test_a_recorder_that_has_ended_is_said_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = flight.Recorder(directory, 20)

    def nobody(_root: Path, _only: Container[int] | None = None) -> list[int]:
        raise RecordError("no flight recorder runs on this machine")

    monkeypatch.setattr(flight_directory, "ask_all", nobody)
    for _ in range(3):
        recorder.add(slow(time.monotonic_ns()))
    assert (
        capsys.readouterr().err
        == "warning: no window of slow latencies: no flight recorder runs on this machine\n"
    )


def test_lines_pass_in_order_without_the_slow_ones_and_with_the_windows(
    directory: Path, asked: list[set[int]]
) -> None:
    recorder, now = flight.Recorder(directory, 20), time.monotonic_ns()
    row = json.dumps({"slow": vars(slow(now))}) + "\n"

    def given():  # type: ignore[no-untyped-def]
        yield "first\n"
        yield row
        window(directory, 2, now - 1, now + 1)
        yield "last\n"

    out = list(flight.merged(given(), recorder))
    assert [line for line in out if not line.startswith("{")] == ["first\n", "last\n"]
    (held,) = [snapshots.other(line) for line in out if line.startswith("{")]
    assert held == Window("20261124T135943Z-1-2.nsight", (slow(now),), n=1)
    assert asked == [{os.getpid()}]
