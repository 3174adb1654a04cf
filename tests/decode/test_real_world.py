# SPDX-License-Identifier: GPL-2.0-only
"""Features that recordings of real machines have and the emulator's do not: no CPU in the file, returns after a loss, per-thread buffers."""

from __future__ import annotations

import itertools
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from conftest import skip_or_fail
from decode import packets as pt
from decode import parity
from decode.test_nsight_decode import run

pytestmark = pytest.mark.tools

LOST, AUX, LOST_SAMPLES, SWITCH = 2, 11, 13, 14


@pytest.fixture(autouse=True)
def decoder() -> None:
    if not parity.NATIVE.exists():
        skip_or_fail("decoder", "nsight-decode is not built (hint: make decoder)")


def decoded(
    directory: Path, recording: pt.Recording, *options: str
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Rows of calls, and losses by key."""
    data = recording.write(directory)
    done = run("calls", data, "--symfs", directory / "symfs", "--out", directory / "out", *options)
    assert done.returncode == 0, done.stderr
    rows = ds.dataset(directory / "out/calls").to_table().to_pylist()
    account = json.loads((directory / "out/calls.json").read_text())
    return rows, {loss["key"]: loss["count"] for loss in account["losses"]}


#: ``leaf`` is called at 1000 and returns at 1010; 20 rounds of the loop up to 11,010.
END = pt.cyc(10) + pt.tnt(False) + pt.cyc(20) + pt.tip(pt.LOOP)
BEGIN = pt.psb(1000) + pt.cyc(10) + pt.tip(pt.LOOP) + pt.loop(20, 500)


def test_a_file_that_does_not_tell_its_cpu_is_warned_of_unless_it_is_given(tmp_path: Path) -> None:
    without = pt.Recording({(0, 7): [BEGIN]}, cpuid=None)
    assert decoded(tmp_path / "a", without)[1] == {"cpu_unknown": 1}
    assert decoded(tmp_path / "b", without, "--cpu", "6/85/7")[1] == {}
    assert decoded(tmp_path / "c", pt.Recording({(0, 7): [BEGIN]}))[1] == {}


def test_the_errata_of_the_cpu_that_is_given_are_worked_around(tmp_path: Path) -> None:
    """BDM70 (6/61): a PSB+ right before a begin of tracing may have an address, as if tracing were on."""
    trace = pt.psb(1000) + pt.cyc(10) + pt.tip(pt.LOOP) + pt.fup(pt.LOOP) + pt.disable(pt.MAIN)
    trace += pt.psb(50_000) + pt.enable(pt.MAIN) + pt.cyc(10) + pt.tip(pt.LOOP) + pt.loop(2, 10)
    recording = pt.Recording({(0, 7): [trace]}, cpuid=None)
    assert decoded(tmp_path / "a", recording, "--cpu", "6/61/4")[1] == {}
    losses = decoded(tmp_path / "b", recording)[1]
    assert losses["cpu_unknown"] == 1 and losses["code_contradicted"] > 0


@pytest.mark.parametrize("cpu", ["6/85", "6/85/7/1", "6/x/7", "6/300/7", "/", "0x6/85/7"])
def test_a_cpu_that_is_none_is_refused(tmp_path: Path, cpu: str) -> None:
    done = run("edges", tmp_path / "none", "-o", tmp_path / "e", "--cpu", cpu)
    assert done.returncode == 2 and "6/85/7" in done.stderr


def refused(directory: Path, recording: pt.Recording, command: str = "calls") -> list[str]:
    """The error and its hint."""
    data = recording.write(directory)
    out = ["--out" if command == "calls" else "-o", directory / "out"]
    done = run(command, data, "--symfs", directory / "symfs", *out)
    assert done.returncode == 4, done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize("command", ["calls", "edges"])
def test_a_trace_that_cannot_be_entered_is_refused(tmp_path: Path, command: str) -> None:
    """The buffers wrapped before the next PSB came."""
    trace = pt.cyc(10) + pt.tip(pt.LOOP) + pt.loop(20, 500)
    error, hint = refused(tmp_path, pt.Recording({(0, 7): [trace], (1, 7): [trace]}), command)
    assert str(tmp_path / "perf.data") in error and "no PSB packet" in error
    assert hint.startswith("hint: ") and "psb_period" in hint


def test_a_buffer_that_cannot_be_entered_is_counted(tmp_path: Path) -> None:
    lost = pt.loop(20, 500)
    _, losses = decoded(tmp_path, pt.Recording({(0, 7): [lost], (1, 7): [BEGIN]}))
    assert losses == {"no_psb": 1, "bytes_before_psb": (len(lost) + 7) // 8 * 8}


@pytest.mark.parametrize(
    ("bits", "cause", "remedy"),
    [(1, "without branches", "branch=1"), (1 << 55 | 1 << 13 | 1, "TNT", "notnt=0")],
)
def test_without_packets_of_branches_nothing_is_made_up(
    tmp_path: Path, bits: int, cause: str, remedy: str
) -> None:
    recording = pt.Recording({(0, 7): [BEGIN]}, config=pt.TSC | pt.CYC | pt.NO_RETURN_COMPRESSION | bits)
    error, hint = refused(tmp_path, recording)
    assert cause in error and remedy in hint
    recording.config |= pt.BRANCH
    recording.config &= ~(1 << 55)
    assert decoded(tmp_path, recording)[1] == {}


def test_jumps_of_32_bit_code_are_no_others(tmp_path: Path) -> None:
    """Read as 64-bit code, the address of its first instruction has eight bytes, and its numbers are a jump to ``other``.

    main: mov eax, [0]; cmp eax, 0xe9000000; cmp eax, 0x3d; jmp tail
    tail: jne tail
    """
    main = b"\xa1\0\0\0\0" + b"\x3d\0\0\0\xe9" + b"\x3d\x3d\0\0\0" + b"\xeb\x0f"
    code = (main.ljust(0x20, b"\0") + b"\x75\xfe").ljust(0x4B, b"\0") + b"\x75\xfe"
    places = {"main": (0, len(main)), "tail": (0x20, 0x22), "other": (0x4B, 0x4D)}
    functions = [(name, pt.MAIN + begin, pt.MAIN + end) for name, (begin, end) in places.items()]
    # MODE.Exec: CS.D and not CS.L
    trace = pt.psb(1000).replace(b"\x99\x01", b"\x99\x02") + pt.loop(3, 500)
    rows, losses = decoded(tmp_path, pt.Recording({(0, 7): [trace]}, program=pt.elf(code, functions)))
    assert losses == {}
    assert [row["symbol"] for row in rows if row["kind"] == "function"] == ["main", "tail"]


def test_a_compressed_return_behind_a_loss_is_not_the_fault_of_the_programs(tmp_path: Path) -> None:
    """The TIP in the loop contradicts it; decoding continues within ``leaf``, whose call is unknown there."""
    begin = pt.psb(1000) + pt.cyc(10) + pt.tnt(True) + pt.loop(20, 500)
    lost = pt.tip(pt.LEAF) + pt.cyc(10) + pt.tnt(True)
    recording = pt.Recording({(0, 7): [begin + lost + pt.psb(50_000, pt.LOOP) + pt.loop(2, 10)]})
    recording.config &= ~pt.NO_RETURN_COMPRESSION
    _, losses = decoded(tmp_path, recording)
    assert losses == {"code_contradicted": 1, "return_unknown": 1}


def test_gaps_of_threads_with_buffers_of_their_own_are_theirs(tmp_path: Path) -> None:
    """One thread loses 1010 to 5000 and 9000 to 20,000; the other one runs meanwhile, and loses 7010 to 8000."""
    call = pt.cyc(10) + pt.tnt(False) + pt.cyc(10) + pt.tip(pt.LOOP)
    first = pt.psb(1000) + pt.cyc(10) + pt.tip(pt.LOOP) + pt.DAMAGED
    first += pt.psb(5000, pt.LOOP) + pt.loop(8, 500) + pt.DAMAGED + pt.psb(20_000, pt.LOOP) + call
    second = pt.psb(2000) + pt.cyc(10) + pt.tip(pt.LOOP) + pt.loop(10, 500) + pt.DAMAGED
    second += pt.psb(8000, pt.LOOP) + call + call + pt.loop(20, 500)
    rows, _ = decoded(tmp_path, pt.Recording({(-1, 7): [first], (-1, 8): [second]}))
    gaps = [
        (r["cpu"], r["pid"], r["tid"], r["start_ns"], r["dur_ns"])
        for r in sorted(rows, key=lambda r: r["start_ns"])
        if r["kind"] == "gap"
    ]
    assert gaps == [(-1, 7, 7, 1010, 3990), (-1, 7, 8, 7010, 990), (-1, 7, 7, 9000, 11_000)]
    # Each thread's rows are continuous, whatever the other thread does.
    by_id = {row["call_id"]: row for row in rows}
    assert len(by_id) == len(rows)
    assert all(by_id[r["parent_id"]]["tid"] == r["tid"] for r in rows if r["parent_id"] != -1)
    for tid in (7, 8):
        top = sorted((r["start_ns"], r["dur_ns"]) for r in rows if r["tid"] == tid and r["depth"] == 0)
        assert all(a + dur == b for (a, dur), (b, _) in itertools.pairwise(top))


def side_band(kind: int, body: bytes, tid: int, time: int, cpu: int) -> bytes:
    ids = struct.pack("<IIQIIQ", pt.PID, tid, time, cpu, 0, 1)
    return pt.record(kind, 0, body + ids)


@pytest.mark.parametrize("cpu", [0, pt.NO_CPU], ids=["a core", "no core"])
def test_a_full_buffer_of_one_thread_is_none_of_another(tmp_path: Path, cpu: int) -> None:
    """Tracing of both stops from 3030 to 9000, and the buffer of one of them was full."""
    stopped = pt.psb(1000) + pt.cyc(10) + pt.tip(pt.LOOP) + pt.loop(4, 500) + pt.cyc(10) + pt.tnt(False)
    stopped += (
        pt.cyc(10) + pt.fup(pt.LEAF) + b"\x01" + pt.psb(9000)[: -len(pt.fup(0) + pt.PSBEND)] + pt.PSBEND
    )
    stopped += pt.enable(pt.LEAF) + pt.cyc(20) + pt.tip(pt.LOOP) + pt.loop(2, 500)
    full = side_band(AUX, struct.pack("<QQQ", 0, 100, 1), 7, 5000, cpu)
    traces = {(-1, tid): [stopped] for tid in (7, 8, 9)}
    rows, losses = decoded(tmp_path, pt.Recording(traces, extra=[full]))
    assert losses == {"buffer_full": 1}
    gaps = {(r["tid"], r["symbol"], r["start_ns"], r["dur_ns"]) for r in rows if r["kind"] == "gap"}
    assert gaps == {(tid, "trace buffer full" if tid == 7 else "not traced", 3030, 5970) for tid in (7, 8, 9)}
    assert [r["end_known"] for r in rows if r["tid"] == 8 and r["end_known"] == "missing"] == []


def test_the_full_buffer_of_a_thread_is_told_where_switches_tell_its_core(tmp_path: Path) -> None:
    full = side_band(AUX, struct.pack("<QQQ", 0, 100, 1), 7, 5000, 3)
    switch = side_band(SWITCH, b"", 7, 900, 3)
    recording = pt.Recording({(-1, 7): [BEGIN], (-1, 8): [BEGIN]}, extra=[switch, full])
    assert decoded(tmp_path, recording)[1] == {"buffer_full": 1}


@pytest.mark.parametrize("core", [0, 3])
@pytest.mark.parametrize(("total", "told"), [(100, 100), (130, 130), (20, 100)])
def test_totals_of_lost_records_are_not_counted_twice(
    tmp_path: Path, total: int, told: int, core: int
) -> None:
    """perf's own total per event, of core 0, includes what the kernel told when it happened."""
    lost = side_band(LOST, struct.pack("<QQ", 1, 100), 7, 5000, core)
    totals = side_band(LOST_SAMPLES, struct.pack("<Q", total), 0, 0, 0)
    _, losses = decoded(tmp_path, pt.Recording({(core, 7): [BEGIN]}, extra=[lost, totals]))
    assert losses == {"records_lost": told}


def test_slices_of_code_without_calls_overlap_by_little(tmp_path: Path) -> None:
    """32 PSBs, each with 8 KiB of packets that tell of 6 rounds of the loop: slices of 2 PSBs, 4 KiB of overlap for 16 each."""
    part = (pt.cyc(6) + pt.tnt(*[True] * 6)) * 4096
    trace = b"".join(pt.psb(1000 + n * 4096 * 6, pt.LOOP) + part for n in range(32))
    data = pt.Recording({(0, 7): [trace + END]}).write(tmp_path)
    insns, found = [], []
    for size in ("1000000000", "17000"):
        options = ["--symfs", tmp_path / "symfs", "-o", tmp_path / "e", "--slice-bytes", size]
        done = run("edges", data, *options)
        insns.append(int(done.stderr.splitlines()[1].partition(" instructions")[0].replace(",", "")))
        found.append((tmp_path / "e").read_bytes())
    assert found[0] == found[1]
    assert insns[0] == 32 * 4096 * 6 + 4
    assert insns[0] < insns[1] < 1.3 * insns[0]


TRANSFERS = [(pt.MAIN, pt.LEAF), (pt.LEAF, pt.LOOP)] * 2


@pytest.mark.parametrize("tid", [7, 8])
def test_a_recording_whose_clock_is_not_told_has_times_of_the_tsc(tmp_path: Path, tid: int) -> None:
    again = pt.cyc(10) + pt.tnt(False) + pt.cyc(20) + pt.tip(pt.LOOP)
    recording = pt.Recording({(-1, tid): [BEGIN + again]}, clock=False)
    rows, losses = decoded(tmp_path, recording)
    assert losses == {"times_are_ticks": 1}
    leaf = [(r["start_ns"], r["dur_ns"], r["tid"]) for r in rows if r["symbol"] == "leaf"]
    # As if a tick were 1 ns.
    assert leaf == [(1000, 10, tid), (11_020, 20, tid)]
    data = tmp_path / "perf.data"
    options = ["--symfs", tmp_path / "symfs", "-o", tmp_path / "e", "--time", "1-2"]
    done = run("edges", data, *options)
    assert done.returncode == 2 and "does not tell perf's clock" in done.stderr


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_a_recording_without_packets_of_time_is_decoded_in_their_order(tmp_path: Path, size: int) -> None:
    """Two PSBs, and a thread with a buffer of its own: as perf decodes it, without any time."""
    again = pt.tnt(False) + pt.tip(pt.LOOP)
    trace = pt.psb(None) + pt.tip(pt.LOOP) + pt.psb(None, pt.LOOP) + again + pt.tnt(True, True, True)
    recording = pt.Recording({(-1, 7): [trace], (-1, 8): [pt.psb(None) + pt.tip(pt.LOOP)]})
    recording.config &= ~(pt.TSC | pt.CYC)
    data = recording.write(tmp_path)
    symfs = tmp_path / "symfs"
    rows = parity.by_native(data, symfs, tmp_path, "--slice-bytes", str(size)).edges
    rows = rows[rows["kind"] != parity.BEGIN]
    assert rows[["from", "to"]][rows["tid"] == 7].tolist() == TRANSFERS
    assert rows[["from", "to"]][rows["tid"] == 8].tolist() == TRANSFERS[:2]
    assert not rows["time"].any()
    done = run("calls", data, "--symfs", symfs, "--out", tmp_path / "out")
    assert "recorded without time: 1:" in done.stderr and "hint: keep tsc=1" in done.stderr
    if not shutil.which("perf"):
        skip_or_fail("perf", "perf is not installed")
    for program in ("nsight.py", "nsight-edges"):
        perfs = parity.by_perf(data, symfs, tmp_path, program).edges
        perfs = perfs[perfs["kind"] != parity.BEGIN]
        assert sorted(perfs[["tid", "from", "to"]].tolist()) == sorted(rows[["tid", "from", "to"]].tolist())


class Rewritten(pt.Recording):
    """A recording whose records another program wrote again, without those of some types, and the trace in another order."""

    without: tuple[int, ...] = ()
    order: tuple[int, ...] = ()

    def records(self) -> list[bytes]:
        kept = [r for r in super().records() if struct.unpack_from("<I", r)[0] not in self.without]
        trace = [r for r in kept if struct.unpack_from("<I", r)[0] == AUXTRACE]
        return [r for r in kept if r not in trace] + [trace[at] for at in self.order or range(len(trace))]


AUXTRACE, ITRACE_START = 71, 12
#: Three pieces, 10 us apart.
PIECES = [pt.psb(n * 10_000, pt.LOOP) + END * 40 for n in (1, 2, 3)]


@pytest.mark.parametrize("order", [(2, 0, 1), (2, 1, 0), (1, 0, 2)])
def test_pieces_of_a_buffer_have_the_order_in_which_they_were_taken(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    recording = Rewritten({(0, 7): [piece + bytes(-len(piece) % 8) for piece in PIECES]})
    wanted = decoded(tmp_path, recording)
    assert len(wanted[0]) > 100 and "decode_errors" not in wanted[1]
    recording.order = order
    assert decoded(tmp_path, recording) == wanted


@pytest.mark.parametrize("without", [(ITRACE_START,), (ITRACE_START, 3)], ids=["no start", "nor a name"])
def test_without_switches_a_core_runs_the_thread_of_its_buffer(
    tmp_path: Path, without: tuple[int, ...]
) -> None:
    """perf record --no-switch-events PROGRAM, and the record of its start was lost."""
    recording = Rewritten({(0, 7): [PIECES[0]]})
    recording.without = without
    rows, _ = decoded(tmp_path, recording)
    assert {(row["tid"], row["pid"]) for row in rows if row["kind"] == "function"} == {(7, 7)}
    assert sum(row["symbol"] == "leaf" for row in rows) == 40


@pytest.mark.parametrize("command", ["calls", "edges"])
def test_data_of_two_events_with_different_settings_are_refused(tmp_path: Path, command: str) -> None:
    data = pt.Recording({(0, 7): [PIECES[0]]}).write(tmp_path)
    content = bytearray(data.read_bytes())
    at, size = struct.unpack_from("<QQ", content, 24)
    other = bytearray(content[at : at + size])
    struct.pack_into("<Q", other, 8, pt.TSC)
    struct.pack_into("<QQ", content, 24, len(content), 2 * size)
    data.write_bytes(content + content[at : at + size] + other)
    out = ("--out", tmp_path / "calls") if command == "calls" else ("-o", tmp_path / "edges")
    done = run(command, data, "--symfs", tmp_path / "symfs", *out)
    assert (done.returncode, done.stdout) == (3, "")
    assert "different settings" in done.stderr and "hint: record one intel_pt event" in done.stderr
