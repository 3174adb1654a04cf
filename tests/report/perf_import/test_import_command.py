# SPDX-License-Identifier: GPL-2.0-only
"""nsight-report import: what it prints and rejects, damaged files, and a recording of a real kernel."""

from __future__ import annotations

import json
import lzma
import os
import random
import re
import struct
import subprocess
from pathlib import Path

import nsight_report
import numpy as np
import pytest
from machinery.harness import built, warm
from nsight_report.capture import native
from nsight_report.perf_import import import_perf_data
from recording import AUXTRACE, AUXTRACE_INFO, Recording, record
from world import BEGIN, MS, US, WORKER, machine, request, socket, switch

ROOT = Path(__file__).resolve().parents[3]
DATA = Path(__file__).parent / "data"
NATIVE = Path(native.__file__).parents[2] / "native"


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return warm.run(words)


def small(path: Path, **choices: object) -> Path:
    """A recording of one request."""
    made = machine(**choices)
    switch(made, BEGIN + US, 1, (0, b"swapper/1"), (WORKER, b"mc-worker"))
    request(made, BEGIN + MS, pos=0, length=30, read_at=BEGIN + MS + 20 * US)
    return made.write(path)


def test_capture_is_made_beside_the_file_and_the_next_step_is_named(tmp_path: Path) -> None:
    done = run("import", small(tmp_path / "perf.data"))
    assert (done.returncode, done.stderr) == (0, "")
    capture = tmp_path / "perf.nsight"
    assert done.stdout == (
        f"{capture}: mode tracepoints; 1 arrivals, 1 handoffs, 1 reads\nnext: nsight-report {capture}\n"
    )
    assert sorted(p.name for p in capture.iterdir()) == [
        "clock.tsv",
        "events.tsv",
        "manifest.json",
        "perf.data",
    ]
    assert (capture / "perf.data").read_bytes() == (tmp_path / "perf.data").read_bytes()
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_report_says_where_the_capture_comes_from(tmp_path: Path) -> None:
    capture = nsight_report.open(import_perf_data(small(tmp_path / "perf.data")).capture)
    assert capture.manifest.command() == "nsight-report import perf.data"
    assert capture.manifest.text("host", "kernel") == "7.2.0-nsight"


def test_directory_of_kcore_is_imported_whole(tmp_path: Path) -> None:
    directory = tmp_path / "perf.data"
    (directory / "kcore_dir").mkdir(parents=True)
    (directory / "kcore_dir/kallsyms").write_text("0 T _text\n")
    small(directory / "data")
    capture = import_perf_data(directory).capture
    assert capture == tmp_path / "perf.nsight"
    assert (capture / "perf.data/kcore_dir/kallsyms").read_text() == "0 T _text\n"
    assert (capture / "perf.data/data").stat().st_size == (directory / "data").stat().st_size


def test_json_tells_what_cannot_be_known(tmp_path: Path) -> None:
    done = run("import", small(tmp_path / "perf.data"), "-o", tmp_path / "x.nsight", "--json")
    told = json.loads(done.stdout)
    assert told["events"] == {"arrivals": 1, "handoffs": 1, "reads": 1}
    assert {row["cause"] for row in told["losses"]} >= {
        "sent messages not recorded",
        "network namespaces not recorded",
    }


def test_report_of_a_perf_data_names_the_command_that_makes_a_capture(tmp_path: Path) -> None:
    done = run(small(tmp_path / "perf.data"))
    assert done.returncode == 3
    assert f"nsight-report import {tmp_path / 'perf.data'}" in done.stderr


def assert_refused(done: subprocess.CompletedProcess[str], code: int, why: str, fix: str) -> None:
    assert done.returncode == code, done.stderr
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ") and why in error
    assert hint.startswith("hint: ") and fix in hint
    assert done.stdout == ""


def test_existing_capture_is_not_touched(tmp_path: Path) -> None:
    path = small(tmp_path / "perf.data")
    (tmp_path / "perf.nsight").mkdir()
    assert_refused(run("import", path), 2, "exists", "-o")
    assert not list((tmp_path / "perf.nsight").iterdir())


