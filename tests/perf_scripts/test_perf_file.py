# SPDX-License-Identifier: GPL-2.0-only
"""Raw records: the fast and the slow path, files with events of different layouts."""

from __future__ import annotations

import io
import struct
import sys

import pytest

from perf_scripts import files, runs

sys.path.insert(0, str(runs.SCRIPTS))
from nsight_perf import edge_stream, perf_file, second_pass

pytestmark = pytest.mark.tools


def test_runs_of_switches_read_as_one_by_one(captures, monkeypatch):
    path = str(captures["lock"] / "capture.nsight/perf.data")
    fast = perf_file.read(path)
    monkeypatch.setattr(perf_file._SwitchRuns, "take", lambda self, data, at, *_: at)
    slow = perf_file.read(path)
    assert len(fast.switches) > 1000
    assert fast.switches.columns == slow.switches.columns
    assert (fast.events, fast.names, fast.last_aux) == (slow.events, slow.names, slow.last_aux)


def test_events_of_different_layouts_are_told_apart_by_their_ids(captures, tmp_path):
    # Only the events that own no switch lose the core from their records: switches must read as before.
    damaged = files.Damaged(captures["lock"], tmp_path / "damaged")
    at, length = next(damaged.records(14, files.SWITCH))
    (owner,) = struct.unpack_from("<Q", damaged.data, at + length - 8)
    attr_size, attrs, size = struct.unpack_from("<QQQ", damaged.data, 16)
    changed = 0
    for attr in range(attrs, attrs + size, attr_size):
        ids, n_bytes = struct.unpack_from("<QQ", damaged.data, attr + attr_size - 16)
        if owner not in struct.unpack_from(f"<{n_bytes // 8}Q", damaged.data, ids):
            (sample_type,) = struct.unpack_from("<Q", damaged.data, attr + 24)
            damaged.put(attr + 24, "Q", sample_type & ~(1 << 7))
            changed += 1
    assert changed
    before = perf_file.read(str(captures["lock"] / "capture.nsight/perf.data"))
    after = perf_file.read(str(damaged.write() / "capture.nsight/perf.data"))
    assert after.switches.columns == before.switches.columns
    assert len(after.switches) > 1000


def test_lists_of_ids_that_overlap_are_damage_and_not_read_for_ever(tmp_path):
    n, attr_size, at = 20_000, 80, 104
    length = at + n * attr_size
    attribute = bytearray(attr_size)
    struct.pack_into("<QQ", attribute, attr_size - 16, 0, length)  # each has the whole file
    header = b"PERFILE2" + struct.pack("<QQQQQQ", 104, attr_size, at, n * attr_size, length, 0)
    path = tmp_path / "perf.data"
    path.write_bytes(header.ljust(at, b"\0") + bytes(attribute) * n)
    with pytest.raises(perf_file.Unusable, match="header is damaged"):
        perf_file.read(str(path))


def _file(tmp_path, records: bytes, sample_types: tuple[int, ...]) -> str:
    """A perf.data of these records, whose event n has the id 100 + n; their trailers are by its sample type."""
    attr_size, at = 80, 104
    ids = at + attr_size * len(sample_types)
    start = ids + 8 * len(sample_types)
    header = b"PERFILE2" + struct.pack(
        "<QQQQQQ", 104, attr_size, at, attr_size * len(sample_types), start, len(records)
    )
    attributes = bytearray(attr_size * len(sample_types))
    for n, sample_type in enumerate(sample_types):
        struct.pack_into("<QQQ", attributes, n * attr_size + 24, sample_type, 0, perf_file.SAMPLE_ID_ALL)
        struct.pack_into("<QQ", attributes, n * attr_size + 64, ids + 8 * n, 8)
    numbers = struct.pack(f"<{len(sample_types)}Q", *range(100, 100 + len(sample_types)))
    path = tmp_path / "perf.data"
    path.write_bytes(header.ljust(at, b"\0") + attributes + numbers + records)
    return str(path)


def test_lost_samples_that_add_up_to_more_than_a_stream_holds_are_the_most_it_holds(tmp_path):
    record = struct.pack("<IHHQ", 13, 0, 16, (1 << 64) - 1)
    recording = perf_file.read(_file(tmp_path, record * 3, (0,)))
    assert [event.value for event in recording.events] == [(1 << 64) - 1]
    written = io.BytesIO()
    edge_stream.Writer(written).events(list(zip(*recording.events)))
    assert written.getvalue()


def test_record_too_short_for_the_layout_of_its_event_is_left_out(tmp_path):
    """By its ID, core, time and thread should precede it, but another record, or nothing, is there."""
    short = struct.pack("<IHHiiQ", files.COMM, 0, 24, 7, 7, 101)
    wide = perf_file.TRAILER["tid"] | perf_file.TRAILER["time"] | perf_file.TRAILER["cpu"] | 1 << 16
    recording = perf_file.read(_file(tmp_path, short, (1 << 16, wide)))
    assert (recording.names, recording.truncated_at) == ([], None)


def test_command_line_keeps_what_decoding_depends_on():
    words = "perf script -i a.data --symfs s --itrace=cr --time 1,2 -F ip -C0-3 -s nsight.py --kallsyms=k -- -i b -o c"
    command = second_pass.CommandLine(words.split())
    assert command.input == "a.data"
    assert command.decoding == ["-i", "a.data", "--symfs", "s", "--time", "1,2", "-C0-3", "--kallsyms=k"]
    assert not command.asks_for_errors()
    assert not command.whole()
    for itrace, asks in (("cre", True), ("cr", False), ("i100usce", True), ("crd+e", False), ("cre-o", True)):
        assert second_pass.CommandLine(["perf", f"--itrace={itrace}"]).asks_for_errors() is asks, itrace
    assert second_pass.CommandLine(["perf", "-ix"]).input == "x"
    assert second_pass.CommandLine(["perf", "--input=y"]).input == "y"


def test_lines_of_errors_in_all_forms():
    def parsed(line: bytes):
        return second_pass.parse_error(line)

    text = (
        b" instruction trace error type 1 time 40.000000005 cpu 3 pid 7 tid 8 ip 0 code 7: Overflow packet\n"
    )
    assert parsed(text) == (40_000_000_005, 3, 7, 8, 2, 7)
    assert parsed(text.replace(b"time 40.000000005", b"time 0").replace(b"code 7", b"code 5")) == (
        0,
        3,
        7,
        8,
        1,
        5,
    )
    assert parsed(text.replace(b" cpu", b" machine_pid 9 vcpu 1 cpu").replace(b"cpu 3", b"cpu -1")) == (
        40_000_000_005, -1, 7, 8, 2, 7,
    )  # fmt: skip
    assert parsed(b"something else\n") is None
