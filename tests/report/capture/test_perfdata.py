# SPDX-License-Identifier: GPL-2.0-only
"""nsight-perfdata compared with perf's reading of the same file."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from nsight_report import calls
from nsight_report.capture import native, perf_data
from nsight_report.capture.perf_data import CODE, KINDS
from nsight_report.errors import Missing
from perf_file_bytes import (
    COMM,
    FORK,
    FORMATS,
    LOOPBACK,
    LOST,
    SWITCH_CPU_WIDE,
    make_file,
    record,
    sample,
    switch_raw,
    trailer,
)

from conftest import skip_or_fail

# From `perf script -i loopback.data -F event | sort | uniq -c` of perf 6.1, vectors summed up.
# sched_process_wait (9 samples) is not decoded, because no context uses it.
COUNTS = {
    "sched_switch": 108,
    "sched_waking": 58,
    "sched_wakeup": 40,
    "sched_wakeup_new": 1,
    "sched_migrate_task": 7,
    "sched_process_fork": 1,
    "sched_process_exec": 1,
    "sched_process_exit": 4,
    "softirq_entry": 69,
    "softirq_exit": 69,
    "sys_enter": 714,
    "sys_exit": 713,
    "napi_poll": 28,
    "vector_entry": 2 + 36 + 19,
    "vector_exit": 2 + 36 + 19,
    "cpu_idle": 74,
    "hrtimer_expire_entry": 37,
    "hrtimer_expire_exit": 37,
}
RECORDS = {"comm", "fork", "exit"}


@pytest.fixture(scope="module")
def loopback() -> perf_data.Decoded:
    decoded, losses = perf_data.load(LOOPBACK)
    assert losses.num_rows == 0
    return decoded


def load(tmp_path: Path, content: bytes) -> tuple[perf_data.Decoded, dict[str, int]]:
    """Decode a made file with the committed formats."""
    path = tmp_path / "perf.data"
    path.write_bytes(content)
    decoded, losses = perf_data.load(path, FORMATS)
    return decoded, {r["cause"]: r["count"] for r in losses.to_pylist()}


def test_counts_are_those_of_perf_script(loopback: perf_data.Decoded) -> None:
    counted = Counter(KINDS[kind] for kind in loopback.events["kind"].tolist())
    assert {kind: n for kind, n in counted.items() if kind not in RECORDS} == COUNTS
    assert loopback.info["n_samples"] == sum(COUNTS.values()) + 9
    assert loopback.info["n_unused_samples"] == 9


def perf_script(fields: str, path: Path = LOOPBACK) -> list[str]:
    if not shutil.which("perf"):
        skip_or_fail("perf", "not installed")
    out = subprocess.run(
        ["perf", "script", "--ns", "-i", str(path), "-F", fields], capture_output=True, text=True, check=True
    )
    return out.stdout.splitlines()


def test_every_event_is_the_one_perf_script_prints(loopback: perf_data.Decoded) -> None:
    line = re.compile(r"\s*(-?\d+)/\s*(-?\d+)\s+\[(\d+)\]\s+(\d+)\.(\d{9}):\s+\w+:(\w+):")
    printed: Counter[tuple[int, int, str]] = Counter()
    for text in perf_script("pid,tid,cpu,time,event"):
        match = line.match(text)
        assert match, text
        cpu, ts = int(match[3]), int(match[4]) * 1_000_000_000 + int(match[5])
        name = re.sub(r"^(local_timer|reschedule|call_function_single)_", "vector_", match[6])
        if name != "sched_process_wait":
            printed[ts, cpu, name] += 1
    ours = Counter(
        (ts, cpu, KINDS[kind])
        for ts, cpu, kind in loopback.events[["ts", "cpu", "kind"]].tolist()
        if KINDS[kind] not in RECORDS
    )
    assert ours == printed


def test_switches_have_the_fields_perf_script_prints(loopback: perf_data.Decoded) -> None:
    line = re.compile(
        r"\s*(\d+)\.(\d{9}):\s+sched:sched_switch:.*prev_comm=(.*) prev_pid=(\d+) prev_prio=\d+"
        r" prev_state=(\S+) ==> next_comm=(.*) next_pid=(\d+) next_prio"
    )
    printed = [
        (int(m[1]) * 1_000_000_000 + int(m[2]), m[3], int(m[4]), m[5], m[6], int(m[7]))
        for text in perf_script("time,event,trace")
        if (m := line.match(text))
    ]
    letters = {0: "R", 0x100: "R+", 1: "S", 2: "D", 0x80: "I", 0x10: "X", 0x20: "Z", 0x40: "P"}
    switches = loopback.events[loopback.events["kind"] == CODE["sched_switch"]]
    ours = [
        (
            ts,
            loopback.strings[c & 0xFFFFFFFF],
            tid,
            letters[b],
            loopback.strings[c >> 32],
            a,
        )
        for ts, tid, a, b, c in switches[["ts", "tid", "a", "b", "c"]].tolist()
    ]
    assert len(ours) == 108
    assert sorted(ours) == sorted(printed)


def test_system_calls_have_the_numbers_and_arguments_perf_script_prints(loopback: perf_data.Decoded) -> None:
    line = re.compile(r"\s*raw_syscalls:sys_(enter|exit): NR (-?\d+) (?:\(([0-9a-f]+),|= (-?\d+))")
    printed = Counter(
        (m[1], int(m[2]), int(m[3], 16) if m[3] else int(m[4]))
        for text in perf_script("event,trace")
        if (m := line.match(text))
    )
    ours: Counter[tuple[str, int, int]] = Counter()
    for side in ("enter", "exit"):
        chosen = loopback.events[loopback.events["kind"] == CODE[f"sys_{side}"]]
        # perf prints arguments as unsigned
        ours.update(
            (side, a, b & 0xFFFFFFFFFFFFFFFF if side == "enter" else b)
            for a, b in chosen[["a", "b"]].tolist()
        )
    assert ours == printed


def test_header_tells_clock_host_and_command(loopback: perf_data.Decoded) -> None:
    assert loopback.clock == "monotonic"
    assert loopback.info["hostname"] == "host.example"
    assert loopback.info["nrcpus_online"] == 2
    assert loopback.info["perf_version"] == "6.1.192"
    assert loopback.info["cmdline"][:3] == ["/usr/bin/perf", "record", "-q"]
    assert loopback.info["first_ts"] == int(loopback.events["ts"][loopback.events["ts"] > 0].min())


def test_events_come_in_time_order(loopback: perf_data.Decoded) -> None:
    assert (np.diff(loopback.events["ts"].astype(np.int64)) >= 0).all()


def test_interrupt_vectors_keep_their_names(loopback: perf_data.Decoded) -> None:
    vectors = loopback.events[loopback.events["kind"] == CODE["vector_entry"]]
    names = Counter(loopback.strings[c] for c in vectors["c"].tolist())
    assert names == {"local_timer": 36, "call_function_single": 19, "reschedule": 2}


def test_idle_exit_is_minus_one(loopback: perf_data.Decoded) -> None:
    states = set(loopback.events[loopback.events["kind"] == CODE["cpu_idle"]]["a"].tolist())
    assert states == {-1, 1}  # perf prints 4294967295 and 1


def test_real_file_becomes_tables_that_tile_each_core(loopback: perf_data.Decoded) -> None:
    _, contexts, states, _ = calls.build(loopback, {"44": "sendto", 45: "recvfrom"})
    frame = contexts.to_pandas()
    for _, core in frame.groupby("cpu"):
        assert (core["start_ns"].iloc[1:].to_numpy() == core["end_ns"].iloc[:-1].to_numpy()).all()
    assert {"sendto", "recvfrom", "NET_RX", "local_timer", "idle"} <= set(frame["symbol"])
    assert "running" in set(states["state"].to_pylist())


def test_made_file_with_known_bytes(tmp_path: Path) -> None:
    decoded, losses = load(
        tmp_path,
        make_file(
            [
                sample(100, 5000, 7, 1, switch_raw(7, 1, 8, (b"worker", b"other\0junk"))),
                sample(100, 4000, 6, 0, switch_raw(6, 0x100, 9)),
                record(
                    LOST, bytes([100, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]) + trailer(6000, 8, 1, 100)
                ),
            ]
        ),
    )
    rows = [(KINDS[k], ts, cpu, tid, a, b) for ts, k, cpu, _, tid, _, a, b, _ in decoded.events.tolist()]
    assert rows == [
        ("sched_switch", 4000, 0, 6, 9, 0x100),
        ("sched_switch", 5000, 1, 7, 8, 1),
        ("lost", 6000, 1, 8, 3, 0),
    ]
    assert {decoded.strings[c & 0xFFFFFFFF] for c in decoded.events["c"][:2].tolist()} == {"prev", "worker"}
    assert decoded.strings[int(decoded.events["c"][1]) >> 32] == "other"  # ends at the first NUL
    assert losses == {"perf lost events": 3}


def test_side_band_records_are_decoded(tmp_path: Path) -> None:
    pids = (11).to_bytes(4, "little") + (12).to_bytes(4, "little")
    fork = b"".join(n.to_bytes(4, "little") for n in (20, 10, 21, 11)) + bytes(8)
    decoded, _ = load(
        tmp_path,
        make_file(
            [
                record(COMM, pids + b"name\0\0\0\0" + bytes(40)),  # about perf: no time, no id
                record(FORK, fork + trailer(100, 11, 0, 100)),
                record(SWITCH_CPU_WIDE, pids + trailer(200, 30, 1, 100), misc=1 << 13 | 1 << 14),
            ]
        ),
    )
    rows = [
        (KINDS[k], ts, cpu, pid, tid, a, b, c) for ts, k, cpu, pid, tid, _, a, b, c in decoded.events.tolist()
    ]
    assert rows[0][:4] == ("comm", 0, perf_data.NO_CPU, 11)
    assert (rows[0][5], decoded.strings[rows[0][7]]) == (12, "name")
    assert rows[1] == ("fork", 100, 0, 20, 11, 21, 11, 10)
    assert rows[2] == ("switch_out", 200, 1, 30, 30, 12, 11, 1)  # to thread 12 of process 11, preempted


@pytest.mark.parametrize(
    ("clockid", "name"), [(None, "perf"), (0, "realtime"), (1, "monotonic"), (7, "boottime"), (11, "tai")]
)
def test_clock_of_the_file_is_named(tmp_path: Path, clockid: int | None, name: str) -> None:
    decoded, _ = load(tmp_path, make_file([sample(100, 5000, 7, 0, switch_raw(7, 1, 8))], clockid))
    assert decoded.clock == name


def test_other_clock_is_converted_and_what_it_does_not_cover_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    path.write_bytes(make_file([sample(100, ts, 7, 0, switch_raw(7, 1, 8)) for ts in (10, 20, 30)], None))
    decoded, losses = perf_data.load(path, FORMATS, lambda ns, clock: (ns + 1000, ns < 25))
    assert decoded.clock == "monotonic"
    assert decoded.events["ts"].tolist() == [1010, 1020]
    assert [(r["cause"], r["count"]) for r in losses.to_pylist()] == [
        ("perf event outside the clock mapping", 1)
    ]


def test_lost_samples_that_a_lost_record_announced_are_counted_once(tmp_path: Path) -> None:
    lost = bytes([100]) + bytes(7) + bytes([3]) + bytes(7)
    totals = record(13, bytes([5]) + bytes(7) + trailer(0, 0, 0, 100))  # PERF_RECORD_LOST_SAMPLES: 5
    _, losses = load(tmp_path, make_file([record(LOST, lost + trailer(6000, 8, 1, 100)), totals]))
    assert losses == {"perf lost events": 3, "perf lost samples": 2}


def test_program_that_is_not_built_is_named_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(native, "_BIN", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing) as caught:
        perf_data.load(LOOPBACK)
    assert "make build" in caught.value.hint


def test_kinds_are_those_of_the_native_header() -> None:
    header = (Path(native.__file__).parents[2] / "native" / "events.h").read_text()
    assert tuple(re.findall(r'X\(\w+, "(\w+)"\)', header)) == KINDS
