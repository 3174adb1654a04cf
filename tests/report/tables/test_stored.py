# SPDX-License-Identifier: GPL-2.0-only
"""Tables read in parts: the same rows as from the whole table, and no more read than needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from machinery.made_up.stream import World, world
from machinery.made_up.tables import table
from nsight_report import interval_joins
from nsight_report.errors import BadInput
from nsight_report.tables import schema, store
from nsight_report.tables.intervals import IntervalTable

COLUMNS = ["call_id", "parent_id", "symbol", "kind", "cpu", "start_ns", "dur_ns"]


@pytest.fixture(scope="module")
def made() -> World:
    return world(400, seed=3, tracks=2, fan=2)


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "GROUP_ROWS", 500)


def write(path: Path, table: pa.Table) -> Path:
    with store.Writer(path, table.schema) as writer:
        writer.write(table)
    return path


def intervals(made: World, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Receive and application cores of a few messages."""
    rows = made.tables["messages"].to_pandas().iloc[100 : 100 + n]
    cpu = np.concatenate([rows["recv_cpu"], rows["app_cpu"]]).astype(np.int64)
    start = np.concatenate([rows["first_ns"], rows["handoff_ns"]]).astype(np.int64)
    end = np.concatenate([rows["handoff_ns"], rows["app_ns"]]).astype(np.int64)
    return cpu, start, end


def overlap_by_hand(calls: pa.Table, cpu: np.ndarray, start: np.ndarray, end: np.ndarray) -> list[int]:
    frame = calls.to_pandas()
    until = frame["start_ns"] + frame["dur_ns"]
    hit = np.zeros(len(frame), bool)
    for c, low, high in zip(cpu, start, end, strict=True):
        hit |= ((frame["cpu"] == c) & (frame["start_ns"] < high) & (until > low)).to_numpy()
    return frame["call_id"][hit].tolist()


@pytest.mark.usefixtures("small_groups")
def test_overlapping_rows_of_a_file_are_those_of_the_whole_table(made: World, tmp_path: Path) -> None:
    calls = made.tables["calls"]
    path = write(tmp_path / "calls.parquet", calls)
    expected = overlap_by_hand(calls, *intervals(made, 5))
    for source in (path, calls, calls.take(pa.array(np.random.default_rng(1).permutation(len(calls))))):
        found = IntervalTable(source).overlapping(*intervals(made, 5), COLUMNS)
        assert found.column_names == COLUMNS
        assert sorted(found["call_id"].to_pylist()) == expected
    # The callers of a call are returned with it.
    found = IntervalTable(path).overlapping(*intervals(made, 5), COLUMNS)
    parents = set(found["parent_id"].to_pylist()) - {-1}
    assert parents and parents <= set(found["call_id"].to_pylist())
    assert found["symbol"].to_pylist() == calls["symbol"].take(found["call_id"]).to_pylist()


@pytest.mark.usefixtures("small_groups")
def test_callers_that_began_groups_before_come_with_their_calls(tmp_path: Path) -> None:
    rows = [(0, -1, 0, 100_000)] + [(i, 0, 10 * i, 5) for i in range(1, 5000)]
    call_id, parent, start, dur = (list(c) for c in zip(*rows, strict=True))
    made = table("calls", {"call_id": call_id, "parent_id": parent, "start_ns": start, "dur_ns": dur})
    stored = IntervalTable(write(tmp_path / "calls.parquet", made))
    found = stored.overlapping(*(np.array([x]) for x in (0, 40_003, 40_011)), ["call_id"])
    assert found["call_id"].to_pylist() == [0, 4000, 4001]
    assert stored.n_read == 1000  # the group in which the caller began, and the group of the interval


@pytest.mark.usefixtures("small_groups")
def test_rows_read_do_not_grow_with_the_table(tmp_path: Path) -> None:
    read = []
    for n in (400, 1600):
        made = world(n, seed=3, tracks=2, fan=2)
        stored = IntervalTable(write(tmp_path / "calls.parquet", made.tables["calls"]))
        stored.overlapping(*intervals(made, 5), COLUMNS)
        read.append(stored.n_read)
        assert 0 < stored.n_read < stored.num_rows / 5
    assert read[1] <= read[0] + 2 * 500


@pytest.mark.parametrize("group_rows", [500, 10**6])
@pytest.mark.parametrize("name", ["calls", "contexts"])
def test_how_dense_rows_are_does_not_depend_on_row_groups(
    made: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_rows: int, name: str
) -> None:
    # The density decides how many messages are processed together: a file of one group was once cut into hundreds of parts.
    monkeypatch.setattr(store, "GROUP_ROWS", group_rows)
    frame = made.tables[name].to_pandas()
    start = frame.groupby("cpu", observed=True)["start_ns"]
    expected = len(frame) / (start.max() - start.min()).sum()
    stored = IntervalTable(write(tmp_path / f"{name}.parquet", made.tables[name]))
    n_cores = frame["cpu"].nunique()
    assert expected / 2 < stored.rows_per_ns() < 2 * n_cores * expected


