# SPDX-License-Identifier: GPL-2.0-only
"""The filter, called as perf calls it, with samples that are in no committed capture."""

from __future__ import annotations

import ctypes as c
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perf_scripts import runs

sys.path.insert(0, str(runs.SCRIPTS))
from nsight_perf import collect, edge_stream

pytestmark = pytest.mark.tools


class Sample(c.Structure):
    """struct perf_dlfilter_sample of perf/perf_dlfilter.h."""

    _fields_ = [
        ("size", c.c_uint32), ("ins_lat", c.c_uint16), ("p_stage_cyc", c.c_uint16), ("ip", c.c_uint64),
        ("pid", c.c_int32), ("tid", c.c_int32), ("time", c.c_uint64), ("addr", c.c_uint64),
        ("id", c.c_uint64), ("stream_id", c.c_uint64), ("period", c.c_uint64), ("weight", c.c_uint64),
        ("transaction", c.c_uint64), ("insn_cnt", c.c_uint64), ("cyc_cnt", c.c_uint64), ("cpu", c.c_int32),
        ("flags", c.c_uint32), ("data_src", c.c_uint64), ("phys_addr", c.c_uint64),
        ("data_page_size", c.c_uint64), ("code_page_size", c.c_uint64), ("cgroup", c.c_uint64),
        ("cpumode", c.c_uint8), ("addr_correlates_sym", c.c_uint8), ("misc", c.c_uint16),
        ("raw_size", c.c_uint32), ("raw_data", c.c_void_p), ("brstack_nr", c.c_uint64),
        ("brstack", c.c_void_p), ("raw_callchain_nr", c.c_uint64), ("raw_callchain", c.c_void_p),
        ("event", c.c_char_p), ("machine_pid", c.c_int32), ("vcpu", c.c_int32),
    ]  # fmt: skip


class Location(c.Structure):
    """struct perf_dlfilter_al, as far as the filter reads it."""

    _fields_ = [
        ("size", c.c_uint32), ("symoff", c.c_uint32), ("sym", c.c_void_p), ("addr", c.c_uint64),
        ("sym_start", c.c_uint64), ("sym_end", c.c_uint64), ("dso", c.c_void_p),
    ]  # fmt: skip


RESOLVE = c.CFUNCTYPE(c.c_void_p, c.c_void_p)
ARGS = c.CFUNCTYPE(c.c_void_p, c.c_void_p, c.POINTER(c.c_int))
BRANCHES = b"branches:HG"


