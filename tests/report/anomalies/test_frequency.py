# SPDX-License-Identifier: GPL-2.0-only
"""The diagnosis separates the time that a lower core frequency adds from the time that more work takes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from machinery.made_up.capture import World, write_capture
from machinery.made_up.scene import Scene
from machinery.made_up.tables import TID, context, message, state, table
from nsight_report.anomalies import Recording, Slice, find
from nsight_report.attribution import attribute
from nsight_report.calls import frequencies
from nsight_report.capture.perf_data import CODE, EVENT
from nsight_report.losses import Ledger
from nsight_report.pipeline import Pipeline
from nsight_report.timeline.frequency import CoreFrequencies
from report.anomalies.test_call_paths import SLOWEST, Stack, reported
from report.anomalies.test_causes import SOFTIRQ, slow

CAUSE = "CPU frequency and power (A)"


def told(*rows: tuple[int, int, int]) -> pa.Table:
    return table(
        "frequencies", [{"cpu": cpu, "start_ns": start, "khz": khz} for cpu, start, khz in sorted(rows)]
    )


def cores(*rows: tuple[int, int, int], usual: int = 3_000_000) -> CoreFrequencies:
    return CoreFrequencies.of(pd.DataFrame(rows, columns=["cpu", "start_ns", "khz"])).against(usual)


def longer(of: CoreFrequencies, *asked: tuple[int, int, int]) -> list[int]:
    return of.longer(*np.array(asked, np.int64).T).tolist()


def test_work_at_a_third_of_the_frequency_loses_two_thirds_of_its_time():
    of = cores((0, 100, 3_000_000), (0, 200, 1_000_000), (0, 500, 3_600_000), (2, 0, 2_000_000))
    # Before the first value, at the usual frequency, across three, faster than usual, another core, a core without values.
    asked = (0, 0, 90), (0, 100, 200), (0, 150, 600), (0, 500, 900), (2, 30, 60), (1, 0, 900), (7, 0, 900)
    assert longer(of, *asked) == [0, 0, 200, 0, 10, 0, 0]


def test_parts_add_up_to_the_whole():
    of = cores((3, 10, 2_999_999), (3, 20, 1_234_567), (3, 10_000, 2_000_001))
    times = np.unique(np.random.default_rng(5).integers(0, 20_000, 500))
    parts = longer(of, *((3, int(a), int(b)) for a, b in itertools.pairwise(times)))
    assert sum(parts) == longer(of, (3, int(times[0]), int(times[-1])))[0]
    assert min(parts) >= 0


def at_half(own: int) -> Scene:
    """40 usual messages that read for 400 ns, and one that reads for ``own`` ns."""
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 600 + own, SOFTIRQ,
         [(0, 600, "idle", "idle", 0, "swapper"), (600, 600 + own, "syscall", "read", TID, "server"),
          (600 + own, 20_000, "idle", "idle", 0, "swapper")],
         [(0, 600, "sleeping"), (600, 600 + own, "running"), (600 + own, 20_000, "sleeping")])  # fmt: skip
    return scene


def diagnose(scene: Scene, *rows: tuple[int, int, int]) -> SimpleNamespace:
    compared, found, *_ = find(Recording(*scene.tables(), frequencies=told(*rows)), SLOWEST)
    anomalies, coverage, causes, _ = attribute(found, compared, SLOWEST)
    return SimpleNamespace(
        by_kind={(row["side"], row["kind"]): row for row in anomalies.to_pylist()},
        coverage=coverage["coverage"].to_pylist(),
        causes={row["cause"]: row["total_deviation_ns"] for row in causes.to_pylist()},
    )


def test_a_core_at_half_its_frequency_is_a_cause():
    # 1600 ns of reading at half the frequency are 800 of work. The usual work is 400.
    begin = 40 * 10_000 + 500
    found = diagnose(at_half(1600), (1, 0, 3_000_000), (1, begin, 1_500_000), (0, 0, 3_000_000))
    assert found.causes == {CAUSE: 800, "Application processing (A)": 400}
    row = found.by_kind["A", "frequency"]
    assert (row["observed_ns"], row["baseline_ns"], row["anomaly"]) == (800, 0, "context")
    assert (row["start_ns"], row["cpu"]) == (begin + 100, 1)
    assert row["path"] == "1.50 GHz, usually 3.00 GHz"
    # The additional time of the work itself is only located.
    assert found.coverage == [pytest.approx(800 / 1200)]


def test_more_work_at_the_usual_frequency_is_no_matter_of_frequency():
    found = diagnose(at_half(1600), (1, 0, 3_000_000), (0, 0, 3_000_000))
    assert found.causes == {"Application processing (A)": 1200}


def test_messages_that_are_all_at_a_low_frequency_have_another_cause():
    found = diagnose(at_half(1600), (1, 0, 800_000), (0, 0, 800_000))
    assert found.causes == {"Application processing (A)": 1200}


def test_a_baseline_that_sometimes_has_a_low_frequency_is_compared_as_it_was():
    # 25 of 40 usual messages run at half the frequency, which costs 200 of their 400 ns. So does the slow one, with 1600.
    rows = [(1, 0, 3_000_000), (1, 15 * 10_000, 1_500_000), (0, 0, 3_000_000)]
    found = diagnose(at_half(1600), *rows)
    assert found.causes == {"Application processing (A)": 1200}


def test_time_of_another_program_is_not_its_work():
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 6400, SOFTIRQ,
         [(0, 5600, "thread", "hog", 50, "hog"), (5600, 6500, "syscall", "read", TID, "server")],
         [(0, 600, "sleeping"), (600, 5600, "runnable"), (5600, 6500, "running")])  # fmt: skip
    found = diagnose(scene, (1, 0, 3_000_000), (1, t + 500, 1_500_000))
    # The read takes its 400 ns of work, and another 400 due to half the frequency.
    assert found.causes == {"hog (A)": 5000, CAUSE: 400}


def test_another_capture_says_what_is_usual():
    """A machine at half its frequency, compared with its own earlier capture."""

    def capture(own: int, khz: int) -> Recording:
        scene = Scene()
        for n in range(60):
            t = n * 10_000
            scene.messages.append(message(n, t, t + 500, t + 600 + own))
            scene.cores(t, [(0, 800, "softirq", "NET_RX", 7, "client")],
                        [(600, 600 + own, "syscall", "read", TID, "server")])  # fmt: skip
            scene.states += [state(t, t + 600, "sleeping"), state(t + 600, t + 600 + own, "running")]
            scene.contexts.append(context(1, t + 600 + own, t + 10_600, "idle", "idle", 0, "swapper"))
        return Recording(*scene.tables(), frequencies=told((0, 0, 3_000_000), (1, 0, khz)))

    options = replace(SLOWEST, slow=Slice.parse("1300ns-"))
    compared, found, *_ = find(capture(800, 1_500_000), options, capture(400, 3_000_000))
    _, _, causes, _ = attribute(found, compared, options)
    assert {row["cause"]: row["median_deviation_ns"] for row in causes.to_pylist()} == {CAUSE: 400}


def test_functions_are_compared_at_the_usual_frequency():
    usual = [("ksys_read", 400, [("recv", 300, [("copy", 200, [])])])]
    made = Stack()
    for n in range(40):
        made.read(20_000 * n, usual, 400)
    # Everything takes twice as long, and copy does 400 ns more work.
    made.read(20_000 * 40, [("ksys_read", 1600, [("recv", 1400, [("copy", 1200, [])])])], 1600)
    rows = (1, 0, 3_000_000), (1, 20_000 * 40 + 100, 1_500_000)
    found = reported(made, frequencies=told(*rows))
    assert found.pop("coverage") == 1
    assert {path: row["deviation_ns"] for path, row in found.items()} == {
        "read > ksys_read > recv > copy": 400,
        "1.50 GHz, usually 3.00 GHz": 800,
    }
    row = found["read > ksys_read > recv > copy"]
    assert (row["observed_ns"], row["baseline_ns"]) == (600, 200)


def decoded(*rows: tuple[int, int, int]) -> SimpleNamespace:
    events = np.zeros(len(rows), EVENT)
    for event, (cpu, ts, khz) in zip(events, rows, strict=True):
        event["kind"], event["cpu"], event["ts"], event["a"] = CODE["cpu_frequency"], cpu, ts, khz
    return SimpleNamespace(events=events)


def test_table_is_of_the_kernels_events_and_of_what_was_there_before():
    # Core 1 repeats its value; a frequency of 0 is not a value.
    events = decoded((1, 50, 2_000_000), (0, 60, 800_000), (1, 70, 2_000_000), (0, 80, 0), (0, 90, 3_000_000))
    at_start = {"0": 3_000_000, "1": 2_000_000, "5": 1_000_000, "x": 7, "2": "fast", "3": -4, "4": 1 << 40}
    ledger = Ledger("calls")
    rows = frequencies.of_events(events, at_start, ledger).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (0, 0, 3_000_000), (0, 60, 800_000), (0, 90, 3_000_000), (1, 0, 2_000_000), (5, 0, 1_000_000),
    ]  # fmt: skip
    assert [(row["key"], row["count"]) for row in ledger.table().to_pylist()] == [("frequencies_rejected", 1)]


def test_without_events_nothing_is_known():
    """Hardware that selects the frequency itself (HWP) reports nothing to the kernel; the value at the start says little."""
    assert not frequencies.of_events(decoded(), {"0": 3_000_000}, Ledger("calls")).num_rows


def test_table_of_packets_counts_in_bus_clocks():
    calls = [
        {"call_id": 0, "parent_id": -1, "kind": "function", "symbol": "f", "cpu": 2, "start_ns": 5, "arg": 9},
        {"call_id": 1, "parent_id": -1, "kind": "frequency", "symbol": "frequency", "cpu": 2, "start_ns": 7, "arg": 35},
        {"call_id": 2, "parent_id": -1, "kind": "frequency", "symbol": "frequency", "cpu": 2, "start_ns": 9, "arg": 8},
    ]  # fmt: skip
    # Rows of another buffer, which come later: one for core 1, and one that repeats the value of core 2.
    later = [{**calls[1], "cpu": 1, "start_ns": 3}, {**calls[2], "start_ns": 20}]
    found = [frequencies.packets(table("calls", rows)) for rows in (calls, later)]
    rows = frequencies.of_packets(found, Ledger("calls")).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, 3, 3_500_000), (2, 7, 3_500_000), (2, 9, 800_000)]


def test_recorder_reads_the_frequency_of_each_core(tmp_path: Path):
    from nsight_record import host

    for core, text in ((0, "3000000\n"), (11, "800000\n"), (2, "<unknown>\n")):
        file = tmp_path / f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    assert host.core_khz(tmp_path) == {"0": 3_000_000, "11": 800_000}


def test_diagnosis_of_a_capture_reads_the_table(tmp_path: Path):
    """The application core runs at a third of its frequency while message 200 is read."""

    class Slowed(World):
        def tables(self) -> dict[str, pa.Table]:
            read = self.messages[200]["app_ns"]
            rows = (1, 0, 3_000_000), (1, read - 5_000, 1_000_000), (1, read + 5_000, 3_000_000)
            seen = table("events", [{"ts_ns": m["nic_ns"]} for m in self.messages])
            clock = {
                "domain": "monotonic",
                "tsc_start": 0,
                "tsc_end": 1 << 60,
                "mult": 1,
                "source": "bracket",
            }
            made = {"frequencies": told(*rows), "events": seen, "clock_map": table("clock_map", [clock])}
            return super().tables() | made

    pipeline = Pipeline(write_capture(tmp_path / "slow.nsight", Slowed(400)))
    pipeline.run("anomalies")
    found = pipeline.table("anomalies").to_pylist()
    # Message 200 took no longer than usual; the messages behind it waited longer for it.
    assert {(r["message_id"], r["path"]) for r in found if r["kind"] == "frequency"} == {
        (n, "1.00 GHz, usually 3.00 GHz") for n in (201, 202, 203)
    }
