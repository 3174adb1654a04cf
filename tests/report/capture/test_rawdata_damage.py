# SPDX-License-Identifier: GPL-2.0-only
"""Killed, truncated, foreign and hostile files of records; what is missing is counted."""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from machinery.made_up import record_files as rf
from nsight_report import calls
from nsight_report.capture import native, raw_records
from nsight_report.errors import BadInput, OutputError
from nsight_report.losses import of_group

RUNS = rf.switch(1000, 0, 7, state=0)
WAKES = [rf.waking(1100 + n, 8, 7, 0) for n in range(8)]


def load(tmp_path: Path, machine: bytes | None = None, **cores: bytes) -> tuple[list[Any], dict[str, int]]:
    """(events, losses): the losses that nsight-rawdata reports; key ``cut`` is added if the records were cut."""
    records = rf.write(tmp_path, machine, **cores)
    events, _, info = rf.decode(records, tmp_path / "out")
    return events, {key: n for key, n in info["losses"].items() if n} | ({"cut": 1} if info["cut"] else {})


def whole(*blocks: bytes, **tally: Any) -> bytes:
    """A complete file of core 0 with these blocks."""
    return rf.header(0) + b"".join(blocks) + rf.counts(1000, {}, **tally)


# -- cut ------------------------------------------------------------------------------------


def pieces() -> list[bytes]:
    """A file as header, block headers and records; each of these can be used as soon as it is complete."""
    first = [RUNS, rf.syscall(1010, 1020, 7, 1), rf.message("R", 1030, v6=(1, 2, 3, 4), tid=7), rf.pad(3)]
    second = [rf.pair("SOFTIRQ", 2000, 2010, 1), rf.task(2020, 9, 9, b"new", rf.NEW, 7), rf.exit_(2030, 9, 9)]
    at, made = 0, [rf.header(0)]
    for content in (first, second):
        joined = b"".join(content)
        made += [rf.block(joined, 2000, at)[: -len(joined)], *content]
        at += len(joined) // 16
    return made


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "third block compressed"])
def test_every_cut_leaves_all_that_is_whole(tmp_path: Path, packed: bool) -> None:
    parts = pieces()
    content = b"".join(parts)
    ends, at = [], 0
    for part in parts:
        at += len(part)
        ends.append(at)
    # headers and padding are not records
    is_record = [part[:4] not in (b"NSIG", b"NSBK") and part[0] != rf.TYPE["PAD"] for part in parts]
    assert sum(is_record) == 6
    tail = b""
    if packed:
        stored = pa.compress(rf.waking(3000, 8, 7, 0), "zstd", asbytes=True)
        tail = rf.block(rf.waking(3000, 8, 7, 0), 3000, ends[-1], flags=rf.ZSTD, stored=stored)
    file = content + tail
    records = rf.write(tmp_path, cpu0=file)
    (tmp_path / "out").mkdir()
    for length in range(len(file) + 1):
        (records / "cpu-0.records").write_bytes(file[:length])
        done = subprocess.run(
            [native.find("nsight-rawdata"), records, tmp_path / "out"], capture_output=True, text=True
        )
        if length < 32:
            assert done.returncode == 3 and "no usable file" in done.stderr, length
            continue
        assert (done.returncode, done.stderr) == (0, ""), length
        _, _, info = rf.decode(records, tmp_path / "out")
        usable = [end for end in ends if end <= length]
        n_records = sum(of for of, end in zip(is_record, ends) if end <= length)
        used = usable[-1]
        if length == len(file) and packed:
            n_records, used = n_records + 1, length
        assert info["n_records"] == n_records, length
        # the header of a block without any of its records is used as far as it goes
        assert info["losses"]["truncated_bytes"] == length - used, length
        assert info["cut"]


def test_file_that_ends_is_not_cut_and_one_that_goes_on_is(tmp_path: Path) -> None:
    end = rf.counts(1000, {})
    assert load(tmp_path, cpu0=rf.header(0) + rf.block(RUNS, 1000) + end)[1] == {}
    assert load(tmp_path, cpu0=rf.header(0) + end + rf.block(RUNS, 1000))[1] == {"cut": 1}
    counted = rf.counts(1000, {}, kind=rf.COUNTS)
    assert load(tmp_path, cpu0=rf.header(0) + rf.block(RUNS, 1000) + counted)[1] == {"cut": 1}


