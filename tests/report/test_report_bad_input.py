# SPDX-License-Identifier: GPL-2.0-only
"""Bad captures and bad options: one error with its fix, the documented exit code, no traceback."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from machinery.made_up.capture import MS, START, manifest, write_capture
from nsight_report import files
from nsight_report.capture.check import check_together
from nsight_report.errors import BadInput
from nsight_report.manifest import Manifest, load
from nsight_report.stage import Context, Options
from nsight_report.tables import schema
from nsight_report.tables.intervals import IntervalTable
from nsight_report.tables.messages import Messages
from nsight_report.tables.store import Store
from nsight_report.timeline.recording import host

from .conftest import Run

Break = Callable[[Path], Any]


def _manifest(**changes: Any) -> Break:
    return lambda c: (c / "manifest.json").write_text(json.dumps(manifest(**changes)))


def _write(name: str, data: bytes) -> Break:
    return lambda c: (c / name).write_bytes(data)


def _remove(name: str) -> Break:
    return lambda c: (c / name).unlink()


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


# How the capture is broken, and a word that the error must contain.
BROKEN: dict[str, tuple[Break, str]] = {
    "no manifest": (_remove("manifest.json"), "manifest.json"),
    "truncated manifest": (_write("manifest.json", b'{"format": "nsight-cap'), "truncated"),
    "empty manifest": (_write("manifest.json", b""), "truncated"),
    "binary manifest": (_write("manifest.json", bytes(range(256))), "not JSON"),
    "nested manifest": (_write("manifest.json", b"[" * 200_000), "not JSON"),
    "manifest nested as deep as can be read": (_manifest(command=_nested(900)), "nested too deeply"),
    "foreign manifest": (_write("manifest.json", b'{"name": "left-pad"}'), "not the manifest"),
    "manifest is a list": (_write("manifest.json", b"[1, 2]"), "not the manifest"),
    "newer version": (_manifest(version=2), "version '2'"),
    "version of another type": (_manifest(version=True), "version 'True'"),
    "unknown mode": (_manifest(mode="gold"), "gold"),
    "unknown state": (_manifest(state="half"), "half"),
    "stops before it starts": (_manifest(stop={"monotonic_ns": 5}), "impossible times"),
    "a wall clock that no table holds": (
        _manifest(start={"monotonic_ns": 5, "realtime_ns": 1 << 63}),
        "impossible times",
    ),
    "negative start": (_manifest(start={"monotonic_ns": -5}), "impossible times"),
    "missing clock.tsv": (_remove("clock.tsv"), "clock.tsv: missing"),
    "empty clock.tsv": (_write("clock.tsv", b""), "clock.tsv: empty"),
    "foreign clock.tsv": (_write("clock.tsv", b"PK\x03\x04" * 100), "clock.tsv"),
}


def assert_one_error(done: Any, code: int, word: str) -> None:
    """Exactly one error line, one hint, nothing on standard output, no traceback."""
    assert done.returncode == code, done.stderr
    lines = done.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "hint"], done.stderr
    assert word in lines[0]
    assert "internal error" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("name", BROKEN)
def test_broken_capture_gives_one_error_and_its_fix(run: Run, capture: Path, name: str) -> None:
    damage, word = BROKEN[name]
    damage(capture)
    assert_one_error(run(capture), 3, word)


@pytest.mark.parametrize("value", ["x", [1], -5, 1 << 40, float("inf"), None])
def test_settings_that_cannot_be_are_as_if_not_recorded(value: object) -> None:
    told = manifest(
        nics=[
            {"name": "eth0", "coalescing": {"rx_coalesce_usecs": value}},
            {"coalescing": {"rx_coalesce_usecs": 3}},
        ],
        host={"idle_states": [{"latency_us": value}, {"latency_us": 9}]},
        throttled=[{"pids": value}, {"pids": [7, value]}, value],
    )
    found = host(Manifest("tracepoints", False, told))
    assert (found.coalesce_ns, max(found.exit_ns), found.throttled[-1]) == (3_000, 9_000, 7)


def test_texts_of_a_manifest_that_are_no_unicode_can_be_written(tmp_path: Path) -> None:
    """JSON can contain a lone surrogate; a recorder argument that is not UTF-8 becomes one."""
    told = manifest(
        command=["nsight-record", "\udc80"],
        host={"hostname": "\ud800"},
        losses=[{"tool": "\udfff", "what": "lost", "count": 1 << 61}] * 5,
        imported={"losses": [{"severity": "info", "count": 1, "cause": "\ud800"}]},
    )
    (tmp_path / "manifest.json").write_text(json.dumps(told))
    read = load(tmp_path)
    assert (read.command(), read.text("host", "hostname")) == ("nsight-record ?", "?")
    rows = {row["cause"]: row["count"] for row in read.losses().table().to_pylist()}
    assert rows == {"?: lost": 2**63 - 1, "?": 1}


def test_path_that_is_no_capture(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert_one_error(run(tmp_path / "absent"), 3, "no such capture")
    assert_one_error(run(tmp_path / "file"), 3, "not a capture directory")
    assert_one_error(run(tmp_path), 3, "not a capture")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--slow", "slow"), "slow"),
        (("--slow", "p99-p100"), "p99-p100"),
        (("--baseline", "p75-25"), "p75-25"),
    ],
)
def test_slice_that_cannot_be_read(run: Run, capture: Path, options: tuple[str, ...], word: str) -> None:
    assert_one_error(run(capture, *options), 2, word)


@pytest.mark.parametrize(
    "options",
    [("--port", "0"), ("--port", "http"), ("--stage", "nothing"), ("--framing", "x"), ("--no-such",)],
)
def test_wrong_usage_exits_2_and_shows_usage(run: Run, capture: Path, options: tuple[str, ...]) -> None:
    done = run(capture, *options)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: nsight-report")
    assert done.stdout == ""


@pytest.mark.parametrize("option", [("--json",), ("--rerun", "cores"), ("--lifetimes", "0", "-o", "out")])
def test_stage_refuses_what_is_of_a_report(run: Run, capture: Path, option: tuple[str, ...]) -> None:
    done = run(capture, "--stage", "attribution", *option)
    assert_one_error(done, 2, f"{option[0]} does not go with --stage")


def test_framing_without_payload_names_the_recorder_option(run: Run, capture: Path) -> None:
    done = run(capture, "--framing", "memcached")
    assert_one_error(done, 3, "payload.pcap")
    assert "--payload" in done.stderr


def test_categories_file_that_does_not_exist(run: Run, capture: Path) -> None:
    assert_one_error(run(capture, "--categories", "/nonexistent.csv"), 3, "/nonexistent.csv")


@pytest.mark.parametrize("state", ["recording", "cut"])
def test_cut_capture_is_analysed_with_a_warning(run: Run, tmp_path: Path, state: str) -> None:
    capture = write_capture(tmp_path / "cut.nsight", told=manifest(state=state))
    done = run(capture, "--json")
    assert done.returncode == 0, done.stderr
    losses = json.loads(done.stdout)["losses"]
    assert ("record", "capture was cut", "warning") in [
        (x["stage"], x["cause"], x["severity"]) for x in losses
    ]
    assert "This capture was cut" in run(capture).stdout


def test_internal_error_is_one_line_and_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], capture: Path
) -> None:
    from nsight_report import cli

    def broken(_args: object) -> int:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(cli, "_run", broken)
    assert cli.main([str(capture)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: internal error: ZeroDivisionError: by\\nzero")
    assert len(error.splitlines()) == 2
    assert cli.main([str(capture), "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


RECORDED = Manifest(
    "tracepoints", False, {"start": {"monotonic_ns": START}, "stop": {"monotonic_ns": START + MS}}
)


@pytest.mark.parametrize(
    ("event", "context", "word"),
    [
        # perf.data ends 1 ns before the only event / starts 1 ns after it
        (START + 10, (START, START + 9), "do not overlap in time (1 ns apart)"),
        (START + 10, (START + 11, START + 20), "do not overlap in time (1 ns apart)"),
        # both are one hour before the recording that the manifest describes
        (
            START - 3600 * 1000 * MS,
            (START - 3600 * 1000 * MS, START - 3600 * 1000 * MS + 5),
            "outside the recording",
        ),
    ],
)
def test_files_of_different_recordings_are_refused(event: int, context: tuple[int, int], word: str) -> None:
    with pytest.raises(BadInput, match=r"different recordings|overlap|outside") as caught:
        check_together(RECORDED, (event, event), context)
    assert word in str(caught.value)
    assert "different recordings or boots" in caught.value.hint


def test_files_of_one_recording_are_accepted() -> None:
    check_together(RECORDED, (START, START), (START, START + 9))


# One timekeeper state (2 GHz, mult / 2**shift = 0.5 ns a cycle) and one paired reading.
CLOCK = (
    "#nsight-clock 1 tsc_khz=2000000 clocksource=tsc\n"
    "V\t1000\t1000\t2\t1\t1000\t4194304\t23\t100\t0\t50\t0\t50\t0\t137\t0\n"
    "B\tmonotonic\t2000\t50000000500\t2000\n"
)
HEADER = b"#nsight-events 1 clock=monotonic\n"


def test_recording_without_traffic_says_so(run: Run, capture: Path) -> None:
    shutil.rmtree(capture / "tables")
    (capture / "clock.tsv").write_text(CLOCK)
    (capture / "events.tsv").write_bytes(HEADER + b"@n[ack]: 4\n#end\n")
    assert_one_error(run(capture), 3, "no message was recorded")


def test_events_that_were_all_rejected_are_not_called_no_traffic(run: Run, capture: Path) -> None:
    shutil.rmtree(capture / "tables")
    (capture / "clock.tsv").write_text(CLOCK)
    line = b"R\t" + b"\t".join([b"nonsense"] * 23) + b"\n"
    (capture / "events.tsv").write_bytes(HEADER + line * 3 + b"@n[R]: 3\n#end\n")
    assert_one_error(run(capture), 3, "no usable message event")


@pytest.mark.parametrize("name", ["manifest.json", "clock.tsv", "events.tsv", "perf.data"])
def test_pipe_in_a_capture_does_not_block(capture: Path, name: str) -> None:
    (capture / name).unlink()
    os.mkfifo(capture / name)
    with pytest.raises(BadInput, match="not a regular file"):
        if name == "manifest.json":
            load(capture)
        else:
            Context(
                capture,
                Manifest("tracepoints", False, {}),
                Options(),
                lambda _name: schema.empty("events"),
                lambda _name: IntervalTable(schema.empty("calls")),
                *[lambda: Messages(schema.empty("messages"))] * 3,
            ).raw(name)


TABLES = ["stages.json", "clock_map.parquet", "messages.parquet", "calls.parquet", "causes.parquet"]


@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
@pytest.mark.parametrize("name", TABLES)
def test_stored_table_that_is_no_file_is_made_again(
    run: Run, capture: Path, tmp_path: Path, name: str, kind: str
) -> None:
    """A pipe would block for ever, and a link could lead to the tables of another capture."""
    path = capture / "tables" / name
    path.rename(tmp_path / name)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / name)
    store = Store(capture / "tables")
    if name == "stages.json":
        assert store.entry("clocks") == {}
    else:
        assert store.entry("clocks") != {}
        assert not store.holds(path.stem)
        assert store.load(path.stem) is None


def test_pipe_among_the_tables_is_replaced(run: Run, capture: Path) -> None:
    path = capture / "tables/causes.parquet"
    path.unlink()
    os.mkfifo(path)
    assert run(capture).returncode == 0
    assert Store(capture / "tables").holds("causes")


def test_pipe_in_place_of_the_stages_is_no_reason_to_wait(run: Run, capture: Path) -> None:
    """All stages must run, but this capture has no data for them."""
    (capture / "tables/stages.json").unlink()
    os.mkfifo(capture / "tables/stages.json")
    assert_one_error(run(capture), 3, "clock.tsv: not a recording")


def test_tables_in_a_directory_that_is_a_link_are_not_believed(capture: Path, tmp_path: Path) -> None:
    (capture / "tables").rename(tmp_path / "tables")
    (capture / "tables").symlink_to(tmp_path / "tables")
    store = Store(capture / "tables")
    assert store.entry("clocks") == {}
    assert not store.holds("messages")
    assert Store(tmp_path / "tables").holds("messages")


@pytest.mark.parametrize("name", ["manifest.json", "clock.tsv"])
def test_link_in_a_capture_is_not_followed(run: Run, capture: Path, tmp_path: Path, name: str) -> None:
    shutil.rmtree(capture / "tables")
    (capture / name).rename(tmp_path / name)
    (capture / name).symlink_to(tmp_path / name)
    assert_one_error(run(capture), 3, "not a regular file")


def test_device_in_a_capture_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a regular file"):
        files.descriptor(Path("/dev/null"))
    with pytest.raises(FileNotFoundError):
        files.descriptor(tmp_path / "absent")


def test_pipe_instead_of_a_capture_does_not_block(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert_one_error(run(tmp_path / "pipe"), 3, "not a capture directory")
