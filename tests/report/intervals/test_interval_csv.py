# SPDX-License-Identifier: GPL-2.0-only
"""Files of intervals: the meaning of their lines in CLOCK_MONOTONIC, what is rejected and counted, and which line has the error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from machinery.made_up.tables import table
from nsight_report.clocks import ClockMap
from nsight_report.errors import BadInput
from nsight_report.intervals import read
from nsight_report.intervals.read import Reader
from nsight_report.losses import Ledger

HEAD = "name,start,stop,clock,thread,core\n"
EPOCH = 1_000_000_000_000_000_000


def one_line(domain: str, anchor_ns: int) -> dict[str, Any]:
    """A clock with one ns per cycle, from cycle 0 to 10^9, that showed ``anchor_ns`` at cycle 0."""
    return {
        "domain": domain, "tsc_start": 0, "tsc_end": 1_000_000_000, "anchor_tsc": 0, "anchor_ns": anchor_ns, "anchor_frac": 0,
        "mult": 1024, "shift": 10, "error_ns": 0, "source": "timekeeper",
    }  # fmt: skip


#: CLOCK_REALTIME is 10^18 ahead of CLOCK_MONOTONIC, which is 5000 ahead of the cycles.
CLOCK = ClockMap(table("clock_map", [one_line("monotonic", 5000), one_line("realtime", EPOCH + 5000)]))


def intervals(path: Path, text: str | bytes) -> tuple[list[tuple[str, int, int, int, int]], dict[str, int]]:
    """(name, start, stop, thread, core) of each interval, and the counts."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    ledger = Ledger("lifetimes")
    reader = Reader(path, CLOCK, ledger)
    found = [
        (reader.names[name], *rest)
        for some in reader
        for name, *rest in zip(
            *(of.tolist() for of in (some.name, some.start, some.stop, some.tid, some.cpu)), strict=True
        )
    ]
    return found, {row["key"]: row["count"] for row in ledger.table().to_pylist()}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "intervals.csv"


def test_a_line_is_an_interval_of_its_thread_or_core(file: Path) -> None:
    text = HEAD + "match,7000,7250,monotonic,41,\n\nsend,7300,7300,,41,3\nmatch,8000,9000,monotonic,,2\n"
    assert intervals(file, text) == (
        [("match", 7000, 7250, 41, -1), ("send", 7300, 7300, 41, 3), ("match", 8000, 9000, -1, 2)],
        {},
    )


def test_columns_may_be_left_out_and_comments_hold_for_every_line(file: Path) -> None:
    text = (
        f"# made by hand\n# clock realtime\n# thread 41\nstop,start,name\n{EPOCH + 7250},{EPOCH + 7000},a\n"
    )
    assert intervals(file, text) == ([("a", 7000, 7250, 41, -1)], {})


def test_clocks_of_the_map_and_foreign_ones_become_monotonic(file: Path) -> None:
    # tsc 2000 is monotonic 7000. dsp showed 100 when realtime showed 10^18 + 7000, so dsp 350 is monotonic 7250.
    text = (
        f"# offset dsp 100 realtime {EPOCH + 7000}\n{HEAD}"
        "a,2000,2250,tsc,1,\na,100,350,dsp,1,\na,%d,%d,realtime,1,\n" % (EPOCH + 7000, EPOCH + 7250)
    )
    found, counted = intervals(file, text)
    assert found == [("a", 7000, 7250, 1, -1)] * 3
    assert counted == {"interval_clock_by_offset": 2}  # its begin and its end


def test_what_cannot_be_used_is_counted_by_its_reason(file: Path) -> None:
    text = HEAD + (
        "a,9,8,monotonic,1,\n"  # ends before it begins
        "a,-5,8,monotonic,1,\n"
        "a,,8,monotonic,1,\n"  # no begin
        f"a,8,{1 << 62},monotonic,1,\n"  # in a hundred years
        "a,8,9,monotonic,,\n"  # without a thread
        "a,8,9,monotonic,-7,\n"
        "a,1999999998,1999999999,tsc,1,\n"  # after the last reading
        "a,8,9,monotonic,1,\n"
    )
    found, counted = intervals(file, text)
    assert found == [("a", 8, 9, 1, -1)]
    assert counted == {
        "interval_impossible": 4,
        "interval_without_place": 2,
        "interval_outside_clock_map": 1,
    }


def test_a_line_of_the_authors_memcached_is_three_intervals_of_a_completed_request(file: Path) -> None:
    head = "id,rx_app,rx_nic,tx_app,tx_nic,rx_ht,completed\n"
    stamps = [EPOCH + ns for ns in (7040, 7000, 7100, 7130)]
    lines = [f"1,{','.join(map(str, stamps))},0,1", f"2,{','.join(map(str, stamps))},0,0",
             f"3,{','.join(map(str, stamps[:3]))},0,0,1"]  # fmt: skip
    found, counted = intervals(file, f"# thread 9\n{head}" + "\n".join(lines) + "\n")
    assert found == [
        ("receive", 7000, 7040, 9, -1), ("receive", 7000, 7040, 9, -1), ("service", 7040, 7100, 9, -1),
        ("service", 7040, 7100, 9, -1), ("transmit", 7100, 7130, 9, -1),
    ]  # fmt: skip
    assert counted == {"interval_not_completed": 1, "interval_without_timestamps": 1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no header line"),
        ("# thread 1\n", "no header line"),
        ("nonsense\n1\n", ":1: the header has no column name"),
        ("name,start,stop,tid\n", ":1: column 'tid' is not known"),
        ("name,start,stop,start\n", ":1: a column is named twice"),
        ("# thread 0\n" + HEAD, ":1: '0' is not a number from 1 to 4194303"),
        ("# offset dsp 1\n" + HEAD, ":1: an offset is a pair of times of two clocks"),
        (HEAD + "a,1,2,monotonic,1,\na,1,x,monotonic,1,\n", ":3: stop 'x' is not a whole number"),
        (HEAD + "a,1,2,monotonic,1,\n\na,1,2\n", ":4: 3 fields, and the header has 6"),
        (HEAD + f"a,1,{1 << 70},monotonic,1,\n", ":2: stop '1180591620717411303424' is not a whole number"),
        (HEAD.encode() + b"\xff,1,2,monotonic,1,\n", ":2: not text in UTF-8"),
        (HEAD + "a" * 5000 + ",x,2,monotonic,1,\n", ":2: the line is longer than 4096 bytes"),
        (HEAD + "a,1,2\ra,1,2,monotonic,1,\n", ":2: not a line of CSV: new-line character"),
        (HEAD + "a,1,2,sundial,1,\n", "clock 'sundial' is not one of this capture (monotonic, tsc, realtime)"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_is_refused_by_its_first_bad_line(
    file: Path, text: str | bytes, says: str
) -> None:
    with pytest.raises(BadInput) as error:
        intervals(file, text)
    assert says in str(error.value)
    assert error.value.hint


def test_more_names_than_anything_is_compared_within_are_refused(file: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(read, "MOST_NAMES", 2)
    lines = "".join(f"{name},1,2,monotonic,1,\n" for name in "abc")
    with pytest.raises(BadInput, match="more than 2 names of intervals"):
        intervals(file, HEAD + lines)


def test_a_link_or_a_pipe_is_no_file_of_intervals(file: Path) -> None:
    file.symlink_to("/etc/passwd")
    with pytest.raises(BadInput, match="not a regular file") as refused:
        Reader(file, CLOCK, Ledger("lifetimes"))
    assert refused.value.hint == "write the intervals to a regular file, and name that file"