def test_core_whose_file_has_no_header_is_left_out_and_others_are_read(tmp_path: Path) -> None:
    events, losses = load(tmp_path, cpu0=whole(rf.block(RUNS, 1000)), cpu1=b"NSIGHT", cpu2=b"")
    assert len(events) == 1
    assert losses == {"truncated_bytes": 6, "cut": 1}


# -- counts ---------------------------------------------------------------------------------


def test_what_was_produced_is_lost_or_missing_or_there(tmp_path: Path) -> None:
    # of 9 wake-ups 5 were lost; 3 are present, so 1 is missing. 1 switch was produced and is present.
    # No migration is present; 2 of 2 were lost.
    tally = {rf.TYPE["WAKING"]: (9, 5), rf.TYPE["SWITCH"]: (1, 0), rf.TYPE["MIGRATE"]: (2, 2)}
    content = rf.header(4) + rf.block(RUNS + b"".join(WAKES[:3]), 1000) + rf.counts(1000, tally)
    records = rf.write(tmp_path, cpu4=content)
    info = rf.decode(records, tmp_path / "out")[2]
    assert info["lost"] == [
        {"cpu": 4, "type": "wake-up", "lost": 5, "missing": 1},
        {"cpu": 4, "type": "migration", "lost": 2, "missing": 0},
    ]
    assert (info["losses"]["lost_records"], info["losses"]["missing_records"]) == (7, 1)
    ledger = {row["cause"]: row["count"] for row in raw_records.activity(records)[1].to_pylist()}
    assert ledger == {
        "records lost: wake-up": 5,
        "records missing: wake-up": 1,
        "records lost: migration": 2,
    }


def test_last_counts_hold(tmp_path: Path) -> None:
    waking = rf.TYPE["WAKING"]
    blocks = rf.block(WAKES[0], 1000) + rf.counts(1000, {waking: (1, 0)}, kind=rf.COUNTS)
    blocks += rf.block(WAKES[1], 1000, number=1) + rf.counts(1000, {waking: (4, 2)})
    assert load(tmp_path, cpu0=rf.header(0) + blocks)[1] == {"lost_records": 2}


def test_more_records_than_were_produced_are_told_when_the_file_has_its_end(tmp_path: Path) -> None:
    tally = {rf.TYPE["WAKING"]: (2, 0)}
    blocks = rf.header(0) + rf.block(b"".join(WAKES[:5]), 1000)
    assert load(tmp_path, cpu0=blocks + rf.counts(1000, tally))[1] == {"surplus_records": 3}
    # a cut file was not counted to its end
    assert load(tmp_path, cpu0=blocks + rf.counts(1000, tally, kind=rf.COUNTS))[1] == {"cut": 1}


@pytest.mark.parametrize("n_types", [0, 1, 2, 3])
def test_counts_are_read_with_and_without_padding(tmp_path: Path, n_types: int) -> None:
    tally = dict.fromkeys(range(2, 2 + n_types), (3, 3))
    probes = (1, 2, 3, 4, 5)
    padded = rf.counts(1000, tally, probes)
    bare = b"".join(struct.pack("<QQQ", type_, 3, 3) for type_ in tally) + struct.pack("<5Q", *probes)
    for block in (padded, rf.block(bare, 1000, kind=rf.END)):
        info = rf.decode(rf.write(tmp_path, cpu0=rf.header(0) + block), tmp_path / "out")[2]
        assert info["losses"]["lost_records"] == 3 * n_types
        names = ("ack", "peek", "fragment", "unparsed", "nocall", "multipath")
        assert info["probe_counts"] == dict(zip(names, (*probes, 0)))


