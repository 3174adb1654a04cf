# SPDX-License-Identifier: GPL-2.0-only
"""Killed, truncated, foreign and hostile perf.data files."""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
from nsight_report.capture import native, perf_data
from nsight_report.errors import BadInput, OutputError
from perf_file_bytes import (
    AUXTRACE,
    COMPRESSED,
    FORMATS,
    LOOPBACK,
    data_range,
    fork_raw,
    killed,
    make_file,
    record,
    sample,
    switch_raw,
)

SWITCH = sample(100, 5000, 7, 0, switch_raw(7, 1, 8))


def load(
    tmp_path: Path, content: bytes, formats: Path | None = FORMATS
) -> tuple[perf_data.Decoded, dict[str, int]]:
    path = tmp_path / "perf.data"
    path.write_bytes(content)
    decoded, losses = perf_data.load(path, formats)
    return decoded, {r["cause"]: r["count"] for r in losses.to_pylist()}


def test_killed_perf_loses_nothing_that_it_had_written(tmp_path: Path) -> None:
    whole, _ = perf_data.load(LOOPBACK)
    decoded, losses = load(tmp_path, killed(LOOPBACK.read_bytes()))
    assert len(decoded.events) == len(whole.events)
    assert decoded.clock == "monotonic"
    assert losses == {"perf.data was cut": 1}


def test_killed_perf_without_saved_formats_counts_its_samples(tmp_path: Path) -> None:
    decoded, losses = load(tmp_path, killed(LOOPBACK.read_bytes()), formats=None)
    assert losses["perf sample without format"] == decoded.info["n_samples"] > 2000
    assert len(decoded.events) == 9  # comm, fork and exit records need no format


def test_formats_are_found_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "formats").symlink_to(FORMATS)
    decoded, losses = load(tmp_path, killed(LOOPBACK.read_bytes()), formats=None)
    assert losses == {"perf.data was cut": 1}
    assert len(decoded.events) > 2000


def test_half_a_record_at_the_end_is_counted_in_bytes(tmp_path: Path) -> None:
    # the last record is SWITCH; 10 of its bytes are missing, so the remaining ones cannot be used
    decoded, losses = load(tmp_path, killed(make_file([SWITCH, SWITCH]), missing=10))
    assert len(decoded.events) == 1
    assert losses == {"perf.data was cut": 1, "perf.data truncated (bytes)": len(SWITCH) - 10}


