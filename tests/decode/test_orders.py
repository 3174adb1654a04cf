# SPDX-License-Identifier: GPL-2.0-only
"""Orders of packets that hardware may write: rows are what was executed, times are the packets'."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from machinery.pt_emulation.fixtures import unpack

from conftest import skip_or_fail
from decode import packet_times, parity, real
from decode import packets as pt
from decode.orders import batch, generator, reader, run
from decode.orders.encoder import NOMINAL
from decode.test_gaps import calls, of

pytestmark = pytest.mark.tools


@pytest.fixture(autouse=True)
def decoder() -> None:
    if not parity.NATIVE.exists():
        skip_or_fail("decoder", "nsight-decode is not built (hint: make decoder)")


def test_every_route_tells_what_was_executed_and_when() -> None:
    """A recording of each kind; run.py makes any number of them, and lets perf decode some."""
    n = 60
    result = run.run(
        n * len(batch.KINDS), 0, list(batch.KINDS), n, with_perf=shutil.which("perf") is not None
    )
    assert not result.differences
    assert result.n["nsight-decode"] == result.n["one PSB a slice"] == n * len(batch.KINDS)


def test_the_reader_tells_the_generators_own_time() -> None:
    """If cycles are counted, a CYC packet gives the time of the next packet: the encoder's clock, up to one tick of rounding."""
    sequences = [generator.sequence(seed, batch.KINDS["branches alone"], 1 << 20) for seed in range(50)]
    for sequence in sequences:
        found = reader.packets(sequence.trace)
        times = reader.times(found, NOMINAL, (84, 2), 3)
        assert abs(times[-1] - sequence.end) <= 1
        told = [time for time in times if time is not None]
        assert told == sorted(told)


@pytest.mark.parametrize("name", ["overflow", "quiet"])
def test_rows_of_captures_have_the_times_of_their_packets(name: str) -> None:
    place = unpack.shared(name)
    n, wrong = packet_times.compare(place / "capture.nsight/perf.data", (place / "symfs").resolve())
    assert n > 50_000 and not wrong


def test_rows_of_real_recordings_have_the_times_of_their_packets(tmp_path: Path) -> None:
    place = os.environ.get(real.VARIABLE)
    if not place:
        skip_or_fail("pt-real", f"{real.VARIABLE} names no directory")
    for path in real.recordings(Path(place), tmp_path):
        n, wrong = packet_times.compare(path, Path("/"))
        assert n > 0 and not wrong


# What the orders showed, by hand. BEGIN calls leaf at 1000, which returns at 1010.
BEGIN = pt.psb(1000) + pt.cyc(10) + pt.tip(pt.LOOP)


def test_a_fup_of_event_trace_is_no_interrupt(tmp_path: Path) -> None:
    """CFE with its IP bit, and MODE.Exec of the interrupt flag, have a FUP of their own; what follows has its own time."""
    for packet in (b"\x02\x13\x83\0", b"\x99\x05", b"\x99\x21"):
        trace = (
            BEGIN
            + pt.cyc(20)
            + packet
            + pt.fup(pt.LOOP)
            + pt.cyc(5)
            + pt.tnt(False)
            + pt.cyc(5)
            + pt.tip(pt.LOOP)
        )
        rows = calls(tmp_path, pt.Recording({(0, 7): [trace + pt.loop(1, 10)]}))
        assert of("function", rows)[2] == ("leaf", 1035, 1040)


def test_marks_have_the_time_of_their_packet_and_hold_nothing_up(tmp_path: Path) -> None:
    """After a change of frequency libipt's own time may be far ahead."""
    trace = BEGIN + pt.cyc(20) + bytes([2, 3, 40, 0]) + pt.loop(3, 400) + pt.psb(2000, pt.LOOP)
    trace += pt.cyc(10) + pt.tnt(False) + pt.cyc(10) + pt.tip(pt.LOOP) + pt.loop(1, 10)
    recording = pt.Recording({(0, 7): [trace]})
    data = recording.write(tmp_path)
    stream = parity.by_native(data, tmp_path / "symfs", tmp_path)
    ratios = stream.events[stream.events["code"] == 7]
    assert ratios[["time", "value"]].tolist() == [(1000, pt.RATIO), (1030, 40), (2000, pt.RATIO)]
    rows = of("function", calls(tmp_path, recording))
    assert rows[1:] == [("leaf", 1000, 1010), ("leaf", 2010, 2020)]


def test_the_first_cycles_behind_a_psb_are_spread_though_cbr_comes_behind_tsc(tmp_path: Path) -> None:
    """100 cycles until a TSC that is 105 later: each counts 1.05 ns."""
    psb = (
        b"\x02\x82" * 8
        + pt.tsc(1000)
        + bytes([2, 3, pt.RATIO, 0])
        + b"\x99\x01"
        + pt.fup(pt.MAIN)
        + pt.PSBEND
    )
    trace = psb + pt.cyc(40) + pt.tip(pt.LOOP) + pt.loop(1, 60) + pt.tsc(1105) + pt.loop(1, 10)
    rows = calls(tmp_path, pt.Recording({(0, 7): [trace]}))
    assert of("function", rows)[1] == ("leaf", 1000, 1042)