@pytest.mark.parametrize("n_types", [0, 1, 2])
def test_counts_of_newer_recorders_have_one_more(tmp_path: Path, n_types: int) -> None:
    tally = dict.fromkeys(range(2, 2 + n_types), (3, 3))
    bare = b"".join(struct.pack("<QQQ", type_, 3, 3) for type_ in tally) + struct.pack(
        "<6Q", 1, 2, 3, 4, 5, 6
    )
    block = rf.block(bare, 1000, kind=rf.END)
    info = rf.decode(rf.write(tmp_path, cpu0=rf.header(0) + block), tmp_path / "out")[2]
    assert info["losses"]["lost_records"] == 3 * n_types
    assert list(info["probe_counts"].values()) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "content",
    [bytes(24), bytes(40 + 12), struct.pack("<3Q", 200, 1, 1) + bytes(40), struct.pack("<3Q", 2, 1, 2) + bytes(40)],
    ids=["too short", "no whole tally", "unknown type", "more lost than produced"],
)  # fmt: skip
def test_impossible_counts_are_a_damaged_block(tmp_path: Path, content: bytes) -> None:
    file = rf.header(0) + rf.block(content, 1000, kind=rf.COUNTS) + rf.block(RUNS, 1000)
    events, losses = load(tmp_path, cpu0=file)
    assert len(events) == 1
    assert losses == {"bad_blocks": 1, "cut": 1}


def test_units_missing_between_blocks_are_a_gap(tmp_path: Path) -> None:
    before = RUNS + rf.pair("SOFTIRQ", 1900, 2000, 1)
    after = rf.pair("SOFTIRQ", 4900, 5000, 1) + rf.waking(5500, 8, 9, 0) + rf.switch(6000, 9, 0)
    file = whole(rf.block(before, 2000), rf.block(after, 6000, number=2 + 100))
    records = rf.write(tmp_path, rf.whole(rf.NO_CPU, rf.task(1, 9, 9, b"nine")), cpu0=file)
    events, _, info = rf.decode(records, tmp_path / "out")
    assert info["losses"]["lost_units"] == 100
    # the running thread is known up to 2000 (7) and from 5000 on (9, which the switch takes off the core)
    assert [event[:6] for event in events[4:]] == [
        (4900, "softirq_entry", 0, -1, -1, 1),
        (5000, "lost", 0, -1, -1, 100),
        (5000, "softirq_exit", 0, 9, 9, 1),
        (5500, "sched_waking", 0, 9, 9, 8),
        (6000, "sched_switch", 0, 9, 9, 0),
    ]
    decoded, lost = raw_records.activity(records)
    assert {row["cause"]: row["count"] for row in lost.to_pylist()} == {
        "records lost at a known place (units of 16 bytes)": 100
    }
    made = calls.build(decoded)
    assert [(c["kind"], c["start_ns"], c["end_ns"], c["tid"]) for c in made[1].to_pylist()] == [
        ("thread", 1000, 1900, 7),
        ("softirq", 1900, 2000, 7),
        ("gap", 2000, 5000, -1),
        ("thread", 5000, 6000, 9),
    ]
    assert "gap: records were lost" in {row["cause"] for row in made[3].to_pylist()}


def test_first_block_may_begin_anywhere_and_the_number_may_not_go_back(tmp_path: Path) -> None:
    first = rf.block(WAKES[0], 1000, number=500)
    assert load(tmp_path, cpu0=whole(first, rf.block(WAKES[1], 1000, number=501)))[1] == {}
    assert load(tmp_path, cpu0=whole(first, rf.block(WAKES[1], 1000, number=9)))[1] == {"bad_blocks": 1}


def test_gap_of_records_that_come_late_has_no_length(tmp_path: Path) -> None:
    # the record after the gap is older than the one before it
    before = RUNS + WAKES[5] + WAKES[1]
    file = whole(rf.block(before, 1000), rf.block(WAKES[2] + rf.switch(3000, 7, 0), 1000, number=10))
    events, losses = load(tmp_path, cpu0=file)
    assert [(event[0], event[1]) for event in events] == [
        (1000, "sched_switch"),
        (1101, "sched_waking"),
        (1102, "sched_waking"),
        (1105, "lost"),
        (1105, "sched_waking"),
        (3000, "sched_switch"),
    ]
    assert losses == {"lost_units": 7}


def test_switch_behind_a_gap_tells_nothing_of_the_time_before_it(tmp_path: Path) -> None:
    before, after = rf.pair("SOFTIRQ", 900, 1000, 1), rf.pair("SOFTIRQ", 4900, 5000, 1)
    file = whole(rf.block(before, 2000), rf.block(after + rf.switch(6000, 9, 0), 6000, number=9))
    events, _ = load(tmp_path, cpu0=file)
    assert [(event[0], event[4]) for event in events if event[1] == "softirq_exit"] == [(1000, -1), (5000, 9)]


