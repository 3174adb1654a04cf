# SPDX-License-Identifier: GPL-2.0-only
"""clock.tsv as a hostile or damaged file: one clear error, or bad lines are counted and left out."""

from pathlib import Path

import clock_lines as cl
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nsight_report import clocks
from nsight_report.clocks import clock_readings
from nsight_report.errors import BadInput

T0 = 5000 * 10**9
V = cl.state(2000, 2000, 100, 1000, T0)
V2 = cl.state(9500, 10000, 102, 9000, T0 + 4000)


def parse(*lines: str, end: str = "\n") -> clock_readings.Readings:
    return clock_readings.parse(("\n".join(lines) + end).encode("latin-1"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a recording"),
        (b"\n", "not a recording"),
        (b"#nsight-events 1 clock=boottime\n", "not a recording"),
        (b"PERFILE2\0\0\0\0\x68\0\0\0\n", "not a recording"),
        (b"\x00" * 100, "not a recording"),
        (b"#nsight-clock 1 tsc_khz=-5 clocksource=tsc\n", "not a recording"),
        (b"#nsight-clock 1 tsc_khz=nan clocksource=tsc\n", "not a recording"),
        (b"#nsight-clock 2 tsc_khz=2000000 clocksource=tsc\n", "version 2 of the format is unknown"),
        (b"#nsight-clock 1 tsc_khz=2000000 clocksource=tsc", "not a recording"),  # cut in the first line
        (b"#nsight-clock 1 tsc_khz=2000000 clocksource=tsc\n", "no clock reading in it"),
        (b"#nsight-clock 1 tsc_khz=2000000 clocksource=tsc\nV\t1\n", "no clock reading in it"),
    ],
)
def test_what_is_no_recording_is_refused_with_a_fix(data: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refusal:
        clock_readings.parse(data)
    assert refusal.value.hint


def test_a_missing_file_is_refused_with_a_fix(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file") as refusal:
        clock_readings.load(tmp_path / "clock.tsv")
    assert refusal.value.hint


def test_a_file_beyond_the_limit_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "clock.tsv"
    with path.open("wb") as f:
        f.truncate(clock_readings.MAX_BYTES + 1)  # sparse
    with pytest.raises(BadInput, match="larger than"):
        clock_readings.load(path)


def test_a_cut_recording_is_used_up_to_its_last_whole_line() -> None:
    readings = parse(cl.HEADER, V, V2, "V\t19500\t200", end="")
    assert len(readings.polled) == 2 and readings.end is None
    assert cl.losses(readings.ledger.table()) == {"clock readings cut": ("info", 1)}
    assert "incomplete last line" in readings.ledger.table()["detail"][0].as_py()


def test_an_incomplete_number_at_the_end_is_not_taken_for_a_whole_one() -> None:
    # the line looks complete, but its last number may have lost digits
    assert len(parse(cl.HEADER, V, V2, end="").polled) == 1


@pytest.mark.parametrize(
    "line",
    [
        "",
        "V",
        "V\t" + "\t".join(["nan"] * 15),
        "V\t" + "\t".join(["1e9"] * 15),
        V.replace("\t2000\t", "\t-2000\t", 1),
        V.replace("\t1000\t", "\t" + "9" * 40 + "\t", 1),
        V.replace("\t1000\t", "\t9223372036854775808\t", 1),
        V + "\t1",
        V.replace("\t", " "),
        "B\trealtime\t1\t2",
        "B\t../../etc/passwd\t1\t2\t3",
        "B\t<script>\t1\t2\t3",
        "P\tptp0\tprecise\t1\t2\t3",
        "P\tphc:ptp0\tguess\t1\t2\t3",
        "Z\t1\t2",
        cl.HEADER,  # two recordings in one file
        "\x80\xff",
        "V\t\u0661\t2",  # a digit, but not an ASCII one
    ],
)
def test_a_damaged_line_is_counted_and_left_out(line: str) -> None:
    data = "\n".join([cl.HEADER, V, line, V2, cl.END, ""]).encode("utf-8")
    readings = clock_readings.parse(data)
    assert len(readings.polled) == 2 and not readings.brackets and not readings.phcs
    assert cl.losses(readings.ledger.table()) == {"clock reading not understood": ("warning", 1)}
    assert readings.polled.gap_before.tolist() == [False, True]


def test_comments_are_not_damage() -> None:
    assert parse(cl.HEADER, V, "# a remark", V2, cl.END).ledger.table().num_rows == 0


def test_numbers_are_read_exactly() -> None:
    # 19 digits, where a float64 would be off by hundreds
    readings = parse(
        cl.HEADER,
        cl.bracket("realtime", 8999999999999999999, 1795224061980694787, 8999999999999999999),
        cl.END,
    )
    b = readings.brackets["realtime"]
    assert (b.before.tolist(), b.ns.tolist()) == ([8999999999999999999], [1795224061980694787])


def test_every_field_is_where_the_format_says() -> None:
    line = "V\t1\t2\t4\t1\t6\t7\t8\t9\t10\t11\t12\t13\t14\t15\t16"
    s = parse(cl.HEADER, line, "P\tphc:ptp0\textended\t21\t22\t23", "C\t31\t5\t-33", "E\t1\t2\t3\t4\t5")
    p = s.polled
    single = [p.tsc_prev, p.tsc_now, p.seq, p.mode, p.cycle_last, p.mult, p.shift]
    assert [int(x[0]) for x in single] == [1, 2, 4, 1, 6, 7, 8]
    assert p.sec.tolist() == [[9, 11, 13, 15]] and p.snsec.tolist() == [[10, 12, 14, 16]]
    phc = s.phcs["phc:ptp0"]
    assert (phc.before.tolist(), phc.ns.tolist(), phc.after.tolist()) == ([21], [22], [23])
    assert s.perf == (31, 5, -33) and s.end == (1, 2, 3, 4, 5)


# plausible and absurd numbers: those that pass the file's syntax must pass the map's arithmetic or be rejected
numbers = st.one_of(st.integers(0, 40), st.integers(0, 1 << 34), st.integers(0, 9 * 10**18 - 1))


def line_of(prefix: str, n_fields: int) -> st.SearchStrategy[str]:
    return st.lists(numbers, min_size=n_fields, max_size=n_fields).map(
        lambda n: "\t".join([prefix, *map(str, n)])
    )


def states(kind: str) -> st.SearchStrategy[str]:
    fields = [numbers] * 3 + [st.integers(0, 2)] + [numbers] * 11
    return st.tuples(*fields).map(lambda n: "\t".join([kind, *map(str, n)]))


any_line = st.one_of(
    states("V"), states("K"), line_of("B\trealtime", 3), line_of("B\ttai", 3),
    line_of("P\tphc:p\toffset", 3), st.just("C\t4294967295\t0\t8999999999999999999"),
)  # fmt: skip


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(any_line, max_size=12))
def test_no_numbers_crash_the_map(lines: list[str]) -> None:
    try:
        table, _ = cl.build(*lines)
    except BadInput:
        return
    clock_map = clocks.ClockMap(table)  # every segment in order and computable
    for domain in clock_map.domains:
        start, end = clock_map.range_tsc(domain)
        ns, _, ok = clock_map.convert_masked(np.array([start, end - 1], np.int64), "tsc", domain)
        clock_map.convert_masked(ns, domain, "tsc")
        assert ok.all()
