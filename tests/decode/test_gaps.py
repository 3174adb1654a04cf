# SPDX-License-Identifier: GPL-2.0-only
"""Decoded time is no gap, a gap is what packets do not cover, and no row ends before it begins."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from machinery.pt_emulation.fixtures import decoded, unpack

from conftest import skip_or_fail
from decode import packets as pt
from decode import parity
from decode.test_nsight_decode import run

sys.path.insert(0, str(parity.SCRIPTS))
from nsight_perf import edge_stream

pytestmark = pytest.mark.tools

Row = tuple[str, str, int, int]
#: Code of the event at the end of a buffer.
UNTIL = 15


@pytest.fixture(autouse=True)
def decoder() -> None:
    if not parity.NATIVE.exists():
        skip_or_fail("decoder", "nsight-decode is not built (hint: make decoder)")


def calls(directory: Path, recording: pt.Recording, *options: str) -> list[Row]:
    """(kind, symbol, begin, end) of all rows, in order of begin."""
    data = recording.write(directory)
    done = run("calls", data, "--symfs", directory / "symfs", "--out", directory / "out", *options)
    assert done.returncode == 0, done.stderr
    rows = ds.dataset(directory / "out/calls").to_table().to_pylist()
    assert all(row["dur_ns"] >= 0 for row in rows)
    return [(r["kind"], r["symbol"], r["start_ns"], r["start_ns"] + r["dur_ns"]) for r in rows]


def of(kind: str, rows: list[Row]) -> list[tuple[str, int, int]]:
    return [row[1:] for row in rows if row[0] == kind]


#: ``leaf`` is called at 1000 and returns at 1010; then 20 rounds of 500 ns without a call, up to 11,010.
BEGIN = pt.psb(1000) + pt.cyc(10) + pt.tip(pt.LOOP) + pt.loop(20, 500)
#: 20 rounds from 50,000 to 60,000; ``leaf`` is called at 60,010, and returns 20 ns later.
END = pt.loop(20, 500) + pt.cyc(10) + pt.tnt(False) + pt.cyc(20) + pt.tip(pt.LOOP) + pt.loop(1, 10)


def test_a_loop_before_and_behind_damaged_packets_is_no_gap(tmp_path: Path) -> None:
    trace = BEGIN + pt.DAMAGED + pt.psb(50_000, pt.LOOP) + END
    rows = calls(tmp_path, pt.Recording({(0, 7): [trace]}))
    assert of("gap", rows) == [("not decoded", 11_010, 50_000)]
    assert of("function", rows) == [
        ("main", 1000, 11_010),
        ("leaf", 1000, 1010),
        ("main", 50_000, 60_040),
        ("leaf", 60_010, 60_030),
    ]


def build_agrees(tmp_path: Path) -> None:
    """From the edge file, build makes the rows that calls made."""
    done = run("edges", tmp_path / "perf.data", "--symfs", tmp_path / "symfs", "-o", tmp_path / "edges")
    assert done.returncode == 0, done.stderr
    done = run("build", tmp_path / "edges", "--out", tmp_path / "built")
    assert done.returncode == 0, done.stderr
    direct, built = (ds.dataset(tmp_path / name / "calls").to_table() for name in ("out", "built"))
    assert direct.equals(built)


@pytest.mark.parametrize(
    ("options", "extra"),
    [
        ((), b""),
        (("--slice-bytes", "1"), b""),
        ((), pt.psb(11_010, pt.LOOP)),
        ((), pt.psb(11_010) + pt.DAMAGED),
    ],
    ids=["buffer", "slices", "psb", "damaged"],
)
def test_a_loop_up_to_the_end_of_a_buffer_is_decoded_time(
    tmp_path: Path, options: tuple[str, ...], extra: bytes
) -> None:
    """``main`` lasts as long as its loop was seen, on each core by itself, and in a thread's own buffer; nothing is a gap."""
    longer = BEGIN + pt.loop(5, 500) + extra.replace(pt.tsc(11_010), pt.tsc(13_510))
    for traces in (
        {(0, 7): [BEGIN + extra], (1, 7): [longer]},
        {(-1, 7): [BEGIN + extra]},
    ):
        rows = calls(tmp_path, pt.Recording(traces), *options)
        ends = {11_010, 13_510} if len(traces) == 2 else {11_010}
        assert {end for kind, name, _, end in rows if kind == "thread" or name == "main"} == ends
        assert not of("gap", rows)
        build_agrees(tmp_path)


