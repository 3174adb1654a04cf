# SPDX-License-Identifier: GPL-2.0-only
"""Conversion in both directions, its errors and its bounds. 2 GHz: see clock_lines."""

import clock_lines as cl
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nsight_report import clocks
from nsight_report.errors import BadInput
from nsight_report.tables import schema

SEC = 10**9
T0 = 5000 * SEC

# one line from 2000 to 1e6: ns = T0 + (tsc - 1000) / 2
PLAIN = (cl.state(2000, 2000, 100, 1000, T0), cl.state(900000, 1000000, 102, 1000, T0))


@pytest.mark.parametrize("tsc", [1999, 1000000, -1, 2**62])
def test_outside_the_map_is_refused_not_extrapolated(tsc: int) -> None:
    clock_map = cl.clock_map(*PLAIN)
    with pytest.raises(clocks.OutOfRange, match="tsc 2000 to 1000000") as refusal:
        clock_map.convert(cl.ints(2000, tsc), "tsc", "realtime")
    assert isinstance(refusal.value, BadInput) and refusal.value.hint


@pytest.mark.parametrize("ns", [T0 + 499, T0 + 499500, 0, 2**62])
def test_a_time_outside_the_map_is_refused(ns: int) -> None:
    # realtime runs from T0 + 500 at TSC 2000 to T0 + 499499 at TSC 999999
    clock_map = cl.clock_map(*PLAIN)
    assert clock_map.convert(cl.ints(T0 + 500, T0 + 499499), "realtime", "tsc")[0].tolist() == [2000, 999998]
    if not T0 - 9000 < ns < T0 + 509000:
        with pytest.raises(clocks.OutOfRange):
            clock_map.convert(cl.ints(ns), "realtime", "tsc")
    assert clock_map.convert_masked(cl.ints(ns, T0 + 500), "realtime", "tsc")[2].tolist() == [False, True]


def test_refused_values_are_masked_on_request() -> None:
    ns, error, ok = cl.clock_map(*PLAIN).convert_masked(cl.ints(1999, 2000, 1000000), "tsc", "realtime")
    assert ok.tolist() == [False, True, False]
    assert ns.tolist() == [0, T0 + 500, 0] and error.tolist() == [0, 0, 0]


def test_an_unknown_domain_is_refused_by_name() -> None:
    with pytest.raises(clocks.OutOfRange, match="no phc:ptp0; it has: boottime, monotonic, realtime, tai"):
        cl.clock_map(*PLAIN).convert(cl.ints(2000), "tsc", "phc:ptp0")


def test_two_clocks_meet_exactly() -> None:
    # monotonic is realtime - 1000 s, TAI realtime + 37 s
    clock_map = cl.clock_map(*PLAIN)
    times = T0 + np.arange(500, 499500)
    for src, dst, offset in (
        ("realtime", "monotonic", -1000),
        ("tai", "monotonic", -1037),
        ("boottime", "tai", 1037),
    ):
        shift = {"realtime": 0, "tai": 37 * SEC, "boottime": -1000 * SEC}[src]
        ns, error = clock_map.convert(times + shift, src, dst)
        assert np.all(ns - (times + shift) == offset * SEC)
        assert not error.any()


def test_nothing_is_lost_on_the_way_back() -> None:
    clock_map = cl.clock_map(*PLAIN)
    tsc = np.arange(2000, 1000000, 7)
    ns, _ = clock_map.convert(tsc, "tsc", "realtime")
    back, error = clock_map.convert(ns, "realtime", "tsc")
    # two cycles share a ns; the result is the first of them
    assert np.all((tsc - back >= 0) & (tsc - back <= 1)) and not error.any()


