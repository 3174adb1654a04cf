# SPDX-License-Identifier: GPL-2.0-only
"""The flight recorder's options, clock readings and registry, without recording anything."""

from __future__ import annotations

import configparser
import fcntl
import os
import signal
from pathlib import Path

import made_up_machine
import pytest
from nsight_record import flight, flight_directory, flight_options, host, tally
from nsight_record.cli import main, parser
from nsight_record.errors import OutputError, RecordError, Usage

from conftest import ROOT

MIB = 1 << 20


def options(*triggers: str) -> flight_options.Options:
    made = flight_options.Options()
    for text in triggers:
        made.add_trigger(text)
    return made


def test_triggers_are_what_they_say() -> None:
    made = options("latency=1.5ms", "drops=100/s", "retransmissions=7/s")
    assert (made.latency_us, made.percentile, made.drops, made.retransmissions) == (1500, 0, 100, 7)
    made = options("latency=p99.9")
    assert (made.latency_us, made.percentile) == (0, 99.9)
    assert made.argv()[-6:-4] == ["--most-cpu", "10.0"]
    assert "--percentile" in made.argv()
    assert "--latency-us" not in made.argv()


@pytest.mark.parametrize(
    "text",
    ["latency", "latency=2", "latency=0ms", "latency=p100", "latency=p10", "latency=2000s", "drops=1", "drops=1/h", "drops=0/s", "x=\x1b"],
)  # fmt: skip
def test_what_is_no_trigger_is_refused_and_the_right_form_is_told(text: str) -> None:
    with pytest.raises(Usage) as error:
        options(text)
    assert "\x1b" not in str(error.value)


def test_a_second_limit_of_the_same_kind_is_refused() -> None:
    for first, second in (
        ("latency=2ms", "latency=5ms"),
        ("latency=p99", "latency=p99.9"),
        ("drops=1/s", "drops=9/s"),
    ):
        with pytest.raises(Usage, match="another limit"):
            options(first, second)


def test_rings_are_as_large_as_the_memory_allows() -> None:
    assert flight_options.Options().ring_kb(2, 64 << 30) == 64 << 10
    assert flight_options.Options().ring_kb(64, 64 << 30) == 32 << 10  # 1/32 of 64 GiB, of 64 cores
    assert flight_options.Options(memory=100 * MIB).ring_kb(3, 0) == 32 << 10
    with pytest.raises(Usage, match=r"128 cores need 8\.4 MB"):
        flight_options.Options(memory=MIB).ring_kb(128, 64 << 30)


@pytest.mark.parametrize(("possible", "n"), [("0-239\n", 240), ("0-3,8,10-11\n", 7), ("", 4)])
def test_memory_is_of_every_core_that_may_be_plugged_in(tmp_path: Path, possible: str, n: int) -> None:
    machine = made_up_machine.build(tmp_path / "root", n_cpus=4)
    made_up_machine.put(machine.root, "sys/devices/system/cpu/possible", possible)
    assert machine.n_possible_cpus == n


def test_windows_that_are_there_count_for_the_disk() -> None:
    made = flight_options.Options(most_disk=10 * MIB)
    assert made.argv()[-1] == "10"
    assert made.argv(4 * MIB)[-1] == "6"
    assert made.argv(40 * MIB)[-1] == "0"


def test_what_killed_recorders_left_counts_for_the_disk_and_is_told(tmp_path: Path) -> None:
    gone = 4_194_305  # beyond the kernel's largest PID
    for path, size in ((".run-{}/perf.data", 3000), (".run-{}/records/.window-7/cpu-0.records", 200)):
        for pid in (gone, 1):
            file = tmp_path / path.format(pid)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(bytes(size))
    (tmp_path / ".run-x").mkdir()
    (tmp_path / "a.nsight").mkdir()
    (tmp_path / "a.nsight/manifest.json").write_bytes(bytes(10))
    for name in ("b.nsight", ".run-y"):  # links are not followed
        (tmp_path / name).symlink_to(tmp_path / f".run-{gone}")
    directory = flight_directory.Directory(tmp_path, None)
    assert directory.used() == 10 + 2 * 3200
    assert directory.left() == [(tmp_path / f".run-{gone}", 3200)]
    directory.close(keep_logs=False)


def test_the_services_options_are_the_programs() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "tools/nsight-record/nsight-flight.service")
    name, _, default = unit["Service"]["Environment"].partition("=")
    command = unit["Service"]["ExecStart"].replace(f"${name}", default.strip('"')).split()
    args = parser().parse_args(command[1:])
    assert (args.flight, args.output, args.trigger) == (True, "/var/lib/nsight", ["latency=p99.99"])
    assert options(*args.trigger).percentile == 99.99
    assert unit["Service"]["StateDirectory"] == "nsight"


