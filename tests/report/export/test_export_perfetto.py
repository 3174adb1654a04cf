# SPDX-License-Identifier: GPL-2.0-only
"""The Perfetto trace in Perfetto's trace_processor, compared with its source tables (machinery/made_up/capture.py)."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nsight_report
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from machinery.made_up.capture import HOG_EVERY, HOG_FOR, START, US, World, write_capture
from machinery.made_up.tables import state, table
from nsight_report.api import Capture
from nsight_report.errors import BadInput
from nsight_report.export import perfetto
from nsight_report.export.perfetto_wire import BEGIN, END, INSTANT
from nsight_report.export.selection import choose
from nsight_report.selection.windows import MARGIN_NS
from nsight_report.tables import store
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as published

from .trace_processor.processor import open_trace

pytestmark = pytest.mark.tools

CALLS = "('thread', 'idle', 'syscall', 'softirq', 'hardirq')"
FIRST_HOGGED = START + HOG_EVERY  # nic_ns of message 200: it waits for the whole hog


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    capture = nsight_report.open(write_capture(tmp_path_factory.mktemp("p") / "small.nsight"))
    capture.analyse()
    return capture


@pytest.fixture(scope="module")
def exported(analysed: Capture) -> Path:
    path = analysed.path.parent / "slow.pftrace"
    perfetto.export(analysed, "slow", path)
    return path


@pytest.fixture(scope="module")
def trace(exported: Path) -> Iterator[Any]:
    engine = open_trace(exported)
    yield engine
    engine.close()


def test_trace_processor_reads_it_without_an_error(trace: Any) -> None:
    assert trace.rows("select name, value from stats where value > 0 and severity <> 'info'") == []
    assert trace.rows("select count(*) as n from slice where dur < 0") == [(0,)]


def test_slices_of_cores_are_the_calls_around_the_messages(trace: Any, analysed: Capture) -> None:
    slow = analysed.messages[analysed.messages["message_id"].isin(analysed.coverage["message_id"])]
    calls = analysed.frame("calls")
    begin, end = calls["start_ns"], calls["start_ns"] + calls["dur_ns"]
    near = np.zeros(len(calls), bool)
    for m in slow.itertuples():
        on_core = calls["cpu"].isin([m.recv_cpu, m.app_cpu])
        near |= (on_core & (begin < m.last_ns + MARGIN_NS) & (end > m.first_ns - MARGIN_NS)).to_numpy(bool)
    expected = calls.loc[near, ["call_id", "start_ns", "dur_ns", "depth", "symbol", "kind", "cpu"]]
    assert 50 < len(expected) < len(calls) / 4  # windows, not the whole capture
    found = trace.rows(
        "select int_value as call, ts, dur, depth, s.name as name, category, cast(substr(t.name, 6, 1) as int) as cpu"
        " from slice s join args using (arg_set_id) join track t on s.track_id = t.id"
        f" where key = 'debug.call_id' and category in {CALLS} order by call"
    )
    assert found == [tuple(row) for row in expected.astype(object).itertuples(index=False)]


def test_flow_leads_from_the_nic_over_both_cores_to_the_read(trace: Any, analysed: Capture) -> None:
    hops = trace.rows(
        "select a.name as out, a.ts as out_ts, ta.name as out_track, b.name as next, b.ts as next_ts, tb.name as next_track"
        " from flow f join slice a on f.slice_out = a.id join track ta on a.track_id = ta.id"
        " join slice b on f.slice_in = b.id join track tb on b.track_id = tb.id"
        " where a.name like 'message 200:%' order by a.ts"
    )
    nic = FIRST_HOGGED
    read = nic + HOG_FOR + 10 * US
    assert hops == [
        ("message 200: NIC", nic, "message", "message 200: arrival", nic + 2 * US, "core 0 (R)"),
        (
            "message 200: arrival",
            nic + 2 * US,
            "core 0 (R)",
            "message 200: hand-off",
            nic + 5 * US,
            "core 0 (R)",
        ),
        ("message 200: hand-off", nic + 5 * US, "core 0 (R)", "message 200: read", read, "core 1 (A)"),
    ]
    assert trace.rows("select count(*) as n from flow") == [(3 * len(analysed.coverage),)]


def test_message_carries_its_numbers_and_causes(trace: Any, analysed: Capture) -> None:
    rows = trace.rows(
        "select s.ts as ts, s.dur as dur, a.key as key, a.int_value as value from slice s join args a using (arg_set_id)"
        " where category = 'message' and a.int_value is not null"
    )
    by_begin: dict[int, dict[str, int]] = {}
    for ts, dur, key, value in rows:
        by_begin.setdefault(ts, {"dur": dur})[key.removeprefix("debug.")] = value
    assert len(by_begin) == len(analysed.coverage)
    for c in analysed.coverage.itertuples():
        message = analysed.message(c.message_id)
        told = by_begin[message["first_ns"]]
        assert told["message_id"] == c.message_id
        assert told["dur"] == told["latency_ns"] == c.latency_ns
        assert told["deviation_ns"] == c.deviation_ns
        own = analysed.anomalies[analysed.anomalies["message_id"] == c.message_id]
        causes = {k: v for k, v in told.items() if k.startswith("causes.")}
        assert causes == {f"causes.{a.category} (A)": a.deviation_ns for a in own.itertuples()}
    assert any(len(t) for t in by_begin.values() if "causes.Head-of-line blocking (A)" in t)


def test_causes_are_instants_on_the_core_with_their_evidence(trace: Any) -> None:
    found = trace.rows(
        "select s.ts as ts, s.name as name, t.name as track, a.int_value as end_ns from slice s"
        " join track t on s.track_id = t.id join args a using (arg_set_id) join args b using (arg_set_id)"
        " where category = 'cause' and a.key = 'debug.end_ns' and b.key = 'debug.message_id' and b.int_value = 200"
    )
    assert found == [(FIRST_HOGGED, "hog (A) +995 us", "core 1 (A)", FIRST_HOGGED + HOG_FOR)]


def test_other_messages_of_the_time_are_there_in_tracks_of_their_own(trace: Any, analysed: Capture) -> None:
    rows = trace.rows(
        "select int_value as id, t.name as track from slice s join args using (arg_set_id)"
        " join track t on s.track_id = t.id where category = 'other message' and key = 'debug.message_id'"
    )
    numbers = {number for number, _track in rows}
    slow = set(analysed.coverage["message_id"])
    # 203 to 209 wait behind the same hog but are not slow messages; 100 is far away.
    assert {203, 209} <= numbers
    assert not numbers & (slow | {100})
    assert {track for _number, track in rows} == {"other message"}
    assert trace.rows("select max(depth) as d from slice where category = 'other message'") == [(0,)]


def packets(path: Path) -> list[Any]:
    whole = published.Trace()
    data = path.read_bytes()
    whole.ParseFromString(gzip.decompress(data) if path.suffix == ".gz" else data)
    return list(whole.packet)


def test_published_classes_read_every_packet(exported: Path) -> None:
    """Without trace_processor: the packets written with numpy equal those that the published classes would write."""
    found = packets(exported)
    events = [p for p in found if p.HasField("track_event")]
    kinds = [p.track_event.type for p in events]
    assert kinds.count(BEGIN) == kinds.count(END) > 100
    assert kinds.count(INSTANT) > 60
    for packet in events[:500]:
        assert not len(UnknownFieldSet(packet))
        assert not len(UnknownFieldSet(packet.track_event))
    assert all(START - 10**9 < p.timestamp < START + 10**10 for p in events)


class Busy(World):
    """20 threads run and sleep for 50 us each in turn, for 30 ms; one of them reads the messages."""

    def tables(self) -> dict[str, pa.Table]:
        reader = self.messages[0]["tid"]
        rows = [
            state(START + k * 50 * US, START + (k + 1) * 50 * US, "sleeping" if k % 2 else "running", (i + k) % 3, reader + i)
            | {"comm": f"worker {i}"}
            for i in range(20)
            for k in range(600)
        ]  # fmt: skip
        return super().tables() | {"thread_states": table("thread_states", rows)}


def test_of_thread_states_only_those_around_the_messages_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any row groups of the table."""
    monkeypatch.setattr(store, "GROUP_ROWS", 500)
    capture = nsight_report.open(write_capture(tmp_path / "small.nsight", Busy()))
    frames: list[str] = []
    whole = Capture.frame
    monkeypatch.setattr(Capture, "frame", lambda self, name: frames.append(name) or whole(self, name))
    chosen = choose(capture, "200")
    assert "thread_states" not in frames
    states = capture.frame("thread_states")
    low, high = FIRST_HOGGED - MARGIN_NS, FIRST_HOGGED + 1010 * US + MARGIN_NS
    reads = states["tid"] == chosen.messages["tid"].iloc[0]
    there = (states["start_ns"] < high) & (states["end_ns"] > low) & (reads | states["cpu"].isin([0, 1]))
    expected = states[there & (states["state"] == "running")]
    # 11 of 21 states in each of 20 threads, without those on core 2.
    assert 100 < len(expected) < 11 * 20
    names = ["tid", "comm", "start_ns", "end_ns", "cpu"]
    assert (
        chosen.states[names].astype(str).to_numpy().tolist()
        == expected[names].astype(str).to_numpy().tolist()
    )