class Filter:
    """The filter inside a fake perf."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = c.CDLL(str(runs.FILTER))
        functions = (c.c_void_p * 128).in_dll(self.library, "perf_dlfilter_fns")
        self.names = [c.create_string_buffer(64) for _ in range(4)]  # symbol and dso of both ends
        self.ends = (Location(), Location())
        for i, end in enumerate(self.ends):
            end.sym, end.dso = (c.addressof(name) for name in self.names[2 * i : 2 * i + 2])
        self._words = (c.c_char_p * 1)(str(path).encode())
        self._calls = [RESOLVE(lambda _, e=end: c.addressof(e)) for end in self.ends]
        self._calls.append(ARGS(self._args))
        for at, call in enumerate(self._calls):
            functions[at] = c.cast(call, c.c_void_p).value
        self.data = c.c_void_p()
        assert self.library.start(c.byref(self.data), None) == 0

    def _args(self, _: int, count: c._Pointer) -> int:  # type: ignore[name-defined]
        count[0] = 1
        return c.addressof(self._words)

    def give(self, event: bytes = BRANCHES, raw: bytes = b"", **fields: int) -> int:
        """One sample; returns what the filter answers."""
        data = c.create_string_buffer(raw, len(raw) or 1)
        sample = Sample(size=c.sizeof(Sample), event=event, raw_size=len(raw), **fields)
        sample.raw_data = c.addressof(data)
        return self.library.filter_event(self.data, c.byref(sample), None)

    def name(self, *names: bytes) -> None:
        """Overwrite the names in place, as perf does when it reuses memory."""
        for buffer, name in zip(self.names, names):
            buffer.value = name

    def end(self) -> runs.Stream:
        assert self.library.stop(self.data, None) == 0
        return runs.read_stream(self.path)


@pytest.fixture
def dlfilter(tmp_path: Path) -> Iterator[Filter]:
    yield Filter(tmp_path / "out")


def test_kinds_are_those_of_the_script_for_every_combination_of_flags(dlfilter):
    expected = []
    for flags in range(1 << 13):
        assert dlfilter.give(flags=flags, time=flags) == 1
        if kind := edge_stream.kind(flags):
            expected.append((flags, kind))
    made = dlfilter.end().edges
    assert [(e[0], e[8]) for e in made] == expected


@pytest.mark.parametrize(
    ("flags", "kind"),
    # PERF_IP_FLAG_* of perf: 0 branch, 1 call, 2 return, 3 conditional, 4 syscall or its return, 5 async,
    # 6 interrupt, 7 transaction abort, 8 trace begin, 9 trace end, 11 VM entry, 12 VM exit
    [
        ((0, 1), 1), ((0, 2), 2), ((0, 1, 4), 3), ((0, 2, 4), 4), ((0, 1, 5, 6), 5), ((0, 2, 6), 6),
        ((0, 8), 7), ((0, 5, 9), 8), ((0, 1, 6), 10), ((0, 1, 4, 9), 8), ((0, 1, 11), 8), ((0, 1, 5, 12), 7),
        ((0,), 0), ((0, 3), 0), ((0, 7), 0),
    ],
)  # fmt: skip
def test_kinds_are_those_of_the_documentation(flags, kind):
    bits = sum(1 << bit for bit in flags)
    assert edge_stream.kind(bits) == kind
    assert collect._bits_of_chars("".join(collect.FLAG_CHARS[bit] for bit in flags)) == bits


def test_every_column_is_kept_at_its_extremes(dlfilter):
    dlfilter.name(b"f", b"a.out", b"g", b"[kernel]")
    top = (1 << 64) - 1
    dlfilter.give(flags=3, time=top, ip=top - 1, addr=top - 2, pid=-1, tid=-2, cpu=-3)
    assert dlfilter.end().edges == [(top, top - 1, top - 2, -1, -2, -3, ("f", "a.out"), ("g", "[kernel]"), 1)]


def test_names_at_the_same_address_may_change(dlfilter):
    wanted = []
    for i in range(3):
        dlfilter.name(b"f%d" % i, b"module", b"g", b"module%d" % (i % 2))
        dlfilter.give(flags=3)
        wanted.append(((f"f{i}", "module"), ("g", f"module{i % 2}")))
    # "ab", "c" and "a", "bc" have the same letters
    for names in ((b"ab", b"c"), (b"a", b"bc")):
        dlfilter.name(*names, *names)
        dlfilter.give(flags=3)
        wanted.append((tuple(n.decode() for n in names),) * 2)
    assert [e[6:8] for e in dlfilter.end().edges] == wanted


def test_without_symbol_or_dso(dlfilter):
    dlfilter.name(b"f", b"a.out", b"g", b"b.out")
    dlfilter.ends[0].sym = None
    dlfilter.ends[1].sym = dlfilter.ends[1].dso = None
    dlfilter.give(flags=3)
    assert dlfilter.end().edges[0][6:8] == (("", "a.out"), ("", ""))


def test_many_symbols_and_blocks(dlfilter):
    # More than the first table of symbols (8,192) and than two blocks (16,384 edges each).
    for i in range(40_000):
        dlfilter.name(b"f%d" % (i % 30_000), b"a", b"g", b"a")
        dlfilter.give(flags=3, time=i)
    stream = dlfilter.end()
    assert [e[0] for e in stream.edges] == list(range(40_000))
    assert [e[6] for e in stream.edges] == [(f"f{i % 30_000}", "a") for i in range(40_000)]
    assert stream.blocks.count(1) == 3
    assert len(stream.names) == 30_002


PACKETS = [
    (b"ptwrite", struct.pack("<IQ", 1, 0xFFEEDDCCBBAA9988), 5, 0xFFEEDDCCBBAA9988),
    (b"ptwrite:", struct.pack("<IQ", 0, 7), 5, 7),
    # The fields are those of tools/perf/util/event.h: perf_synth_intel_mwait and so on.
    (b"mwait", struct.pack("<IQ", 0, 0x20 | 1 << 32), 6, 1 << 56 | 1 << 32 | 0x20),
    # by hardware (bit 7), sub-state 2 (bit 8), C-state 3 (bit 12)
    (b"pwre", struct.pack("<IQ", 0, 1 << 7 | 2 << 8 | 3 << 12), 6, 2 << 56 | 3 | 2 << 8 | 1 << 16),
    (b"exstop", struct.pack("<I", 1), 6, 3 << 56),
    # deepest 5 (bit 0), last 2 (bit 4), wake reason 4 (bit 8)
    (b"pwrx", struct.pack("<IQ", 0, 5 | 2 << 4 | 4 << 8), 6, 4 << 56 | 2 | 5 << 8 | 4 << 16),
    (b"cbr", struct.pack("<BBBBII", 34, 0, 20, 0, 3_400_000, 0), 7, 34),
]


@pytest.mark.parametrize(("event", "raw", "code", "value"), PACKETS)
def test_packets_that_are_no_branches(event, raw, code, value, dlfilter):
    dlfilter.give(flags=3, time=1)
    assert dlfilter.give(event, raw, time=2, cpu=3, pid=4, tid=5) == 1
    stream = dlfilter.end()
    assert stream.events == [(2, 3, 4, 5, code, value)]
    assert stream.blocks == [2, 1, 3]
    # nsight.py gives the same result for them
    assert collect.synthesised(event.decode().rstrip(":"), raw) == (code, value)


@pytest.mark.parametrize(
    ("event", "raw"), [(b"ptwrite", b"\0" * 11), (b"cbr", b""), (b"psb", b"\0" * 12), (b"cbrx", b"\1" * 16)]
)
def test_packets_that_are_cut_or_not_known_are_left_out(event, raw, dlfilter):
    dlfilter.give(event, raw)
    assert dlfilter.end().events == []
    assert collect.synthesised(event.decode(), raw) is None


def test_failed_write_is_reported(tmp_path, capfd):
    made = Filter(Path("/dev/full"))
    answers = {made.give(flags=3) for _ in range(20_000)}
    assert answers == {1, -1}
    assert made.library.stop(made.data, None) == -1
    said = capfd.readouterr().err
    assert said == f"nsight-edges: error: cannot write /dev/full: {os.strerror(28)}\n"


def test_other_events_are_neither_kept_nor_printed(dlfilter):
    for event in (b"instructions:u", b"cycles", b"transactions"):
        assert dlfilter.give(event, flags=3) == 1
    stream = dlfilter.end()
    assert (stream.edges, stream.events) == ([], [])