# -- damaged --------------------------------------------------------------------------------


def test_padding_is_passed_over(tmp_path: Path) -> None:
    events, losses = load(tmp_path, cpu0=whole(rf.block(RUNS + rf.pad(5) + WAKES[0], 1000)))
    assert (len(events), losses) == (2, {})


@pytest.mark.parametrize("units", [0, 257, 1 << 31])
def test_padding_of_impossible_size_hides_the_rest_of_its_page(tmp_path: Path, units: int) -> None:
    page = RUNS + rf.record(rf.TYPE["PAD"], 0, units) + WAKES[0] * 254
    events, losses = load(tmp_path, cpu0=whole(rf.block(page + WAKES[1], 1000)))
    assert [event[0] for event in events] == [1000, 1101]
    assert losses == {"unknown_records": 1, "undecodable_bytes": 255 * 16}


@pytest.mark.parametrize("type_", [0, len(rf.TYPES), len(rf.TYPES) + 1, 0x7F, 0x9C, 0xFF])
def test_unknown_type_hides_the_rest_of_its_page(tmp_path: Path, type_: int) -> None:
    # the block begins at unit 200 of a page, which ends 56 units later
    page = RUNS + rf.record(type_, 1050, 0) + WAKES[0] * 54 + WAKES[1]
    events, losses = load(tmp_path, cpu0=whole(rf.block(page, 1000, number=200)))
    assert [event[0] for event in events] == [1000, 1101]
    assert losses == {"unknown_records": 1, "undecodable_bytes": 55 * 16}


def test_record_longer_than_its_block_is_malformed(tmp_path: Path) -> None:
    file = whole(rf.block(RUNS + rf.syscall(1, 2, 7, 1)[:16], 1000), rf.block(WAKES[0], 1000, number=2))
    events, losses = load(tmp_path, cpu0=file)
    assert [event[0] for event in events] == [1000, 1100]
    assert losses == {"malformed": 1}


@pytest.mark.parametrize(
    "record",
    [
        rf.record(rf.TYPE["SOFTIRQ"], 500, 501),  # began before the machine
        rf.record(rf.TYPE["VECTOR"], 500, 1 | 4 << 40),
        rf.switch_syscall(500, 7, 8, 600, 1),  # entered after the switch
        rf.task(500, 0, 0, b"idle"),
        rf.task(500, 1 << 22, 1, b"beyond"),
        rf.task(500, 1, 1 << 22, b"beyond"),
        rf.task(500, 1, 1, b"why", 4),
        rf.task(500, 1, 1, b"parent", 1, 1 << 22),
        rf.exit_(500, 0, 0),
        rf.waking(0, 8, 7, 0),
    ],
    ids=["softirq", "vector", "enter", "idle", "tid", "pid", "why", "parent", "exit", "no time"],
)
def test_record_that_contradicts_itself_is_counted(tmp_path: Path, record: bytes) -> None:
    events, losses = load(tmp_path, cpu0=whole(rf.block(record + RUNS, 1000)))
    assert [event[0] for event in events] == [1000]
    assert losses == {"malformed": 1}


def test_record_of_a_core_in_the_file_of_the_machine_is_counted(tmp_path: Path) -> None:
    machine = rf.header(rf.NO_CPU) + rf.block(RUNS + rf.message("H", 9) + rf.steal(7, 1, 0), 1000)
    events, losses = load(tmp_path, machine + rf.counts(1, {}), cpu0=whole())
    assert [event[1] for event in events] == ["steal"]
    assert losses == {"misplaced": 2}


def test_compressed_blocks_are_read(tmp_path: Path) -> None:
    content = RUNS + b"".join(WAKES)
    stored = pa.compress(content, "zstd", asbytes=True)
    file = whole(
        rf.block(content, 1000, flags=rf.ZSTD, stored=stored), rf.block(rf.switch(9000, 7, 0), 9000, 9)
    )
    plain = whole(rf.block(content, 1000), rf.block(rf.switch(9000, 7, 0), 9000, 9))
    events, losses = load(tmp_path, cpu0=file)
    assert (events, losses) == (load(tmp_path / "plain", cpu0=plain)[0], {})
    assert len(events) == 10