def test_each_psb_between_two_losses_tells_what_was_decoded(tmp_path: Path) -> None:
    """Five times 1000 ns of the loop after a PSB, then a damaged packet: none of it is a gap, although nothing is called."""
    parts = [pt.psb(20_000 + 5_000 * n, pt.LOOP) + pt.loop(2, 500) + pt.DAMAGED for n in range(5)]
    trace = BEGIN + pt.DAMAGED + b"".join(parts) + pt.psb(50_000, pt.LOOP) + END
    rows = calls(tmp_path, pt.Recording({(0, 7): [trace]}))
    begins = [20_000 + 5_000 * n for n in range(5)]
    ends = [11_010, *(begin + 1000 for begin in begins)]
    assert [gap[1:] for gap in of("gap", rows)] == list(zip(ends, [*begins, 50_000], strict=True))


def test_losses_stand_in_an_edge_file_where_they_happened(tmp_path: Path) -> None:
    """``leaf`` returns at 1540 to an address without code, and 5000 ns later packets are damaged before time continues."""
    call = pt.cyc(10) + pt.tnt(False) + pt.cyc(20)
    first = pt.psb(1000) + pt.cyc(10) + pt.tip(pt.LOOP) + pt.loop(1, 500) + call + pt.tip(0x500000)
    trace = first + pt.psb(6540, pt.LOOP) + pt.tnt(True) + pt.DAMAGED + pt.psb(50_000, pt.LOOP) + END
    rows = calls(tmp_path, pt.Recording({(0, 7): [trace]}))
    assert of("gap", rows) == [("not decoded", 1540, 6540), ("not decoded", 6540, 50_000)]
    build_agrees(tmp_path)


