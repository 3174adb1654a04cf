# SPDX-License-Identifier: GPL-2.0-only
"""Segments from timekeeper states. At 2 GHz a cycle is 0.5 ns: see clock_lines."""

import clock_lines as cl
import numpy as np
import pytest

SEC = 10**9
T0 = 5000 * SEC  # realtime at TSC 1000

FIRST = cl.state(2000, 2000, 100, 1000, T0)


def test_an_update_that_changes_nothing_leaves_no_error() -> None:
    # second state: 8000 cycles later, 4000 ns later: the same line
    table, losses = cl.build(
        FIRST,
        cl.state(9500, 10000, 102, 9000, T0 + 4000),
        cl.bracket("tai", 19990, T0 + 37 * SEC + 9496, 20000),
    )
    # bracket: 9500 .. 10000; the last reading looks at the state, so it holds until 20000
    assert cl.segments(table) == [(2000, 9500, 0), (9500, 10000, 0), (10000, 20000, 0)]
    assert losses.num_rows == 0


def test_conversion_is_the_kernels_arithmetic() -> None:
    clock_map = cl.clock_map(FIRST, cl.state(9500, 10000, 102, 9000, T0 + 4000))
    ns, error = clock_map.convert(cl.ints(2000, 2001, 2002, 9998), "tsc", "realtime")
    # (2000 - 1000) / 2 = 500; 500.5 and 501 round down; (9998 - 9000) / 2 = 499 after 4000
    assert (ns - T0).tolist() == [500, 500, 501, 4499]
    assert error.tolist() == [0, 0, 0, 0]


def test_bracket_error_is_the_largest_difference_of_both_lines() -> None:
    # The new line runs at 0.5 * (1 + 1/512) ns per cycle from TSC 9000: at 10000 it is 1000 * 0.5 / 512
    # = 0.98 ns ahead, at 9500 0.49 ns; rounded down, 500 against 500 + 4000 and 250.
    mult = cl.MULT + cl.MULT // 512
    table, _ = cl.build(FIRST, cl.state(9500, 10000, 102, 9000, T0 + 4000, mult=mult))
    assert cl.segments(table) == [(2000, 9500, 0), (9500, 10000, 0)]
    # Sixteen times the bracket: 16 * 0.98 = 15.6 ns at its end, rounded down 15
    table, _ = cl.build(FIRST, cl.state(9000, 25000, 102, 9000, T0 + 4000, mult=mult))
    assert cl.segments(table) == [(2000, 9000, 0), (9000, 25000, 15)]


def test_a_state_cannot_hold_before_its_own_cycle_last() -> None:
    # last seen unchanged at 2500, but the new state was computed at 9000: the old line held until then
    table, _ = cl.build(FIRST, cl.state(2500, 10000, 102, 9000, T0 + 4000, mult=cl.MULT + 1))
    assert [s[:2] for s in cl.segments(table)] == [(2000, 9000), (9000, 10000)]


def test_a_step_makes_its_bracket_as_uncertain_as_it_is_high() -> None:
    # stepped 7 s ahead at TSC 9000, first seen at 10000
    table, _ = cl.build(
        FIRST, cl.state(8800, 10000, 102, 9000, T0 + 4000 + 7 * SEC, monotonic_ns=T0 + 4000 - 1000 * SEC)
    )
    assert cl.segments(table) == [(2000, 9000, 0), (9000, 10000, 7 * SEC)]
    # CLOCK_MONOTONIC was not stepped
    assert cl.segments(table, "monotonic") == [(2000, 9000, 0), (9000, 10000, 0)]


def test_one_missed_update_costs_a_nanosecond_and_starts_at_the_last_look() -> None:
    # seq went up by 4: one update was not seen; it may have come before the second's cycle_last
    table, losses = cl.build(FIRST, cl.state(2500, 10000, 104, 9000, T0 + 4000))
    assert cl.segments(table) == [(2000, 2500, 0), (2500, 10000, 1)]
    assert cl.losses(losses) == {"timekeeper update missed": ("info", 1)}


def test_several_missed_updates_add_what_ntp_can_bend() -> None:
    # 2 of 3 were missed, within 2_000_000 cycles = 1 ms: 1000 ppm of it are 1000 ns, and 1 for rounding
    table, _ = cl.build(FIRST, cl.state(10000, 2010000, 106, 9000, T0 + 4000))
    assert cl.segments(table) == [(2000, 10000, 0), (10000, 2010000, 1001)]


def test_sequence_count_may_wrap() -> None:
    start = cl.state(2000, 2000, (1 << 32) - 2, 1000, T0)
    table, losses = cl.build(start, cl.state(9500, 10000, 0, 9000, T0 + 4000))
    assert cl.segments(table)[1] == (9500, 10000, 0)
    assert losses.num_rows == 0
    # from 2**32 - 2 over 0 to 2: one update was missed
    losses = cl.build(start, cl.state(9500, 10000, 2, 9000, T0 + 4000))[1]
    assert cl.losses(losses) == {"timekeeper update missed": ("info", 1)}


def test_a_lost_line_makes_everything_since_the_last_state_uncertain() -> None:
    # the lost state was seen between 2000 and 2010000: the old line is not trusted there
    table, losses = cl.build(FIRST, "V\t1\tgarbage", cl.state(2009000, 2010000, 104, 9000, T0 + 4000))
    # width 2_008_000 cycles = 1_004_000 ns, 1000 ppm: 1004, and 1 for rounding
    assert cl.segments(table) == [(2000, 2010000, 1005)]
    assert cl.losses(losses)["clock reading not understood"] == ("warning", 1)