def test_clock_readings_are_those_of_the_last_seconds_and_unseen_states_are_counted() -> None:
    kept = flight.ClockReadings(10)
    kept.add(b"#nsight-clock 1 tsc_khz=1000", 0)
    assert kept.started
    for second, number in enumerate((2, 4, 10, 12)):
        kept.add(f"V\t1\t2\t{number}\trest".encode(), second * 5_000_000_000)
    kept.add(b"E\t1\t2\t3\t4\t5", 15_000_000_000)
    assert kept.text().splitlines() == [
        b"#nsight-clock 1 tsc_khz=1000",
        b"V\t1\t2\t4\trest",
        b"V\t1\t2\t10\trest",
        b"V\t1\t2\t12\trest",
        b"E\t3\t3\t2\t0\t10000000000",  # two of 4 to 10 were not seen
    ]


def test_an_earlier_instant_is_as_much_earlier_in_every_clock() -> None:
    now = {"tsc": 5_000_000, "monotonic_ns": 2_000_000, "realtime_ns": 9_000_000}
    then = host.earlier(now, 1_500_000, 3_000_000)
    assert then == {"tsc": 3_500_000, "monotonic_ns": 1_500_000, "realtime_ns": 8_500_000}
    assert host.earlier(now, 1_500_000, None)["tsc"] is None


def test_pipe_gives_whole_lines() -> None:
    pipe = flight.Pipe()
    os.write(pipe.write_fd, b"one\ntw")
    assert list(pipe.lines()) == [b"one"]
    os.write(pipe.write_fd, b"o\n\n")
    assert list(pipe.lines()) == [b"two", b""]
    assert list(pipe.lines()) == []
    pipe.close()


def test_only_recorders_that_live_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(flight.os, "kill", lambda pid, sig: asked.append((pid, sig)))
    state = tmp_path / "run/nsight"
    state.mkdir(parents=True)
    (state / "flight-77").touch()  # it was killed
    (state / "flight-x").touch()
    with open(state / "flight-88", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert flight_directory.ask_all(tmp_path) == [88]
        with pytest.raises(RecordError, match="no flight recorder runs"):
            flight_directory.ask_all(tmp_path, only={89})  # a recorder that writes elsewhere is left alone
    assert asked == [(88, signal.SIGUSR1)]
    assert not (state / "flight-77").exists()
    with pytest.raises(RecordError, match="no flight recorder runs"):
        flight_directory.ask_all(tmp_path)


def test_a_recorder_that_runs_is_found_and_then_is_not(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    path = tmp_path / f"run/nsight/flight-{os.getpid()}"
    with flight_directory.registered(tmp_path):
        assert path.exists()
        with open(path) as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not path.exists()


def test_directory_may_be_there_but_not_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    flight_directory.Directory(tmp_path / "there", None).close(keep_logs=False)
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with pytest.raises(OutputError):
        flight_directory.Directory(tmp_path / "link", None)
    directory = flight_directory.Directory(tmp_path / "new", None)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    directory.close(keep_logs=False)


@pytest.mark.parametrize(
    ("argv", "needle"),
    [
        (["--flight", "--payload", "100"], "not with --payload"),
        (["--flight", "--", "true"], "not with COMMAND"),
        (["--flight", "--recorder", "bpftrace"], "--recorder bpf"),
        (["--flight", "--trigger", "latency"], "not a trigger"),
        (
            ["--preflight", "--trigger", "latency=2ms", "--most-disk", "1G"],
            "--trigger, --most-disk: only with --flight",
        ),
        (["--flight", "--before", "601"], "at most 600 s"),
        (["--flight", "--windows-per-hour", "4000"], "at most 3600"),
    ],
)
def test_usage_errors_are_told(argv: list[str], needle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert needle in capsys.readouterr().err


def test_losses_of_a_window_have_counts_and_the_steal_time_that_was_not_kept_is_in_ms() -> None:
    none = {"left_out_units": 0, "no_steal_ns": 0}
    assert tally.of_window(none, 0) == []
    found = tally.of_window({"left_out_units": 3, "no_steal_ns": 2_000_001}, 5)
    assert [(loss["count"], loss["what"].split()[0]) for loss in found] == [
        (3, "units"),
        (5, "runs"),
        (3, "ms"),
    ]