def test_truncated_copy_says_how_much_is_missing(tmp_path: Path) -> None:
    content = make_file([SWITCH] * 10)
    decoded, losses = load(tmp_path, content[: -3 * len(SWITCH)])
    assert len(decoded.events) == 7
    assert losses == {"perf.data truncated (bytes)": 3 * len(SWITCH)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"PERF", "not a perf.data"),
        (b"\x7fELF" + bytes(200), "not a perf.data"),
        (b"PERFILE2" + struct.pack("<Q", 16), "pipe mode"),
        (b"PERFILE2" + struct.pack("<Q", 104), "inside its header"),
        (b"PERFILE2" + struct.pack("<Q", 9999) + bytes(200), "unknown version"),
        (b"2ELIFREP" + bytes(200), "big-endian"),
        (b"PERFFILE" + bytes(200), "version 1"),
        (make_file([record(COMPRESSED, bytes(64))]), "compressed"),
        (make_file([])[:150], "before its data"),
    ],
    ids=["empty", "stub", "elf", "pipe", "header", "version", "endian", "old", "compressed", "cut"],
)
def test_unusable_file_gives_one_error_with_a_fix(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        load(tmp_path, content)
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_missing_file_and_fifo_are_refused_without_hanging(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        perf_data.load(tmp_path / "absent")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(BadInput, match="not a regular file"):
        perf_data.load(tmp_path / "fifo")


def test_directory_of_kcore_is_read(tmp_path: Path) -> None:
    (tmp_path / "perf.data").mkdir()
    (tmp_path / "perf.data" / "data").write_bytes(LOOPBACK.read_bytes())
    decoded, _ = perf_data.load(tmp_path / "perf.data")
    assert len(decoded.events) > 2000


def test_record_without_size_ends_the_decoding_and_counts_the_rest(tmp_path: Path) -> None:
    broken = struct.pack("<IHH", 9, 0, 0) + bytes(56)
    decoded, losses = load(tmp_path, make_file([SWITCH, broken, SWITCH]))
    assert len(decoded.events) == 1
    assert losses == {"perf.data undecodable (bytes)": 64 + len(SWITCH)}


def test_record_of_the_future_is_skipped_and_counted(tmp_path: Path) -> None:
    decoded, losses = load(tmp_path, make_file([SWITCH, record(60, bytes(8)), record(200, bytes(8)), SWITCH]))
    assert len(decoded.events) == 2
    assert losses == {"perf record type unknown": 2}


def test_trace_data_behind_an_auxtrace_record_is_skipped(tmp_path: Path) -> None:
    aux = record(AUXTRACE, struct.pack("<QQQIIII", 100, 0, 0, 0, 0, 0, 0)) + b"\xff" * 100
    decoded, losses = load(tmp_path, make_file([SWITCH, aux + SWITCH]))
    assert len(decoded.events) == 2
    assert (decoded.info["auxtrace_bytes"], losses) == (100, {})


def test_impossible_time_is_rejected(tmp_path: Path) -> None:
    decoded, losses = load(tmp_path, make_file([sample(100, 1 << 63, 7, 0, switch_raw(7, 1, 8)), SWITCH]))
    assert len(decoded.events) == 1
    assert losses == {"perf record malformed": 1}


def test_raw_data_shorter_than_its_format_is_rejected(tmp_path: Path) -> None:
    decoded, losses = load(tmp_path, make_file([sample(100, 10, 7, 0, switch_raw(7, 1, 8)[:40]), SWITCH]))
    assert len(decoded.events) == 1
    assert losses == {"perf record malformed": 1}


def test_raw_size_beyond_the_record_is_rejected(tmp_path: Path) -> None:
    lying = bytearray(SWITCH)
    struct.pack_into("<I", lying, 8 + 8 + 8 + 8 + 8, 60000)  # header, id, tid, time, cpu
    decoded, losses = load(tmp_path, make_file([bytes(lying), SWITCH]))
    assert len(decoded.events) == 1
    assert losses == {"perf record malformed": 1}


def test_name_is_read_from_its_location_and_not_from_outside_the_sample(tmp_path: Path) -> None:
    # 24 bytes of fields, then 8 of names, padded to 36: sizes and offsets beyond that are wrong
    good = sample(101, 10, 7, 0, fork_raw(7, 8, 24, 6))
    lies = [
        sample(101, 20, 7, 0, fork_raw(7, 8, at, size)) for at, size in ((24, 60000), (40000, 6), (37, 1))
    ]
    decoded, losses = load(tmp_path, make_file([good, *lies]))
    assert [decoded.strings[c] for c in decoded.events["c"].tolist()] == ["child"]
    assert losses == {"perf record malformed": 3}


def test_sample_of_an_unknown_event_is_counted(tmp_path: Path) -> None:
    decoded, losses = load(tmp_path, make_file([sample(555, 10, 7, 0, switch_raw(7, 1, 8)), SWITCH]))
    assert len(decoded.events) == 1
    assert losses == {"perf record of an unknown event": 1}


def test_format_without_a_needed_field_is_counted_not_guessed(tmp_path: Path) -> None:
    formats = tmp_path / "formats" / "sched"
    formats.mkdir(parents=True)
    text = (FORMATS / "sched" / "sched_switch").read_text()
    (formats / "sched_switch").write_text(text.replace("prev_state", "former_state"))
    decoded, losses = load(tmp_path, make_file([SWITCH]), formats.parent)
    assert len(decoded.events) == 0
    assert losses == {"perf sample lacks a field": 1}


def test_names_that_are_no_text_do_not_break_the_tables(tmp_path: Path) -> None:
    raw = switch_raw(7, 1, 8, (b'"\\\x1b[31m\xff\xed\xa0\x80', "déjà\n".encode()))
    decoded, _ = load(tmp_path, make_file([sample(100, 5000, 7, 0, raw)]))
    names = int(decoded.events["c"][0])
    assert decoded.strings[names & 0xFFFFFFFF] == '"\\\x1b[31m' + "\ufffd" * 4
    assert decoded.strings[names >> 32] == "déjà\n"


def test_no_place_for_temporary_files_is_an_output_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    with pytest.raises(OutputError) as caught:
        perf_data.load(LOOPBACK)
    assert "TMPDIR" in caught.value.hint


def test_data_outside_the_file_is_refused(tmp_path: Path) -> None:
    content = bytearray(LOOPBACK.read_bytes())
    start, _ = data_range(bytes(content))
    struct.pack_into("<Q", content, 40, len(content) + start)
    with pytest.raises(BadInput, match="before its data"):
        load(tmp_path, bytes(content))


def test_full_disk_is_an_output_error() -> None:
    # /dev/full as the directory's file: every write to it fails with ENOSPC
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "perf-events.bin").symlink_to("/dev/full")
        with pytest.raises(OutputError, match="No space left"):
            native.run("nsight-perfdata", [str(LOOPBACK), directory], 0)


def test_lists_of_ids_that_overlap_are_refused(tmp_path: Path) -> None:
    """perf writes the lists one after the other. 65536 events that share a list of a million ids would take days."""
    content = bytearray(make_file([SWITCH] * 4))
    for attr in range(2):  # each event's list: the whole file
        struct.pack_into("<QQ", content, 104 + 144 * attr + 128, 0, len(content) & ~7)
    with pytest.raises(BadInput, match="event ids"):
        load(tmp_path, bytes(content))


def test_lists_of_ids_far_from_their_events_are_read_in_seconds(tmp_path: Path) -> None:
    """65536 events, each with its id 5 MB later in the file: each seek there and back once read 8 MB of the file."""
    n, attr_size, far = 65536, 80, 12 << 20
    attr = struct.pack("<IIQQQQQ", 1, 64, 0, 1, 0, 0, 0).ljust(64, b"\0")
    header = b"PERFILE2" + struct.pack(
        "<QQQQQQQQ", 104, attr_size, 104, n * attr_size, 104 + n * attr_size, 8, 0, 0
    )
    attrs = b"".join(attr + struct.pack("<QQ", far + 8 * i, 8) for i in range(n))
    content = (header + bytes(32) + attrs).ljust(far, b"\0") + bytes(8 * n + (5 << 20))
    (tmp_path / "perf.data").write_bytes(content)
    program = native.find("nsight-perfdata")
    done = subprocess.run([program, tmp_path / "perf.data", tmp_path], capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_ids_chosen_to_share_a_place_of_a_table_are_read_in_seconds(tmp_path: Path) -> None:
    """Ids were once hashed with a known factor; its inverse times 0, 1, 2 ... all hash to one slot: these took minutes."""
    n, attr_size = 500_000, 80
    known = 0x9E3779B97F4A7C15
    ids = np.arange(n, dtype=np.uint64) * np.uint64(pow(known, -1, 1 << 64))
    assert len(np.unique(ids * np.uint64(known) >> np.uint64(32))) == 1
    ids_at = 104 + attr_size
    attr = struct.pack("<IIQQQQQ", 1, 64, 0, 1, 0, 0, 0).ljust(64, b"\0") + struct.pack("<QQ", ids_at, 8 * n)
    header = b"PERFILE2" + struct.pack("<QQQQQQQQ", 104, attr_size, 104, attr_size, ids_at + 8 * n, 8, 0, 0)
    (tmp_path / "perf.data").write_bytes(header + bytes(32) + attr + ids.tobytes() + bytes(8))
    program = native.find("nsight-perfdata")
    done = subprocess.run([program, tmp_path / "perf.data", tmp_path], capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "damaged",
    [
        ("unsigned char common_flags;\toffset:2;", "unsigned char common_flags;\toft:2;"),
        ("\toffset:24;\tsize:4;", "\toffset:24;\tsize4;"),
        ("prev_comm[16];", "prev_comm[16]"),
        ("ID: ", "ID: x"),
        ("name: sched_switch", "name: "),
        ("format:", ""),
        ("\tfield:pid_t", "\tfeld:pid_t"),
    ],
)
def test_damaged_format_is_none(tmp_path: Path, damaged: tuple[str, str]) -> None:
    """The first two once made libtraceevent crash, when it still read the formats."""
    formats = tmp_path / "formats" / "sched"
    formats.mkdir(parents=True)
    text = (FORMATS / "sched" / "sched_switch").read_text()
    assert damaged[0] in text
    (formats / "sched_switch").write_text(text.replace(*damaged, 1))
    decoded, losses = load(tmp_path, make_file([SWITCH]), formats.parent)
    assert len(decoded.events) == 0
    assert losses["perf sample without format"] == 1
    assert decoded.info["losses"]["broken_formats"] == 1