def test_blocks_that_cannot_be_unpacked_are_passed_over(tmp_path: Path) -> None:
    stored = pa.compress(RUNS, "zstd", asbytes=True)
    bad = [
        rf.block(RUNS, 1000, flags=rf.ZSTD, stored=bytes(20)),
        rf.block(RUNS * 2, 1000, flags=rf.ZSTD, stored=stored),  # claims more data than there is
        rf.block(RUNS, 1000, flags=rf.ZSTD, stored=stored[:-1]),
        rf.block(RUNS, 1000, flags=2),  # an unknown compression method
        rf.block(RUNS[:8], 1000),
        rf.block(RUNS, 1000, stored=RUNS * 2),
        rf.block(RUNS, 1 << 63),
        rf.block(RUNS, 1000, number=1 << 63),
    ]
    for block in bad:
        events, losses = load(tmp_path, cpu0=whole(block, rf.block(WAKES[0], 1000)))
        assert [event[0] for event in events] == [1100], block
        assert losses == {"bad_blocks": 1, "undecodable_bytes": len(block) - 32}, block


def test_block_that_grows_beyond_the_limit_is_not_unpacked(tmp_path: Path) -> None:
    content = bytes((1 << 20) + 16)
    block = rf.block(content, 1000, flags=rf.ZSTD, stored=pa.compress(content, "zstd", asbytes=True))
    assert load(tmp_path, cpu0=whole(block))[1] == {"bad_blocks": 1, "undecodable_bytes": len(block) - 32}


def test_block_that_grows_as_no_records_do_is_not_unpacked(tmp_path: Path) -> None:
    """A file of 64 KiB must not expand to gigabytes: 65536 equal records compress to 60 bytes, real ones to a tenth."""
    content = RUNS * (1 << 16)
    stored = pa.compress(content, "zstd", asbytes=True)
    assert len(content) > 128 * len(stored)
    events, losses = load(tmp_path, cpu0=whole(rf.block(content, 1000, flags=rf.ZSTD, stored=stored)))
    assert events == []
    assert losses == {"bad_blocks": 1, "undecodable_bytes": len(stored)}


def test_unknown_kind_of_block_is_passed_over(tmp_path: Path) -> None:
    file = whole(rf.block(bytes(7), 1000, kind=4), rf.block(bytes(3), 1000, kind=0), rf.block(RUNS, 1000))
    events, losses = load(tmp_path, cpu0=file)
    assert (len(events), losses) == (1, {"unknown_blocks": 2})


@pytest.mark.parametrize(
    "damaged",
    [rf.block(RUNS, 1000, mark=1), struct.pack("<IHHIIQQ", 0x4B42534E, 1, 0, 1 << 24, 1 << 24, 0, 0) + RUNS],
    ids=["mark", "size"],
)
def test_what_follows_a_block_without_sane_head_is_not_read(tmp_path: Path, damaged: bytes) -> None:
    file = rf.header(0) + rf.block(RUNS, 1000) + damaged
    events, losses = load(tmp_path, cpu0=file + rf.block(WAKES[0], 1000))
    assert len(events) == 1
    assert losses == {"bad_blocks": 1, "undecodable_bytes": len(damaged) + 48, "cut": 1}


@pytest.mark.parametrize(
    "file", [b"\x7fELF" + bytes(60), rf.header(1), rf.header(rf.NO_CPU)], ids=["foreign", "core 1", "machine"]
)
def test_file_that_is_not_of_its_core_is_left_out(tmp_path: Path, file: bytes) -> None:
    events, losses = load(tmp_path, cpu0=file, cpu3=rf.whole(3, RUNS))
    assert len(events) == 1
    assert losses == {"bad_files": 1, "undecodable_bytes": len(file), "cut": 1}


# -- time -----------------------------------------------------------------------------------


def test_time_goes_on_over_78_hours(tmp_path: Path) -> None:
    turn = 5 << 48  # shown as 0 in 48 bits
    content = b"".join([
        rf.switch(turn - 20, 0, 7, state=0),
        rf.switch_syscall(turn + 5, 7, 8, turn - 10, 0),
        rf.pair("SOFTIRQ", turn - 2, turn + 7, 1),
        rf.waking(turn + 9, 7, 8, 0),
    ])  # fmt: skip
    expected = [turn - 20, turn - 10, turn - 2, turn + 5, turn + 7, turn + 9]
    for near in (turn - 20, turn, turn + 9, turn + (1 << 46), turn - (1 << 46)):
        events, losses = load(tmp_path, cpu0=rf.header(0) + rf.block(content, near) + rf.counts(near, {}))
        assert [event[0] for event in events] == expected
        assert losses == {}