@pytest.mark.usefixtures("small_groups")
def test_rows_of_a_word_are_found_in_every_group(made: World, tmp_path: Path) -> None:
    calls = made.tables["calls"]
    frame = calls.to_pandas()
    expected = frame[frame["kind"].isin(["syscall", "softirq"])]
    for source in (calls, write(tmp_path / "calls.parquet", calls)):
        found = (
            IntervalTable(source)
            .where("kind", ["syscall", "softirq"], ["tid", "start_ns", "symbol"])
            .to_pandas()
        )
        assert found["start_ns"].tolist() == expected["start_ns"].tolist()
        assert found["symbol"].astype(str).tolist() == expected["symbol"].astype(str).tolist()


@pytest.mark.usefixtures("small_groups")
def test_groups_without_a_kind_are_not_read_for_it(made: World, tmp_path: Path) -> None:
    calls = made.tables["calls"]
    kind = calls["kind"].to_pylist()
    last = pa.array([*kind[:-1], "power"]).dictionary_encode().cast(calls.schema.field("kind").type)
    calls = calls.set_column(calls.schema.get_field_index("kind"), calls.schema.field("kind"), last)
    path = write(tmp_path / "calls.parquet", calls)
    stored = IntervalTable(path)
    assert stored.where("kind", ["power"], ["call_id"])["call_id"].to_pylist() == [calls.num_rows - 1]
    assert 0 < stored.n_read <= 500
    assert stored.where("kind", ["frequency"], ["call_id"]).num_rows == 0 and not stored.holds("kind", "gap")
    assert stored.n_read <= 500


@pytest.mark.parametrize("key", [store.KINDS, store.LAST_ENDS])
@pytest.mark.parametrize(
    "told", ['[["function"]', "[[1], [2]]", "{}", '"xy"', "[null, 1]", "[1, 99999999999999999999]"]
)
def test_what_does_not_fit_the_groups_is_not_trusted(
    made: World, tmp_path: Path, key: str, told: str
) -> None:
    calls = made.tables["calls"].slice(0, 2)
    path = tmp_path / "calls.parquet"
    pq.write_table(calls.replace_schema_metadata({key: told}), path, row_group_size=1)
    begin = calls["start_ns"].to_numpy()
    assert IntervalTable(path).where("kind", calls["kind"].to_pylist(), ["call_id"]).num_rows == 2
    assert IntervalTable(path).overlapping(calls["cpu"].to_numpy(), begin, begin + 10**12).num_rows == 2


def test_a_file_of_another_writer_is_read_as_well(made: World, tmp_path: Path) -> None:
    calls = made.tables["calls"]
    pq.write_table(
        calls, tmp_path / "calls.parquet", row_group_size=700
    )  # groups of more than one core, no ends
    found = IntervalTable(tmp_path / "calls.parquet").overlapping(*intervals(made, 5), COLUMNS)
    assert found["call_id"].to_pylist() == overlap_by_hand(calls, *intervals(made, 5))


def test_a_broken_file_is_bad_input(made: World, tmp_path: Path) -> None:
    path = write(tmp_path / "calls.parquet", made.tables["calls"])
    data = bytearray(path.read_bytes())
    data[100:2000] = b"\xff" * 1900
    path.write_bytes(data)
    with pytest.raises(BadInput, match=r"calls\.parquet"):
        IntervalTable(path).table()
    path.write_bytes(b"PAR1")
    with pytest.raises(BadInput, match=r"calls\.parquet"):
        IntervalTable(path)


def test_nothing_overlaps_nothing(made: World, tmp_path: Path) -> None:
    none = np.zeros(0, np.int64)
    for source in (made.tables["calls"], write(tmp_path / "calls.parquet", schema.empty("calls"))):
        assert IntervalTable(source).overlapping(none, none, none, COLUMNS).num_rows == 0
        assert (
            IntervalTable(source).overlapping(none - 1, none, none).column_names
            == schema.TABLES["calls"].names()
        )


class Compared(np.ndarray):  # type: ignore[type-arg]
    """An array that counts how often the whole of it is compared with a number."""

    n = 0

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        Compared.n += ufunc is np.equal
        return getattr(ufunc, method)(*(np.asarray(one) for one in inputs), **options)


@pytest.mark.parametrize("n_threads", [2, 200])
def test_rows_are_not_gone_through_once_for_each_thread(
    n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread sleeps from 0 to 10; the query is for the time from 5 on."""
    monkeypatch.setattr(Compared, "n", 0)
    tid = np.arange(n_threads) + 1
    rows = [{"tid": int(t), "comm": "x", "start_ns": 0, "end_ns": 10, "state": "sleeping"} for t in tid]
    states = IntervalTable(table("thread_states", rows), "tid")
    asked, at = tid[::-1].view(Compared), np.full(n_threads, 5)
    assert states.overlapping(asked, at, at + 1, ["tid"])["tid"].to_pylist() == tid.tolist()
    assert (
        interval_joins.latest(tid, np.zeros(n_threads, int), asked, at).tolist() == (tid[::-1] - 1).tolist()
    )
    assert Compared.n <= 2
