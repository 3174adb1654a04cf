# SPDX-License-Identifier: GPL-2.0-only
"""A file of intervals with a recording of cores: each interval is a row of ``messages``, and what delayed the slow ones is reported.

Thread 100 of process ``engine`` works on core 1; every 400 us it does a ``match`` that takes 10 us. Every 30th time a
program called ``hog`` has the core for 50 us in the middle. Thread 101 of the same process does a ``flush`` of 20 us on
core 0 at the same times; every 30th time it sleeps in futex for another 200 us.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from machinery.made_up.capture import manifest
from machinery.made_up.tables import Row, context, state, syscall, table
from nsight_report import losses
from nsight_report.clocks import ClockMap
from nsight_report.export.selection import marks
from nsight_report.lifetimes.intervals import of_file
from nsight_report.losses import Ledger
from nsight_report.pipeline import Pipeline
from nsight_report.stage import Options
from nsight_report.stages import BY_NAME
from nsight_report.tables import schema
from nsight_report.tables.data_frames import to_pandas

#: Fixture ``run`` of tests/report/conftest.py.
Run = Callable[..., "subprocess.CompletedProcess[str]"]

US = 1_000
T0, N, EVERY, PERIOD = 5_000_000_000_000_000, 300, 30, 400 * US
ENGINE, FLUSHER, HOG = 100, 101, 200
LAST = T0 + N * PERIOD


def slow(number: int) -> bool:
    return number % EVERY == EVERY - 1


def match(number: int) -> tuple[int, int]:
    """10 us, or with the hog 60."""
    start = T0 + number * PERIOD
    return start, start + (60 if slow(number) else 10) * US


def flush(number: int) -> tuple[int, int]:
    """20 us, or with the sleep 220."""
    start = T0 + number * PERIOD
    return start, start + (220 if slow(number) else 20) * US


def recorded() -> dict[str, list[Row]]:
    """The contexts, thread states and calls of the recording."""
    contexts: list[Row] = []
    states: list[Row] = []
    calls: list[Row] = []
    edges = {0: T0 - US, 1: T0 - US}

    def ran(cpu: int, tid: int, name: str, until: int) -> None:
        pid = ENGINE if tid in (ENGINE, FLUSHER) else tid
        kind = "thread" if tid else "idle"
        contexts.append({**context(cpu, edges[cpu], until, kind, name, tid, name), "pid": pid})
        if tid:
            states.append({**state(edges[cpu], until, "running", cpu, tid), "pid": pid, "comm": name})
        edges[cpu] = until

    for number in filter(slow, range(N)):
        start = match(number)[0]
        ran(1, ENGINE, "engine", start + 5 * US)
        ran(1, HOG, "hog", start + 55 * US)
        states.append({**state(start + 5 * US, start + 55 * US, "runnable", 1, ENGINE), "comm": "engine"})
        ran(0, FLUSHER, "flusher", start + 10 * US)
        ran(0, 0, "swapper", start + 210 * US)
        waited = {**state(start + 10 * US, start + 210 * US, "sleeping", 0, FLUSHER), "comm": "flusher"}
        states.append({**waited, "pid": ENGINE})
        calls.append({**syscall(FLUSHER, start + 10 * US, start + 210 * US, "futex", 0), "pid": ENGINE})
    ran(1, ENGINE, "engine", LAST)
    ran(0, FLUSHER, "flusher", LAST)
    contexts.sort(key=lambda row: (row["cpu"], row["start_ns"]))
    states.sort(key=lambda row: (row["tid"], row["start_ns"]))
    # One ns per cycle.
    clock = {"domain": "monotonic", "tsc_start": T0 - PERIOD, "tsc_end": LAST + PERIOD, "anchor_tsc": T0, "anchor_ns": T0,
             "mult": 1024, "shift": 10, "source": "timekeeper"}  # fmt: skip
    return {
        "clock_map": [clock],
        "contexts": contexts,
        "thread_states": states,
        "calls": [{**row, "call_id": i} for i, row in enumerate(calls)],
    }


def write_capture(directory: Path) -> Path:
    """The stages up to what cores did are stored and fresh; the stages after that run."""
    path = directory / "engine.nsight"
    path.mkdir()
    told = manifest(start={"monotonic_ns": T0 - US}, stop={"monotonic_ns": LAST})
    (path / "manifest.json").write_text(json.dumps(told))
    for name in ("events.tsv", "clock.tsv", "perf.data"):
        (path / name).write_text("stand-in\n")
    made = recorded()
    pipeline = Pipeline(path, Options())
    for name in ("clocks", "events", "contexts"):
        stage = BY_NAME[name]
        tables = {of: table(of, made.get(of, [])) for of in stage.tables}
        tables[f"losses-{name}"] = losses.Ledger(name).table()
        pipeline.store.save(name, tables, pipeline._made_from(stage))
    return path


def lines(numbers: range = range(N)) -> str:
    rows = [f"match,{s},{e},monotonic,{ENGINE}," for s, e in map(match, numbers)]
    rows += [f"flush,{s},{e},monotonic,{FLUSHER}," for s, e in map(flush, numbers)]
    return "name,start,stop,clock,thread,core\n" + "\n".join(rows) + "\n"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_capture(tmp_path_factory.mktemp("intervals"))


def diagnosed(recording: Path, text: str, **options: Any) -> Pipeline:
    file = recording.parent / "i.csv"
    file.write_text(text)
    pipeline = Pipeline(recording, Options(intervals=str(file), direction="interval", **options))
    pipeline.run()
    return pipeline


def test_every_interval_is_a_row_of_its_thread_once(recording: Path) -> None:
    rows = to_pandas(diagnosed(recording, lines()).table("messages"))
    assert len(rows) == 2 * N
    assert (rows["direction"] == "interval").all()
    found = rows.sort_values(["tid", "first_ns"])[["first_ns", "last_ns"]].to_numpy().tolist()
    assert found == [[s, e] for of in (match, flush) for s, e in map(of, range(N))]
    assert (rows["latency_ns"] == rows["last_ns"] - rows["first_ns"]).all()
    known = rows[["request_type", "tid", "pid", "comm", "app_cpu", "timestamps"]].drop_duplicates()
    assert sorted(known.astype(str).to_numpy().tolist()) == [
        ["flush", str(FLUSHER), str(ENGINE), "flusher", "0", "be"],
        ["match", str(ENGINE), str(ENGINE), "engine", "1", "be"],
    ]
    assert rows.groupby("request_type", observed=True)["conn_id"].nunique().tolist() == [1, 1]


def test_the_program_that_took_the_core_is_the_cause_by_the_time_it_had_it(recording: Path) -> None:
    pipeline = diagnosed(recording, lines(), slow="type:match+50us-", baseline="type:match+p25-75")
    causes = to_pandas(pipeline.table("causes")).set_index("cause")
    # 10 of 300 intervals take 60 us instead of 10; the hog causes all of it.
    assert causes.loc["hog (A)", "total_deviation_ns"] == 10 * 50 * US
    assert causes["total_deviation_ns"].sum() == 10 * 50 * US
    assert to_pandas(pipeline.table("coverage"))["coverage"].tolist() == [1.0] * 10


def test_a_sleep_is_named_after_the_system_call_it_was_in(recording: Path) -> None:
    pipeline = diagnosed(recording, lines(), slow="type:flush+100us-", baseline="type:flush+p25-75")
    anomalies = to_pandas(pipeline.table("anomalies"))
    assert anomalies["subject"].astype(str).tolist() == ["sleeping in futex"] * 10
    assert anomalies["deviation_ns"].tolist() == [200 * US] * 10


def test_an_interval_that_is_handed_over_is_the_first_threads_until_then(recording: Path) -> None:
    # Begun by the flusher; the slow ones wait while it sleeps in futex for 200 us. The engine has the interval for 15 us.
    # Meanwhile the hog has the engine's core for 50 us, which delays no interval.
    head = "name,start,stop,thread,begin_thread,begin_core,handover\n"
    waited = [(start, 200 * US if slow(n) else 0) for n, (start, _) in enumerate(map(match, range(N)))]
    text = head + "".join(
        f"job,{start},{start + more + 30 * US},{ENGINE},{FLUSHER},0,{start + more + 15 * US}\n"
        for start, more in waited
    )
    pipeline = diagnosed(recording, text, slow="type:job+100us-", baseline="type:job+p25-75")
    anomalies = to_pandas(pipeline.table("anomalies"))
    assert anomalies["subject"].astype(str).tolist() == ["sleeping in futex"] * 10
    assert anomalies["deviation_ns"].tolist() == [200 * US] * 10
    rows = to_pandas(pipeline.table("messages"))
    assert rows["begin_tid"].tolist() == [FLUSHER] * N
    assert rows["timestamps"].astype(str).unique().tolist() == ["bhe"]
    told = [(mark.name, mark.cpu) for mark in marks(rows.iloc[0])]
    assert told == [("begin", 0), ("hand-over", None), ("end", int(rows["app_cpu"].iloc[0]))]
    assert rows["app_cpu"].iloc[0] != 0


def test_of_an_interval_of_one_thread_the_core_of_its_begin_is_unknown(recording: Path) -> None:
    rows = to_pandas(diagnosed(recording, lines(), slow="p90-100").table("messages"))
    first = marks(rows.iloc[0])
    assert [(mark.name, mark.cpu is None) for mark in first] == [("begin", True), ("end", False)]


def spans(*processes: tuple[int, list[int | None]]) -> str:
    """Spans of processes (pid, thread.id of each), all from the beginning of the first match to its end."""
    start, stop = match(0)

    def number(key: str, of: int) -> dict[str, Any]:
        return {"key": key, "value": {"intValue": of}}

    def batch(pid: int, threads: list[int | None]) -> dict[str, Any]:
        of = [
            {"name": "s", "startTimeUnixNano": start, "endTimeUnixNano": stop, "attributes": [] if of is None else [number("thread.id", of)]}
            for of in threads
        ]  # fmt: skip
        return {"resource": {"attributes": [number("process.pid", pid)]}, "scopeSpans": [{"spans": of}]}

    return "# clock monotonic\n" + json.dumps({"resourceSpans": [batch(*of) for of in processes]})


def test_a_span_whose_thread_is_not_of_its_process_is_left_out(recording: Path) -> None:
    """The recording knows threads 100 and 101 of process 100, and the hog alone in process 200."""
    text = spans((ENGINE, [FLUSHER, 23, HOG, 140_737_353_000_000, None]), (HOG, [23, FLUSHER]))
    pipeline = diagnosed(recording, text)
    rows = to_pandas(pipeline.table("messages"))
    assert sorted(rows["tid"].tolist()) == [ENGINE, FLUSHER, HOG, HOG]
    counted = {row["key"]: row["count"] for row in pipeline.losses().to_pylist()}
    assert counted["interval_thread_not_of_process"] == 3


def test_of_spans_whose_threads_are_not_known_yet_it_is_told_how_many_were_not_checked(
    tmp_path: Path,
) -> None:
    """As with --decode chosen, where messages are made before thread states."""
    (file := tmp_path / "spans.json").write_text(
        spans((ENGINE, [FLUSHER, 23, 140_737_353_000_000, ENGINE, None]))
    )
    ledger = Ledger("lifetimes")
    found = [columns for columns, *_ in of_file(file, ClockMap(schema.empty("clock_map")), None, ledger)]
    assert [columns["tid"].tolist() for columns in found] == [[FLUSHER, 23, ENGINE, ENGINE]]
    counted = {row["key"]: row["count"] for row in ledger.table().to_pylist()}
    assert counted == {"interval_thread_not_checked": 2, "interval_thread_not_of_process": 1}


def test_intervals_of_different_names_are_compared_with_their_own(recording: Path) -> None:
    # The 20 slowest of all: 10 flushes of 220 us, 10 matches of 60. Compared with flushes, a match was not slow at all.
    pipeline = diagnosed(recording, lines(), slow="50us-")
    compared = to_pandas(pipeline.table("compared"))
    usual = compared[compared["role"] == "slow"].groupby("latency_ns")["baseline_latency_ns"].unique()
    assert {k: v.tolist() for k, v in usual.items()} == {60 * US: [10 * US], 220 * US: [20 * US]}


def test_a_capture_may_bring_its_own_file_and_two_are_compared(tmp_path: Path, run: Run) -> None:
    (before := tmp_path / "before").mkdir()
    (after := tmp_path / "after").mkdir()
    paths = [write_capture(before), write_capture(after)]
    for path, numbers in zip(paths, (range(N - 1), range(N)), strict=True):
        (path / "intervals.csv").write_text(lines(numbers))
    done = run("compare", *paths, "--direction", "interval", "--slow", "50us-", "--json")
    assert done.returncode == 0, done.stderr
    sides = json.loads(done.stdout)
    assert [sides[side]["n_messages"] for side in ("before", "after")] == [2 * N - 2, 2 * N]


@pytest.mark.parametrize("command", [("show",), ("top",), ("export", "perfetto"), ("-o",)])
def test_every_command_takes_intervals(
    recording: Path, run: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (file := tmp_path / "i.csv").write_text(lines())
    output = ("-o", tmp_path / "out") if command in (("export", "perfetto"), ("-o",)) else ()
    words = [word for word in command if word != "-o"]
    done = run(*words, recording, "--intervals", file, "--slow", "50us-", *output)
    assert done.returncode == 0, done.stderr
    assert " port 0" not in done.stdout
    assert command == ("export", "perfetto") or "engine" in done.stdout or "flusher" in done.stdout


def test_a_file_without_one_usable_line_says_why(recording: Path, run: Run, tmp_path: Path) -> None:
    (file := tmp_path / "i.csv").write_text("name,start,stop\na,5,6\na,5,4\na,7,8\n")
    done = run(recording, "--intervals", file)
    assert done.returncode == 3
    assert done.stderr.startswith(
        f"error: {file}: no usable interval: interval without thread and core: 2\nhint: "
    )


def test_a_thread_that_the_recording_does_not_know_is_counted(recording: Path) -> None:
    start, stop = match(0)
    pipeline = diagnosed(recording, lines() + f"match,{start},{stop},monotonic,77,\n")
    counted = {row["key"]: row["count"] for row in pipeline.losses().to_pylist()}
    assert counted["interval_thread_not_seen"] == 1
