# SPDX-License-Identifier: GPL-2.0-only
"""Only the requested parts of table messages are read, and derived tables do not grow with the recording."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from machinery.made_up.stream import World, world
from nsight_report import queuing
from nsight_report.anomalies import Recording, Selection, Slice, find
from nsight_report.attribution import attribute
from nsight_report.errors import BadInput, NoSlowMessages
from nsight_report.interval_joins import overlaps
from nsight_report.losses import Ledger
from nsight_report.selection.application import App
from nsight_report.selection.population import looked_at, select
from nsight_report.tables import schema, store
from nsight_report.tables.data_frames import to_pandas
from nsight_report.tables.intervals import IntervalTable
from nsight_report.tables.messages import Messages
from nsight_report.timeline import activity, occupancy
from nsight_report.timeline.occupancy import Asked, Reads, Tiles

GROUP = 100


def written(directory: Path, table: pa.Table) -> Path:
    path = directory / "messages.parquet"
    with store.Writer(path, table.schema) as writer:
        writer.write(table)
    return path


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(store, "GROUP_ROWS", GROUP)
    return world(1200, seed=5, share=0.04, tracks=2, fan=2)


def test_columns_are_those_of_the_table_and_no_others_are_read(tmp_path: Path, made: World) -> None:
    table = made.tables["messages"]
    messages = Messages(written(tmp_path, table))
    assert messages.num_rows == 1200
    found = messages.columns(["latency_ns", "completion_ns", "comm", "latency_ns"])
    assert messages.n_read == 1200 * 3
    assert found.columns.tolist() == ["latency_ns", "completion_ns", "comm"]
    assert found["latency_ns"].to_numpy().tolist() == table["latency_ns"].to_pylist()
    assert set(found["completion_ns"]) == {-1}  # nothing was sent
    assert found["comm"].astype(str).tolist() == table["comm"].to_pylist()
    slow = messages.columns(["latency_ns"], lambda rows: (rows["latency_ns"] > 20_000).to_numpy(bool))
    assert slow["latency_ns"].tolist() == [ns for ns in table["latency_ns"].to_pylist() if ns > 20_000]


@pytest.mark.parametrize("slices", [("p50-100", "p25-75"), ("p99-100", "p25-75"), ("p25-75", "p25-75")])
def test_what_is_decoded_is_what_either_capture_of_a_comparison_needs(
    tmp_path: Path, made: World, slices: tuple[str, str]
) -> None:
    messages = Messages(written(tmp_path, made.tables["messages"]))
    options = Selection(*map(Slice.parse, slices), max_baseline=50)
    of_both = select([messages, messages], options, Ledger("anomalies"))
    needed = {i for of in of_both.of for i in of.messages["message_id"]}
    if slices[0] != slices[1]:  # otherwise there is nothing left to compare with
        needed |= {*select([messages], options, Ledger("anomalies")).of[0].messages["message_id"]}
    assert set(looked_at(messages, options).tolist()) == needed
    nothing = Selection(Slice.parse("1s-"), Slice.parse("1s-"), max_baseline=50)
    with pytest.raises(NoSlowMessages, match="the slow slice 1s- holds none of 1200 messages"):
        looked_at(messages, nothing)


def test_rows_come_from_the_row_groups_that_have_them(tmp_path: Path, made: World) -> None:
    table = made.tables["messages"]
    messages = Messages(written(tmp_path, table))
    found = messages.rows(np.array([1150, 3, 250, 3, 99_999]))
    assert messages.n_read == 3 * GROUP * len(table.column_names)
    expected = to_pandas(table.take([3, 250, 1150]))
    assert found["message_id"].tolist() == [3, 250, 1150]
    assert found.astype(str).equals(expected.astype(str))
    assert len(messages.rows(np.array([99_999]))) == 0
    assert messages.n_read == 3 * GROUP * len(table.column_names)


def test_a_file_that_is_damaged_or_of_another_version_names_the_fix(tmp_path: Path, made: World) -> None:
    table = made.tables["messages"]
    path = tmp_path / "messages.parquet"
    pq.write_table(table.drop_columns(["fd"]), path)
    with pytest.raises(BadInput, match="another version") as caught:
        Messages(path)
    assert "delete tables/" in caught.value.hint
    column = pa.nulls(table.num_rows, pa.int64())
    at = table.column_names.index("latency_ns")
    missing = table.set_column(at, pa.field("latency_ns", pa.int64()), column)
    pq.write_table(missing, path, row_group_size=GROUP)
    messages = Messages(path)
    messages.columns(["message_id"])
    with pytest.raises(BadInput, match="something is missing"):
        messages.columns(["latency_ns"])
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4)
        file.write(b"\xff" * (size // 2))
    with pytest.raises(BadInput, match="cannot be read"):
        messages.columns(["message_id"])
    path.unlink()
    with pytest.raises(BadInput, match="cannot be read"):
        messages.rows(np.array([1]))


def owners(tiles: Tiles, group: np.ndarray, low: np.ndarray, high: np.ndarray) -> list[tuple[int, ...]]:
    """The owner of each part of some intervals; groups without tiles have no owner."""
    query, item, start, end = overlaps(group, low, high, tiles.group, tiles.start, tiles.end)
    owned = tiles.owner[item] >= 0
    rows = zip(*(of[owned].tolist() for of in (query, start, end, tiles.owner[item])), strict=True)
    return list(rows)


@pytest.mark.parametrize("seed", range(5))
def test_who_worked_on_what_is_the_same_where_it_is_asked(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = 600
    first = np.sort(random.integers(0, 40_000, n))
    arrival = first + random.integers(0, 5, n)
    handoff = arrival + random.integers(0, 30, n)
    call = handoff + random.integers(-60, 30, n)
    app = np.maximum(handoff, call) + random.integers(1, 200, n)
    columns = {
        "message_id": np.arange(n), "direction": ["rx"] * n, "tid": random.integers(1, 5, n), "comm": ["c"] * n,
        "recv_cpu": random.integers(0, 3, n), "handoff_cpu": random.integers(0, 3, n), "arrival_ns": arrival,
        "arrival_last_ns": arrival, "handoff_ns": handoff, "call_ns": call, "app_ns": app,
        "begun_ns": np.where(random.random(n) < 0.3, handoff, -1),
    }  # fmt: skip
    every = to_pandas(pa.table(columns))
    every = every.astype({name: np.int64 for name in columns if name not in ("direction", "comm")})
    waits = np.sort(random.integers(0, 40_000, 300)), random.integers(1, 5, 300)
    chosen = np.sort(random.choice(n, 12, replace=False))
    some = Asked.of(every.assign(first_ns=first, last_ns=app).iloc[chosen])
    whole = Asked(np.arange(n), np.array([-(10**6)]), np.array([10**6]))
    group, low, high = np.repeat(np.arange(5), 12), np.tile(first[chosen], 5), np.tile(app[chosen] + 1, 5)
    made = [
        (occupancy.by_thread(Reads.of(every, of), waits[1], waits[0]), occupancy.by_core(every, of))
        for of in (some, whole)
    ]
    for few, all_of_them in zip(*made, strict=True):
        assert owners(few, group, low, high) == owners(all_of_them, group, low, high)
        assert len(owners(few, group, low, high)) > 12
        # Messages selected by number are complete, wherever they are.
        mine, theirs = (np.isin(of.owner, chosen) for of in (few, all_of_them))
        assert few.end[mine].tolist() == all_of_them.end[theirs].tolist()
        assert len(few.owner) < len(all_of_them.owner) / 2


def in_files(directory: Path, made: World) -> Recording:
    tables = {}
    for name in ("calls", "contexts", "thread_states"):
        path = directory / f"{name}.parquet"
        with store.Writer(path, made.tables[name].schema) as writer:
            writer.write(made.tables[name])
        tables[name] = IntervalTable(path, "tid" if name == "thread_states" else "cpu")
    return Recording(Messages(written(directory, made.tables["messages"])), *tables.values())


def diagnosis(of: Recording, options: Selection) -> list[list[dict[str, object]]]:
    compared, found, lost, _ = find(of, options)
    anomalies, *_ = attribute(found, compared, options)
    depths, _ = queuing.find(of, compared)
    return [
        t.to_pylist() for t in (compared, found, lost, depths, queuing.break_down(of, anomalies, options))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["intel-pt", "tracepoints"])
def test_a_diagnosis_from_small_row_groups_is_the_one_of_whole_tables(
    tmp_path: Path, made: World, mode: str
) -> None:
    made = made if mode == "intel-pt" else made.at_trace()
    options = Selection(slow=Slice.parse("p90-100"), max_baseline=200, granularity_ns=100)
    names = ("messages", "calls", "contexts", "thread_states")
    from_files = diagnosis(in_files(tmp_path, made), options)
    assert from_files == diagnosis(Recording(*(made.tables[name] for name in names)), options)
    assert all(len(rows) > 5 for rows in (from_files[0], from_files[1], from_files[3], from_files[4]))


def test_a_diagnosis_of_few_messages_reads_few_columns_of_the_others(tmp_path: Path, made: World) -> None:
    of = in_files(tmp_path, made)
    options = Selection(
        slow=Slice.parse("id:17,18"), baseline=Slice.parse("id:" + ",".join(map(str, range(20, 40))))
    )
    compared, *_ = find(of, options)
    assert compared.num_rows == 22
    messages = of.every()
    n_columns = len(schema.TABLES["messages"].names())
    # Columns to choose the application, to choose from its messages, and for threads and cores; whole rows of one row group.
    # The owners of messages are looked up twice, some rows at a time, so that few of them are in memory.
    assert messages.n_read <= 1200 * 37 + GROUP * n_columns
    before = messages.n_read
    queuing.find(of, compared)
    assert messages.n_read - before < 1200 * (n_columns + 2)


def test_what_a_side_keeps_does_not_grow_with_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "GROUP_ROWS", 1000)
    kept = []
    for n in (600, 2400):
        made = world(n, seed=5, share=0.04, tracks=2, fan=2)
        of = in_files(tmp_path, made)
        every = of.every()
        some = every.rows(np.arange(100, 140))
        app = App.of(every.columns(["message_id", "conn_id", "tid", "pid"]))
        machine = activity.Activity(of, some, app).machine
        kept.append([len(machine.threads.owner), len(machine.cores.owner), len(machine.entered_tid)])
    assert all(large < 1.5 * small + 20 for small, large in zip(*kept, strict=True))