def test_behind_the_last_edges_losses_are_sorted_in_by_time(tmp_path: Path) -> None:
    """As perf's routes write them: one at the time of a return, and trace begins again later."""
    edges = [
        (1000, 0, pt.MAIN, 0, 1, edge_stream.BEGIN),
        (1000, pt.MAIN, pt.LEAF, 1, 2, edge_stream.CALL),
        (1540, pt.LEAF, pt.LOOP, 2, 1, edge_stream.RETURN),
        (5000, 0, pt.LEAF, 0, 2, edge_stream.BEGIN),
    ]
    with (tmp_path / "edges").open("wb") as file:
        writer = edge_stream.Writer(file)
        assert [writer.symbol(name, "program") for name in ("main", "leaf")] == [1, 2]
        rows = [(time, a, b, 7, 7, 0, of_a, of_b, kind) for time, a, b, of_a, of_b, kind in edges]
        writer.edges(list(zip(*rows, strict=True)))
        writer.events([[1540], [0], [7], [7], [edge_stream.ERROR], [5]])
    done = run("build", tmp_path / "edges", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    found = ds.dataset(tmp_path / "out/calls").to_table().to_pylist()
    gaps = [(r["start_ns"], r["dur_ns"]) for r in found if r["kind"] == "gap"]
    assert gaps == [(1540, 3460)]
    assert [r["end_known"] for r in found if r["symbol"] == "leaf"] == ["measured", "inferred"]


@pytest.mark.parametrize("n", [1, 2, 4])
def test_between_two_pieces_of_a_buffer_is_missing_what_no_piece_has(tmp_path: Path, n: int) -> None:
    """A loop up to the end of one piece was decoded; the next piece is a later snapshot."""
    first = pt.psb(1000) + pt.cyc(10) + pt.tip(pt.LOOP) + pt.loop(20, 500)
    rest = pt.psb(50_000, pt.LOOP) + END
    recording = pt.Recording({(0, 7): [first, rest]}, snapshot=True, apart=True)
    rows = calls(tmp_path, recording, "--slice-bytes", "1" if n > 1 else "1000000", "--jobs", str(n))
    assert of("gap", rows) == [("not decoded", 11_010, 50_000)]


@pytest.mark.parametrize(
    ("overflow", "end"),
    [
        # A FUP shows where it continues; the TSC right after it shows when.
        (pt.OVF + pt.fup(pt.LOOP) + pt.psb(50_000, pt.LOOP), 50_000),
        (pt.OVF + pt.fup(pt.LOOP) + pt.tsc(50_000), 50_000),
        # Its own CYC packet has the cycles that it lasted: 11,010 + 4000.
        (pt.cyc(4000) + pt.OVF + pt.fup(pt.LOOP), 15_010),
        (pt.cyc(4000) + pt.OVF + pt.enable(pt.LOOP), 15_010),
        (pt.OVF + pt.enable(pt.LOOP) + pt.tsc(50_000), 50_000),
        # No packet before the next branch's tells when: 500 ns of the first round are not known either.
        (pt.OVF + pt.fup(pt.LOOP), 11_510),
    ],
    ids=["psb", "tsc", "cyc", "cyc enable", "enable tsc", "branch"],
)
def test_an_overflow_lasts_until_it_is_told_when_it_ended(tmp_path: Path, overflow: bytes, end: int) -> None:
    rows = calls(tmp_path, pt.Recording({(0, 7): [BEGIN + overflow + END]}))
    assert of("gap", rows) == [("overflow", 11_010, end)]
    assert not of("stall", rows)
    assert of("function", rows)[2][1] == end


@pytest.mark.parametrize("name", unpack.names())
def test_rows_of_every_table_of_captures_take_time_and_gaps_what_is_left(name: str, tmp_path: Path) -> None:
    tables = decoded.decoded(name, tmp_path) / "capture.nsight/tables"
    for path in sorted(tables.glob("*.parquet")):
        table = pq.read_table(path)
        for column in table.column_names:
            # How long something lasted; deviations may be negative.
            if column in ("dur_ns", "self_ns", "took_ns", "observed_ns", "ns", "lifetime_ns"):
                assert (table[column].to_numpy() >= 0).all(), (path.name, column)
        if {"start_ns", "end_ns"} <= set(table.column_names):
            assert (table["start_ns"].to_numpy() <= table["end_ns"].to_numpy()).all(), path.name
    rows = pq.read_table(tables / "calls.parquet")
    top = rows.filter(ds.field("parent_id") == -1).sort_by([("cpu", "ascending"), ("start_ns", "ascending")])
    cpu, begin, dur = (top[c].to_numpy() for c in ("cpu", "start_ns", "dur_ns"))
    # Nothing is reported twice or left out: thread after thread, with gaps between them.
    follows = cpu[1:] == cpu[:-1]
    assert (begin[1:][follows] == (begin + dur)[:-1][follows]).all()
    gaps = rows.filter(ds.field("kind") == "gap")
    contexts = pq.read_table(tables / "contexts.parquet").filter(ds.field("kind") == "gap")
    lasted = gaps["dur_ns"].to_pylist()
    in_contexts = contexts["end_ns"].to_numpy() - contexts["start_ns"].to_numpy()
    assert in_contexts.sum() == sum(lasted)
    data = tables.parent / "perf.data"
    stream = parity.by_native(data, (data.parent.parent / "symfs").resolve(), tmp_path)
    expected = []
    for event in stream.events[np.isin(stream.events["code"], (1, 2))]:
        edges = stream.edges[stream.edges["cpu"] == event["cpu"]]
        behind = edges["time"][edges["time"] > event["time"]]
        expected.append(int(behind[0] - event["time"]))
    assert lasted == expected
    # The last row of a core ends where its trace does.
    done = run("calls", data, "--symfs", data.parent.parent / "symfs", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    top = ds.dataset(tmp_path / "out/calls").to_table(filter=ds.field("parent_id") == -1)
    last = {r["cpu"]: r["start_ns"] + r["dur_ns"] for r in top.to_pylist()}
    assert last == {e["cpu"]: e["time"] for e in stream.events if e["code"] == UNTIL}


@pytest.mark.parametrize("psb", [11_510, 12_900, 14_000], ids=["begin", "middle", "end"])
def test_a_wait_over_the_begin_of_a_slice_is_one_wait(tmp_path: Path, psb: int) -> None:
    """``main`` waits from 11,010 to 14,010 in its loop, without a call before or behind it, and a PSB falls into that time."""
    trace = BEGIN + pt.psb(psb, pt.LOOP) + pt.loop(1, 14_010 - psb) + pt.loop(20, 500)
    recording = pt.Recording({(0, 7): [trace]})
    (stall,) = of("stall", calls(tmp_path, recording))
    assert of("stall", calls(tmp_path, recording, "--slice-bytes", "1")) == [stall]
    build_agrees(tmp_path)