def test_deltas_beyond_what_int64_products_hold() -> None:
    # one state for 10 years: 6.3e17 cycles * 2**22 needs 82 bits
    cycles = 10 * 365 * 86400 * 2 * SEC
    clock_map = cl.clock_map(
        cl.state(2000, 2000, 100, 1000, T0),
        cl.bracket("tai", cycles, T0 + 37 * SEC + cycles // 2 - 500, cycles),
    )
    ns, _ = clock_map.convert(cl.ints(cycles - 1), "tsc", "realtime")
    assert ns.tolist() == [T0 + (cycles - 1 - 1000) // 2]


def stepped(jump_ns: int) -> tuple[str, ...]:
    """Realtime jumps at TSC 501000 (realtime T0 + 250000), seen at 503000; the recording ends at TSC 1000000."""
    return (
        cl.state(2000, 2000, 100, 1000, T0),
        cl.state(500000, 503000, 102, 501000, T0 + 250000 + jump_ns, monotonic_ns=T0 + 250000 - 1000 * SEC),
        cl.bracket("monotonic", 999990, T0 - 1000 * SEC + 499496, 1000000),
    )


def test_a_time_shown_twice_is_refused() -> None:
    # back by 100 us: T0 + 150000 .. 250000 was shown before and after (and 1000 ns more, if the
    # old state held until the end of the bracket)
    clock_map = cl.clock_map(*stepped(-100000))
    once = cl.ints(T0 + 149999, T0 + 251001)
    assert clock_map.convert(once, "realtime", "tsc")[0].tolist() == [2 * 149999 + 1000, 501000 + 2 * 101001]
    twice = cl.ints(T0 + 150000, T0 + 200000, T0 + 250000, T0 + 250999)
    assert not clock_map.convert_masked(twice, "realtime", "tsc")[2].any()
    with pytest.raises(clocks.OutOfRange, match="twice or never"):
        clock_map.convert(twice, "realtime", "monotonic")
    # the conversion from TSC is not ambiguous, nor is the clock that was not stepped
    assert clock_map.convert(cl.ints(401000, 601000), "tsc", "realtime")[0].tolist() == [
        T0 + 200000,
        T0 + 200000,
    ]
    monotonic = T0 - 1000 * SEC + cl.ints(200000)
    assert clock_map.convert(monotonic, "monotonic", "tsc")[0].tolist() == [401000]


def test_a_time_never_shown_is_refused() -> None:
    # ahead by 100 us: T0 + 250000 .. 350000 was never shown
    clock_map = cl.clock_map(*stepped(100000))
    assert not clock_map.convert_masked(cl.ints(T0 + 300000), "realtime", "tsc")[2].any()
    around = cl.ints(T0 + 249999, T0 + 351001)
    assert clock_map.convert(around, "realtime", "tsc")[0].tolist() == [500998, 501000 + 2 * 1001]


def test_a_time_that_only_a_late_look_allows_is_refused() -> None:
    # stepped ahead by 1 s at TSC 501000, noticed 40000 cycles (20 us) later: 15 us after the step the
    # clock showed T0 + 265000 if the old state still held; up to 10 us the bound covers this, later it is refused
    clock_map = cl.clock_map(
        cl.state(2000, 2000, 100, 1000, T0),
        cl.state(500000, 541000, 102, 501000, T0 + 250000 + SEC),
        cl.state(600000, 600000, 104, 501000, T0 + 250000 + SEC),
    )
    tsc, error, ok = clock_map.convert_masked(cl.ints(T0 + 255000, T0 + 265000), "realtime", "tsc")
    assert ok.tolist() == [True, False]
    # the last ns of the old state, T0 + 249999 from TSC 500998 on, is 5001 ns away
    assert tsc[0] == 500998 and error[0] == 5001


def test_a_fold_between_exact_states_is_covered_by_the_bound() -> None:
    # states from a probe, so no bracket; back by 200 ns at TSC 501000, so T0 + 249900 was shown twice
    first = cl.state(2000, 2000, 0, 1000, T0, kind="K")
    second = cl.state(501000, 501000, 2, 501000, T0 + 249800, kind="K")
    clock_map = cl.clock_map(first, second, cl.state(900000, 900000, 4, 501000, T0 + 249800, kind="K"))
    tsc, error = clock_map.convert(cl.ints(T0 + 249900), "realtime", "tsc")
    assert tsc[0] in (500800, 501200) and error[0] == 200


def test_a_small_fold_is_covered_by_the_bound() -> None:
    # back by 200 ns, like a slew that was seen late: allowed, but both answers are within the bound
    clock_map = cl.clock_map(*stepped(-200))
    tsc, error = clock_map.convert(cl.ints(T0 + 249900), "realtime", "tsc")
    true = cl.ints(1000 + 2 * 249900, 501000 + 200)  # on the old and on the new line
    assert error[0] >= 200
    assert np.all(np.abs(tsc - true) <= 2 * error[0])


def test_many_steps_back_are_told_apart() -> None:
    # every 10_000 cycles (5000 ns) the clock falls back by 1 s and comes forward again by 1 s + 5000 ns
    lines = [cl.state(1000, 1000, 100, 1000, T0)]
    for i in range(1, 40):
        tsc = 1000 + 10000 * i
        lines.append(cl.state(tsc, tsc, 100 + 2 * i, tsc, T0 + 5000 * i - (SEC if i % 2 else 0)))
    clock_map = cl.clock_map(*lines)
    tsc = np.arange(1000, 1000 + 10000 * 39, 3)
    ns, _ = clock_map.convert(tsc, "tsc", "realtime")
    back, error, ok = clock_map.convert_masked(ns, "realtime", "tsc")
    assert ok.all() and np.all(tsc - back <= 1) and np.all(tsc >= back) and not error.any()


def test_a_table_that_is_no_clock_map_is_refused() -> None:
    table = cl.build(*PLAIN)[0]
    rows = table.to_pylist()
    rows[0]["mult"] = 0
    with pytest.raises(BadInput, match="1 impossible segments"):
        clocks.ClockMap(schema.conform("clock_map", table.from_pylist(rows, schema=table.schema)))
    rows = table.to_pylist()
    rows[0]["tsc_end"] += 1
    with pytest.raises(BadInput, match="overlap"):
        clocks.ClockMap(schema.conform("clock_map", table.from_pylist(rows, schema=table.schema)))


def test_a_line_that_leaves_int64_is_refused() -> None:
    # 4e9 ns per cycle over 1e12 cycles: 4e21 ns
    rows = cl.build(*PLAIN)[0].to_pylist()[:1]
    rows[0].update(mult=4 * 10**9, shift=0, tsc_end=10**12)
    with pytest.raises(BadInput, match="impossible"):
        clocks.ClockMap(pa.Table.from_pylist(rows, schema=schema.TABLES["clock_map"].arrow()))


def test_an_empty_map_converts_nothing() -> None:
    with pytest.raises(clocks.OutOfRange, match="it has: nothing"):
        clocks.ClockMap(schema.empty("clock_map")).convert(cl.ints(1), "tsc", "realtime")
    assert clocks.ClockMap(schema.empty("clock_map")).convert(cl.ints(7), "perf", "perf")[0].tolist() == [7]


@st.composite
def slewed(draw: st.DrawFn) -> tuple[list[str], int]:
    """A clock slewed by up to 500 ppm at every tick, and continuous, as the kernel keeps it."""
    tsc, ns_frac, mult = 10**6, T0 << cl.SHIFT, cl.MULT
    lines = [cl.state(tsc, tsc, 0, tsc, T0)]
    for i in range(1, draw(st.integers(2, 12))):
        cycles = draw(st.integers(10**4, 8 * 10**6))
        tsc += cycles
        ns_frac += cycles * mult
        mult = cl.MULT + draw(st.integers(-2097, 2097))
        late = draw(st.integers(0, 2 * 10**6))
        lines.append(
            cl.state(
                tsc, tsc + late, 2 * i, tsc, ns_frac >> cl.SHIFT, frac=ns_frac % (1 << cl.SHIFT), mult=mult
            )
        )
        tsc, ns_frac = tsc + late, ns_frac + late * mult
    return lines, tsc


@settings(max_examples=200)
@given(slewed(), st.data())
def test_realtime_and_back_stays_within_the_bound(clock: tuple[list[str], int], data: st.DataObject) -> None:
    lines, end = clock
    tsc = np.array(data.draw(st.lists(st.integers(10**6, end - 1), min_size=1, max_size=50)), np.int64)
    if end == 10**6:
        return
    clock_map = cl.clock_map(*lines)
    ns, e1 = clock_map.convert(tsc, "tsc", "realtime")
    back, e2 = clock_map.convert(ns, "realtime", "tsc")
    # half a ns a cycle: a ns is two cycles, an error of e ns about 2e more
    assert np.all(np.abs(back - tsc) <= 2 * (e1 + e2) + 3)
    assert np.all(clock_map.convert(back, "tsc", "realtime")[0] - ns <= e1 + e2 + 1)
