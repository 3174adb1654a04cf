# SPDX-License-Identifier: GPL-2.0-only
"""A diagnosis that reads its tables in parts equals one that reads them whole, and needs no more memory for longer tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from machinery.made_up.stream import World, world
from nsight_report.anomalies import Recording, Selection, find, functions, nesting
from nsight_report.anomalies.nesting import Baseline, Usual
from nsight_report.anomalies.paths import CallTree, Nodes, Paths
from nsight_report.selection.application import App
from nsight_report.tables import store
from nsight_report.tables.data_frames import to_pandas
from nsight_report.tables.intervals import IntervalTable
from nsight_report.timeline import activity

CORES = ("calls", "contexts", "thread_states")


def in_files(directory: Path, made: World) -> Recording:
    files = []
    for name in CORES:
        path = directory / f"{name}.parquet"
        with store.Writer(path, made.tables[name].schema) as writer:
            writer.write(made.tables[name])
        files.append(IntervalTable(path, "tid" if name == "thread_states" else "cpu"))
    return Recording(made.tables["messages"], *files)


def in_memory(made: World) -> Recording:
    return Recording(made.tables["messages"], *(made.tables[name] for name in CORES))


def rows(tables: tuple[pa.Table, ...]) -> list[list[tuple]]:
    return [sorted(tuple(map(str, row.values())) for row in t.to_pylist()) for t in tables]


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Small parts; returns the number of calls in each of them."""
    monkeypatch.setattr(store, "GROUP_ROWS", 1000)
    monkeypatch.setattr(activity, "ROWS", 200)
    built = CallTree.build
    sizes: list[int] = []

    def counted(calls: pa.Table, softirqs: object) -> CallTree:
        sizes.append(calls.num_rows)
        return built(calls, softirqs)

    monkeypatch.setattr(CallTree, "build", staticmethod(counted))
    return sizes


@pytest.mark.parametrize("mode", ["intel-pt", "tracepoints"])
def test_anomalies_of_parts_are_those_of_the_whole(tmp_path: Path, traces: list[int], mode: str) -> None:
    made = world(1200, seed=5, share=0.04, tracks=2, fan=2)
    made = made if mode == "intel-pt" else made.at_trace()
    options = Selection(max_baseline=200, granularity_ns=100)
    in_parts = rows(find(in_files(tmp_path, made), options))
    n_parts = len(traces)
    traces.clear()
    assert in_parts == rows(find(in_memory(made), options))
    assert len(in_parts[1]) > 10
    if mode == "intel-pt":
        assert n_parts > 3 and len(traces) == 1


def test_functions_are_looked_through_some_messages_at_a_time(
    tmp_path: Path, traces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world(1200, seed=5, share=0.04, tracks=2, fan=2)
    options = Selection(max_baseline=200, granularity_ns=100)
    at_once = rows(find(in_files(tmp_path, made), options))
    batches: list[np.ndarray] = []
    claims = nesting.claims

    def counted(
        nodes: Nodes, paths: Paths, expected: Usual, noise_ns: np.ndarray, explained: float
    ) -> np.ndarray:
        batches.append(nodes.row)
        return claims(nodes, paths, expected, noise_ns, explained)

    monkeypatch.setattr(functions, "BATCH", 300)
    monkeypatch.setattr(nesting, "claims", counted)
    assert rows(find(in_files(tmp_path, made), options)) == at_once
    assert len(batches) > 2 and max(map(len, batches)) < sum(map(len, batches)) / 2
    # All rows of a message are in one batch, because nested calls count for their function.
    assert len(np.concatenate([np.unique(rows) for rows in batches])) == len(
        np.unique(np.concatenate(batches))
    )


def test_baseline_of_a_node_counts_messages_without_it_as_none() -> None:
    """Four messages; label 1 took 10, 20 and 30 ns in three and does not occur in the fourth; label 2 took 50 ns in one."""
    total = np.array([30, 10, 20, 50])
    label, path = np.array([1, 1, 1, 2]), np.full(4, -1)
    zeros = np.zeros(4, np.int64)
    baseline = Baseline(Nodes(np.arange(4), label, path, total, total, total // 10, zeros, zeros, zeros), 4)
    # Label 3, and a path of label 1, occur in no baseline message.
    asked = Nodes(zeros, np.array([1, 2, 3, 1]), np.array([-1, -1, -1, 0]), *[zeros] * 6)
    usual = baseline.at(asked)
    # Sorted 0 10 20 30: the median is the third, the first quartile the second, so the spread is 3 x (20 - 10).
    assert usual.total.tolist() == [20, 0, 0, 0]
    assert usual.calls.tolist() == [2, 0, 0, 0]
    assert usual.spread.tolist() == [30, 0, 0, 0]


def test_anomalies_against_another_capture_are_the_same_in_parts(tmp_path: Path, traces: list[int]) -> None:
    pair = [world(1200, seed=seed, share=0.04, tracks=2, fan=2) for seed in (5, 6)]
    options = Selection(max_baseline=200, granularity_ns=100)
    directories = [tmp_path / name for name in ("one", "other")]
    for directory in directories:
        directory.mkdir()
    files = [in_files(directory, made) for directory, made in zip(directories, pair, strict=True)]
    in_parts = rows(find(files[0], options, files[1]))
    assert len(traces) > 4
    assert in_parts == rows(find(in_memory(pair[0]), options, in_memory(pair[1])))


@pytest.mark.slow
def test_no_part_grows_with_the_recording(tmp_path: Path, traces: list[int]) -> None:
    largest = []
    for n in (600, 2400):
        made = world(n, seed=5, share=0.04, tracks=2, fan=2)
        find(in_files(tmp_path, made), Selection(max_baseline=n // 5, granularity_ns=100))
        largest.append(max(traces))
        traces.clear()
    assert largest[1] < 1.5 * largest[0]


def test_what_threads_were_in_is_known_without_reading_calls(tmp_path: Path, traces: list[int]) -> None:
    made = world(600, seed=5, share=0.04, tracks=2, fan=2)
    of_files = in_files(tmp_path, made)
    messages = to_pandas(made.tables["messages"])
    machine = activity.Activity(of_files, messages, App.of(messages)).machine
    assert (
        isinstance(of_files.calls, IntervalTable) and of_files.calls.n_read <= 1000
    )  # one group, to see that it has functions
    contexts = made.tables["contexts"].to_pandas()
    expected = contexts[contexts["kind"].isin(["thread", "syscall"])].sort_values("start_ns")
    seen = set()
    for m in messages.itertuples():
        for time in (m.last_ns - 1, m.last_ns):
            of = expected[(expected["tid"] == m.tid) & (expected["start_ns"] <= time)].iloc[-1]
            (was_in,) = machine.was_in(np.array([m.tid]), np.array([time]))
            seen.add(machine.names.list[was_in])
            assert machine.names.list[was_in] == ("user code" if of["kind"] == "thread" else of["symbol"])
    assert seen == {"read", "user code"}