@pytest.mark.parametrize(("period", "ratio"), [(9, (9, 1)), (3, (0, 0)), (3, (1, 0))])
def test_time_goes_on_up_to_an_mtc_of_a_long_period_or_an_unknown_rate(
    tmp_path: Path, period: int, ratio: tuple[int, int]
) -> None:
    """MTC packets have bits that TMA does not have, or CPUID 15H of the recorded machine is unknown."""
    tma = b"\x02\x73" + (512 - 345).to_bytes(2, "little") + bytes(3)
    status = pt.tsc(1000) + tma + bytes([2, 3, pt.RATIO, 0]) + b"\x99\x01" + pt.fup(pt.MAIN)
    trace = b"\x02\x82" * 8 + status + pt.PSBEND + pt.cyc(10) + pt.tip(pt.LOOP)
    for _ in range(3):
        trace += pt.loop(2, 500) + pt.cyc(10) + pt.tnt(False) + pt.cyc(20) + pt.tip(pt.LOOP)
    # 345 ticks of 9 ns behind TMA: 3105 ns, as CYC packets tell it, too.
    trace += pt.cyc(5) + bytes([0x59, 1]) + pt.loop(1, 10)
    recording = pt.Recording({(0, 7): [trace]}, tsc_ctc=ratio)
    recording.config |= pt.MTC | period << 14
    leaf = [row[1:] for row in of("function", calls(tmp_path, recording)) if row[0] == "leaf"]
    assert leaf == [(1000, 1010), (2020, 2040), (3050, 3070), (4080, 4100)]


def test_the_branch_before_an_overflow_is_known(tmp_path: Path) -> None:
    """Its TIP was written, although no code runs after it."""
    trace = BEGIN + pt.cyc(5) + pt.tnt(False) + pt.cyc(5) + pt.tip(pt.LOOP)
    trace += pt.cyc(1000) + pt.OVF + pt.fup(pt.LOOP) + pt.loop(2, 10)
    recording = pt.Recording({(0, 7): [trace]})
    assert of("gap", calls(tmp_path, recording)) == [("overflow", 1020, 2020)]
    rows = parity.by_native(tmp_path / "perf.data", tmp_path / "symfs", tmp_path).edges
    assert [(row["kind"], row["to"], row["time"]) for row in rows][-3:] == [
        (parity.CALL, pt.LEAF, 1015),
        (parity.RETURN, pt.LOOP, 1020),
        (parity.BEGIN, pt.LOOP, 2020),
    ]


def test_an_overflow_begins_behind_the_last_packet_of_time(tmp_path: Path) -> None:
    trace = BEGIN + pt.psb(3000, pt.LOOP) + pt.OVF + pt.fup(pt.LOOP) + pt.loop(1, 500) + pt.psb(5000, pt.LOOP)
    for options in ((), ("--slice-bytes", "1")):
        rows = calls(tmp_path, pt.Recording({(0, 7): [trace + pt.loop(1, 10)]}), *options)
        assert of("gap", rows) == [("overflow", 3000, 3500)]


def test_tracing_begins_at_the_time_of_the_psb_behind_the_overflow(tmp_path: Path) -> None:
    """No CYC packet comes before TIP.PGE if fewer cycles passed than its threshold. A slice may begin at that PSB."""
    status = b"\x02\x82" * 8 + pt.tsc(1030) + bytes([2, 3, pt.RATIO, 0]) + b"\x99\x01" + pt.PSBEND
    trace = BEGIN + pt.cyc(20) + pt.tnt(True) + pt.OVF + status
    trace += pt.enable(pt.LOOP) + pt.cyc(40) + pt.tnt(False) + pt.cyc(10) + pt.tip(pt.LOOP)
    for options in ((), ("--slice-bytes", "1")):
        recording = pt.Recording({(0, 7): [trace + pt.loop(1, 10)]})
        data = recording.write(tmp_path)
        found = parity.by_native(data, tmp_path / "symfs", tmp_path, *options).edges
        assert [row["time"] for row in found if row["kind"] == parity.BEGIN][-1] == 1030, options


#: A packet of a C-state (PWRE), which needs no branch.
SLEEP = b"\x02\x22\0\x10"


@pytest.mark.parametrize(
    ("behind", "at"), [(pt.loop(9000, 10), 91_090), (pt.cyc(10) + SLEEP, 1100), (b"", 1090)]
)
def test_a_mark_before_a_psb_is_told_once(tmp_path: Path, behind: bytes, at: int) -> None:
    """Marks wait for the time of the next branch, which belongs to the next slice, and may not be a call."""
    marks = (pt.cyc(10) + SLEEP) * 3
    trace = BEGIN + pt.loop(2, 10) + marks + pt.psb(1060, pt.LOOP) + behind + marks
    trace += pt.psb(at, pt.LOOP) + pt.loop(2, 10)
    data = pt.Recording({(0, 7): [trace]}).write(tmp_path)
    found = []
    for options in ((), ("--slice-bytes", "1")):
        events = parity.by_native(data, tmp_path / "symfs", tmp_path, *options).events
        found.append(events[["time", "code", "value"]].tolist())
    assert found[0] == found[1]
    assert [time for time, code, _ in found[0] if code == 6][:3] == [1040, 1050, 1060]
    assert sum(code == 6 for _, code, _ in found[0]) == 6 + behind.count(SLEEP)