@pytest.mark.parametrize("near", [0, 3, (1 << 62) - 1])
def test_time_before_the_boot_or_beyond_146_years_is_malformed(tmp_path: Path, near: int) -> None:
    # with ``near`` as reference the time is 100 before 0, or beyond the limit
    ts = (near - 100 if near < 10 else near + 100) % (1 << 48)
    events, losses = load(tmp_path, cpu0=whole(rf.block(rf.switch(ts, 0, 7), near)))
    assert (events, losses) == ([], {"malformed": 1})


# -- files ----------------------------------------------------------------------------------


def refused(path: Path) -> BadInput:
    with pytest.raises(BadInput) as caught:
        raw_records.activity(path)
    assert caught.value.hint
    return caught.value


def test_directory_without_usable_files_is_refused(tmp_path: Path) -> None:
    assert "records" in str(refused(tmp_path / "records"))
    (tmp_path / "records").mkdir()
    assert "no files of records" in str(refused(tmp_path / "records"))
    for name in ("cpu-00.records", "cpu-.records", "cpu-70000.records", "cpu--1.records", "cpu-0.records~"):
        (tmp_path / "records" / name).write_bytes(rf.whole(0, RUNS))
    assert "no files of records" in str(refused(tmp_path / "records"))


def test_version_of_the_future_is_refused(tmp_path: Path) -> None:
    assert "version 3" in str(refused(rf.write(tmp_path, cpu0=rf.header(0, version=3))))
    assert "version 0" in str(refused(rf.write(tmp_path, cpu0=rf.header(0, version=0))))


@pytest.mark.parametrize("name", ["cpu-0.records", "machine.records", "irqs.tsv"])
@pytest.mark.parametrize("what", ["link", "fifo", "directory"])
def test_only_regular_files_are_opened(tmp_path: Path, name: str, what: str) -> None:
    records = rf.write(tmp_path, cpu1=rf.whole(1, RUNS))
    path = records / name
    if what == "link":
        (tmp_path / "elsewhere").write_bytes(rf.whole(0, RUNS))
        path.symlink_to(tmp_path / "elsewhere")
    elif what == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert f"{name}: not a regular file" in str(refused(records))


def test_full_disk_is_an_output_error(tmp_path: Path) -> None:
    records = rf.write(tmp_path, cpu0=rf.whole(0, RUNS))
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "perf-events.bin").symlink_to("/dev/full")
        with pytest.raises(OutputError, match="No space left"):
            native.run("nsight-rawdata", [str(records), directory], 0)


def test_every_count_of_losses_has_an_entry_in_the_ledger(tmp_path: Path) -> None:
    info = rf.decode(rf.write(tmp_path, cpu0=rf.whole(0, RUNS)), tmp_path / "out")[2]
    of_types = {"lost_records", "missing_records"}  # reported by type
    assert set(info["losses"]) == set(of_group("records_")) | of_types


def test_names_of_a_thread_that_only_ends_are_not_searched_for_each_message(tmp_path: Path) -> None:
    """300,000 exits of an unnamed thread, and as many messages: comparing each with each would take minutes."""
    n, per_block = 300_000, 1 << 13
    blocks = [rf.exit_(900, 7, 7) * per_block, rf.message("R", 1000, tid=7) * per_block]
    made, at = [rf.header(0)], 0
    for content in blocks:
        for _ in range(n // per_block):
            made.append(rf.block(content, 1000, at))
            at += len(content) // 16
    records = rf.write(tmp_path, cpu0=b"".join(made))
    _, stamps, info = rf.decode(records, tmp_path / "out", only="messages")  # within 60 s
    assert len(stamps) == n // per_block * per_block
    assert set(stamps["comm"].tolist()) == {0} and set(stamps["pid"].tolist()) == {7}
    assert info["losses"]["bad_blocks"] == 0