def test_probed_states_need_no_bracket() -> None:
    first = cl.state(2000, 2000, 0, 1000, T0, kind="K")
    second = cl.state(10000, 10000, 2, 9000, T0 + 4000, mult=cl.MULT + 99, kind="K")
    third = cl.state(20000, 20000, 4, 19000, T0 + 9000, kind="K")
    table, _ = cl.build(first, second, third)
    assert cl.segments(table) == [(2000, 10000, 0), (10000, 20000, 0)]
    assert set(table["source"].to_pylist()) == {"timekeeper"}


def test_probed_states_of_two_cores_are_put_in_order() -> None:
    # bpftrace reads one core's buffer after the other's
    lines = [
        cl.state(2000, 2000, 0, 1000, T0, kind="K"),
        cl.state(20000, 20000, 4, 19000, T0 + 9000, kind="K"),
        cl.state(10000, 10000, 2, 9000, T0 + 4000, mult=cl.MULT + 99, kind="K"),
    ]
    table, losses = cl.build(*lines)
    assert cl.segments(table) == [(2000, 10000, 0), (10000, 20000, 0)]
    assert losses.num_rows == 0


def test_polled_states_fill_in_where_the_probe_was_silent() -> None:
    probed = [cl.state(t, t, s, 1000, T0, kind="K") for t, s in ((5000, 0), (7000, 2))]
    table, _ = cl.build(FIRST, *probed, cl.state(9500, 10000, 102, 9000, T0 + 4000))
    sources = [(r["tsc_start"], r["tsc_end"], r["source"]) for r in table.to_pylist() if r["domain"] == "tai"]
    assert sources == [
        (2000, 5000, "vvar"),
        (5000, 7000, "timekeeper"),
        (7000, 9500, "vvar"),
        (9500, 10000, "vvar"),
    ]


def test_another_clocksource_is_not_taken_for_tsc() -> None:
    # from 9500 on, the kernel used another clocksource; until then the first line held
    table, losses = cl.build(FIRST, cl.state(9500, 10000, 102, 77, T0 + 4000, mode=2))
    assert cl.segments(table) == [(2000, 9500, 0)]
    assert cl.losses(losses)["clocksource not TSC"] == ("warning", 1)


def test_paired_readings_fill_in_while_the_clocksource_is_another() -> None:
    lines = [FIRST, cl.state(9500, 10000, 102, 77, T0 + 4000, mode=2)]
    # readings of 10 cycles: at TSC t realtime is T0 + (t - 1000) / 2
    lines += [cl.bracket("realtime", t - 5, T0 + (t - 1000) // 2, t + 5) for t in (9000, 29000, 49000)]
    table, _ = cl.build(*lines)
    rows = [
        (r["tsc_start"], r["tsc_end"], r["source"]) for r in table.to_pylist() if r["domain"] == "realtime"
    ]
    assert rows == [(2000, 9500, "vvar"), (9500, 29000, "bracket"), (29000, 49000, "bracket")]


@pytest.mark.parametrize(
    "line",
    [
        cl.state(3000, 4000, 102, 1000, T0, mult=0),
        cl.state(3000, 4000, 102, 1000, T0, mult=1 << 33),
        cl.state(3000, 4000, 102, 1000, T0, shift=33, mult=1 << 32),
        cl.state(4001, 4000, 102, 1000, T0),  # seen before the state before it was last seen
        cl.state(3000, 4000, 102, 4001, T0),  # computed after it was seen
        cl.state(1500, 1999, 102, 1000, T0),  # earlier than the first one
        cl.state(3000, 4000, 102, 1000, 9 * 10**18 - 1, mult=cl.MULT * 3),  # 1.5 ns per cycle at 2 GHz
    ],
)
def test_impossible_states_are_counted_and_bracketed(line: str) -> None:
    table, losses = cl.build(FIRST, line, cl.state(9500, 10000, 104, 9000, T0 + 4000))
    assert cl.losses(losses)["timekeeper state impossible"] == ("error", 1)
    # nothing is trusted between the states around the impossible one: 4000 ns at 1000 ppm, and 1
    assert cl.segments(table) == [(2000, 10000, 5)]


def test_a_contradicting_reading_is_an_error() -> None:
    lines = [FIRST, cl.state(9500, 10000, 102, 9000, T0 + 4000)]
    # at TSC 5000..5010 realtime is T0 + 2000..2005
    assert cl.build(*lines, cl.bracket("realtime", 5000, T0 + 2000, 5010))[1].num_rows == 0
    assert cl.build(*lines, cl.bracket("realtime", 5000, T0 + 2005, 5010))[1].num_rows == 0
    for wrong in (1999, 2006):
        losses = cl.build(*lines, cl.bracket("realtime", 5000, T0 + wrong, 5010))[1]
        assert cl.losses(losses) == {"clock map contradicted": ("error", 1)}


def test_perf_clock_is_one_exact_line() -> None:
    clock_map = cl.clock_map(FIRST, "C\t1048576\t21\t-700")  # 0.5 ns per cycle, 700 ns behind
    ns, error = clock_map.convert(cl.ints(0, 1400, 2**60), "tsc", "perf")
    assert ns.tolist() == [-700, 0, 2**59 - 700]
    assert not np.any(error)