def test_recording_that_lacks_something_is_refused_with_the_fix(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    loopback = ROOT / "tests/report/capture/data/loopback.data"
    assert_refused(
        run("import", loopback, "-o", tmp_path / "x"), 3, "no sock:sock_data_read", "kernel-patches/net"
    )
    path.write_bytes(b"not a recording")
    assert_refused(run("import", path), 3, "not a perf.data file", "perf record")
    assert_refused(run("import", tmp_path / "absent"), 3, "no such file", "perf record")
    machine().write(path)
    assert_refused(run("import", path), 3, "no message was read", "traffic")
    made = machine(names=tuple(n for n in Recording().names if n != "sched:sched_switch"))
    socket(made, "sock_data_read", BEGIN + US, pos=0, length=9)
    made.write(path)
    assert_refused(run("import", path), 3, "nothing shows what the cores did", "sched:sched_switch")
    small(path, formats=False)
    assert_refused(run("import", path), 3, "formats of its tracepoints are missing", "SIGINT")
    assert [p.name for p in tmp_path.iterdir()] == ["perf.data"]


def test_mode_is_intel_pt_with_intel_pt_in_the_file_and_tracepoints_with_another_trace(
    tmp_path: Path,
) -> None:
    for kind, mode in ((1, "intel-pt"), (4, "tracepoints")):
        made = machine()
        switch(made, BEGIN + US, 1, (0, b"swapper/1"), (WORKER, b"mc-worker"))
        request(made, BEGIN + MS, pos=0, length=30, read_at=BEGIN + MS + 20 * US)
        made.records.append(record(AUXTRACE_INFO, struct.pack("<II", kind, 0)))
        made.records.append(record(AUXTRACE, struct.pack("<QQQIII", 8, 0, 0, 0, 0, 0) + bytes(4)) + bytes(8))
        path = made.write(tmp_path / f"{mode}.data")
        result = import_perf_data(path)
        assert result.mode == mode
        assert json.loads((result.capture / "manifest.json").read_text())["mode"] == mode
        assert ("trace data of another kind" in {r["cause"] for r in result.losses}) == (
            mode == "tracepoints"
        )


def test_losses_of_an_untrusted_manifest_are_taken_only_if_they_are_such(tmp_path: Path) -> None:
    capture = import_perf_data(small(tmp_path / "perf.data")).capture
    path = capture / "manifest.json"
    content = json.loads(path.read_text())
    good = {"cause": "this", "severity": "info", "count": 3, "detail": "", "remedy": ""}
    bad = [
        7,
        {"cause": "a", "severity": "fatal", "count": 1},
        {**good, "count": "many"},
        {**good, "count": -1},
    ]
    path.write_text(json.dumps({**content, "imported": {"losses": [good, *bad]}}))
    assert nsight_report.open(capture).manifest.losses().table()["cause"].to_pylist() == ["this"]


def test_damaged_recordings_end_in_an_error_with_a_fix_or_in_a_capture(tmp_path: Path) -> None:
    """With the sanitizers; a recording that they accept must not break its readers either."""
    checked = NATIVE / "build/asan/nsight-perfdata"
    built.make(NATIVE, "build/asan/nsight-perfdata")
    whole = small(tmp_path / "whole.data").read_bytes()
    rng = random.Random(20261121)
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    out = tmp_path / "out"
    out.mkdir()
    for number in range(120):
        made = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(104, len(made) - 8)
            if rng.random() < 0.5:
                made[at] ^= 1 << rng.randrange(8)
            else:
                struct.pack_into(
                    "<Q", made, at, rng.choice((0, 1, 7, 0xFFFF, 1 << 31, 1 << 62, (1 << 64) - 1))
                )
        path = tmp_path / "damaged.data"
        path.write_bytes(made)
        done = subprocess.run(
            [str(checked), "--wide", str(path), str(out)], capture_output=True, text=True, errors="replace",
            timeout=300, env=environment,
        )  # fmt: skip
        assert done.returncode in (0, 3), (number, done.stderr)
        try:
            import_perf_data(path, tmp_path / f"{number}.nsight")
        except nsight_report.errors.NsightError as error:
            assert str(error)


# A kernel 7.2 with the series in a virtual machine: half a second around the moment at which its clock was set forward by
# 5 s. memcached on core 1, its client on core 0, hardware timestamps by a test driver whose clock is ahead and skewed.
@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> nsight_report.Capture:
    directory = tmp_path_factory.mktemp("guest")
    for name in ("guest.data", "guest.tsv"):
        (directory / name).write_bytes(lzma.decompress((DATA / f"{name}.xz").read_bytes()))
    return nsight_report.open(
        import_perf_data(directory / "guest.data", beside=directory / "guest.tsv").capture
    )


def test_real_recording_has_all_stamps_of_every_message_in_order(guest: nsight_report.Capture) -> None:
    messages = guest.messages
    assert len(messages) == 222
    assert set(messages["timestamps"].astype(str)) == {"nahr", "ahr"}  # no reading of the PHC at the ends
    stamped = messages[messages["nic_ns"].notna()]
    assert len(stamped) > 100 and set(stamped["nic_source"].astype(str)) == {"hw"}
    times = messages[["nic_ns", "arrival_ns", "handoff_ns", "app_ns"]].astype("Int64")
    for before, after in zip(times.columns, times.columns[1:], strict=False):
        gap = (times[after] - times[before]).dropna()
        assert (gap >= 0).all() and (gap < 50 * MS).all(), (before, after)
    # The test driver timestamps 4 to 6 us before the hand-over; after that the softirq still has to run.
    assert int((times["arrival_ns"] - times["nic_ns"]).min()) > 4000 - 1000
    assert int(messages["nic_error_ns"].max()) < 1000


def test_real_recording_s_messages_are_the_server_s_and_its_client_s(guest: nsight_report.Capture) -> None:
    messages = guest.messages
    assert set(messages["comm"].astype(str)) == {"mc-worker", "load-client"}
    assert set(messages["proto"]) == {6, 17}
    served = messages[messages["lport"] == 11211]
    assert set(served["app_cpu"]) == {1} and served["call_ns"].notna().all() and (served["fd"] > 0).all()


def test_real_step_is_at_its_update_and_readings_agree_with_the_map(guest: nsight_report.Capture) -> None:
    clock_map = guest.clock_map
    real = clock_map[(clock_map["domain"] == "realtime") & (clock_map["source"] == "timekeeper")]
    mono = clock_map[(clock_map["domain"] == "monotonic") & (clock_map["source"] == "timekeeper")]
    assert int(mono["error_ns"].max()) < 200
    # Between two updates realtime - monotonic changes once, by the 5 s and the time needed to set it.
    joined = real.merge(mono, on="tsc_start", suffixes=("_r", "_m"))
    between = np.unique((joined["anchor_ns_r"] - joined["anchor_ns_m"]).to_numpy())
    steps = np.diff(between)[np.diff(between) > 1000]
    assert len(steps) == 1 and 4_000_000_000 < steps[0] < 5_100_000_000
    # nsight-clock's readings are compared with the map: none contradicts it
    assert "clock map contradicted" not in set(guest.losses["cause"].astype(str))


def test_real_recording_is_explained(guest: nsight_report.Capture) -> None:
    assert guest.causes["share"].sum() > 0.9
    assert guest.coverage["coverage"].min() > 0.9


def test_document_records_events_that_are_read_and_names_all_that_are() -> None:
    text = (ROOT / "Documentation/no-bpf.md").read_text()
    recorded = set(re.findall(r"-e (\w+:\w+)", text))
    read = {
        f"{system}:{event}"
        for name in ("tracepoint_fields.c", "event_fields.c")
        for system, event in re.findall(r'\{"(\w+)",\s*"(\w+)",\s*[KW]_', (NATIVE / name).read_text())
    }
    vectors = {event for event in recorded if event.startswith("irq_vectors:")}
    assert len(recorded) > 25 and recorded - vectors <= read
    wide = set(re.findall(r'\{"(\w+)",\s*"(\w+)",\s*W_', (NATIVE / "tracepoint_fields.c").read_text()))
    assert len(wide) == 7
    assert {f"{system}:{event}" for system, event in wide} <= set(re.findall(r"\w+:\w+", text))