def test_compressed_when_the_name_says_so(analysed: Capture, tmp_path: Path) -> None:
    perfetto.export(analysed, "200", tmp_path / "a.pftrace")
    perfetto.export(analysed, "200", tmp_path / "a.pftrace.gz")
    assert packets(tmp_path / "a.pftrace.gz") == packets(tmp_path / "a.pftrace")
    assert (tmp_path / "a.pftrace.gz").stat().st_size < (tmp_path / "a.pftrace").stat().st_size / 2


def test_row_groups_do_not_show(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table in row groups of 50 rows gives the same trace: a call is one slice even if pieces end within it."""
    monkeypatch.setattr(store, "GROUP_ROWS", 50)
    again = write_capture(tmp_path / "small.nsight")
    assert pq.ParquetFile(again / "tables/calls.parquet").num_row_groups > 5
    perfetto.export(nsight_report.open(again), "slow", tmp_path / "b.pftrace")

    def of_cores(path: Path) -> list[tuple[int, int, int]]:
        return [
            (p.trusted_packet_sequence_id, p.timestamp, p.track_event.type)
            for p in packets(path)
            if p.HasField("track_event") and p.trusted_packet_sequence_id > 1
        ]

    assert of_cores(tmp_path / "b.pftrace") == of_cores(exported)


def test_names_from_the_capture_are_made_printable(tmp_path: Path) -> None:
    hostile = write_capture(tmp_path / "h.nsight", World(n=300, app="x\x1b[31m", hog="\u202eabc"))
    perfetto.export(nsight_report.open(hostile), "slow", tmp_path / "h.pftrace")
    data = (tmp_path / "h.pftrace").read_bytes()
    assert b"\x1b[" not in data
    assert "\u202e".encode() not in data
    assert b"x\\x1b[31m" in data


def test_cause_on_no_drawn_core_stands_with_its_message(tmp_path: Path) -> None:
    """Time on the way is on core -1; a thread may have waited for a core that the message was not on."""
    c = nsight_report.open(write_capture(tmp_path / "c.nsight"))
    cpus = c.anomalies["message_id"].map({200: -1, 201: 7}).fillna(1).astype("int32")
    c._frames["anomalies"] = c.anomalies.assign(cpu=cpus)
    perfetto.export(c, "slow", tmp_path / "c.pftrace")
    found = packets(tmp_path / "c.pftrace")
    described = {
        p.track_descriptor.uuid: p.track_descriptor.name for p in found if p.HasField("track_descriptor")
    }
    events = [p.track_event for p in found if p.HasField("track_event")]
    assert {e.track_uuid for e in events if e.HasField("track_uuid")} <= set(described)
    at = {}
    for e in events:
        if "cause" in e.categories:
            told = {a.name: a.int_value for a in e.debug_annotations}
            at[told["message_id"]] = (described[e.track_uuid], told["cpu"])
    assert (at[200], at[201]) == (("message", -1), ("message", 7))
    assert {where for number, where in at.items() if number not in (200, 201)} == {("core 1 (A)", 1)}


def test_message_that_is_not_there_is_named(analysed: Capture, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no message 9999: messages are 0 to 1999"):
        perfetto.export(analysed, "3,9999", tmp_path / "x")
    assert not list(tmp_path.iterdir())
