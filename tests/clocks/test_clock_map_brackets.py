# SPDX-License-Identifier: GPL-2.0-only
"""Segments from paired readings, and PHC readings. 2 GHz: see clock_lines."""

import clock_lines as cl
import numpy as np
from nsight_report import clocks
from nsight_report.clocks.build import check_brackets
from nsight_report.clocks.clock_readings import Brackets
from nsight_report.clocks.segments import from_table

SEC = 10**9
T0 = 5000 * SEC
EVERY = 20_000_000  # cycles: 10 ms


def recording(ns: np.ndarray, width: int = 100, domain: str = "realtime") -> list[str]:
    """Readings every 10 ms around TSC i * EVERY, each ``width`` cycles wide."""
    middles = EVERY * np.arange(1, len(ns) + 1)
    return [
        cl.bracket(domain, m - width // 2, n, m + width // 2)
        for m, n in zip(middles.tolist(), ns.tolist(), strict=True)
    ]


def test_a_straight_clock_is_good_to_half_a_bracket() -> None:
    table, losses = cl.build(*recording(T0 + 10_000_000 * np.arange(5)))
    assert losses.num_rows == 0
    # 100 cycles are 50 ns: half of it, 1 for the reading's own whole ns, 1 for rounding mult
    assert [s[2] for s in cl.segments(table)] == [27] * 4
    assert [s[:2] for s in cl.segments(table)] == [(EVERY * i, EVERY * (i + 1)) for i in range(1, 5)]
    ns, _ = clocks.ClockMap(table).convert(cl.ints(EVERY, 3 * EVERY + 4000), "tsc", "realtime")
    assert (ns - T0).tolist() == [0, 20_002_000]


def test_the_wider_of_two_brackets_counts() -> None:
    ns = T0 + 10_000_000 * np.arange(4)
    lines = recording(ns)
    lines[1] = recording(ns, width=180)[1]
    # 180 cycles are 90 ns, half of it 45; it bounds the intervals on both sides
    assert [s[2] for s in cl.segments(cl.build(*lines)[0])] == [47, 47, 27]


def test_lines_join_without_a_jump() -> None:
    rng = np.random.default_rng(1)
    table, _ = cl.build(*recording(T0 + 10_000_000 * np.arange(50) + rng.integers(-20, 20, 50)))
    s = from_table(table)["realtime"]
    rows = np.arange(1, len(s))
    gaps = s.ns(s.tsc_start[1:], rows) - s.ns(s.tsc_start[1:], rows - 1)
    assert np.all((gaps >= 0) & (gaps <= 1))


def test_a_bend_between_readings_is_inside_the_bound() -> None:
    # +400 ppm from the middle of the third interval on: 10 ms * 400 ppm = 4000 ns an interval, 2000 in that one
    bent = np.array([0, 0, 0, 2000, 6000, 10000])
    table, _ = cl.build(*recording(T0 + 10_000_000 * np.arange(6) + bent))
    # true value: straight until 25 ms, so 0 there; the chord is 1000 ns ahead at its middle
    ns, error = clocks.ClockMap(table).convert(cl.ints(3 * EVERY + EVERY // 2), "tsc", "realtime")
    assert abs(int(ns[0]) - (T0 + 25_000_000 + 1000)) <= 1
    # neighbours differ by 200 ppm of 10 ms = 2000 ns, + 27 and rounding
    assert 2027 <= error[0] <= 2030


def test_a_small_step_between_readings_is_inside_the_bound() -> None:
    # 40 us ahead, 1 us after the reading at 10 ms: the chord reaches them only at 20 ms
    table, _ = cl.build(
        *recording(T0 + 10_000_000 * np.arange(6) + np.array([0, 0, 40_000, 40_000, 40_000, 40_000]))
    )
    after = cl.ints(2 * EVERY + 2000)
    ns, error = clocks.ClockMap(table).convert(after, "tsc", "realtime")
    assert abs(int(ns[0]) - (T0 + 10_000_000 + 1000 + 40_000)) <= error[0] <= 40_030


def test_a_step_between_readings_is_as_uncertain_as_it_is_high() -> None:
    table, losses = cl.build(
        *recording(T0 + 10_000_000 * np.arange(6) + np.array([0, 0, 0, -SEC, -SEC, -SEC]))
    )
    errors = [s[2] for s in cl.segments(table)]
    assert errors[2] >= SEC and max(errors[:2] + errors[3:]) == 27
    assert cl.losses(losses)["clock stepped between paired readings"] == ("warning", 1)
    # the line in between is that of the later reading
    assert clocks.ClockMap(table).convert(cl.ints(4 * EVERY - 4000), "tsc", "realtime")[0].tolist() == [
        T0 + 30_000_000 - SEC - 2000
    ]


def test_an_interrupted_reading_is_not_drawn_through_but_checked() -> None:
    lines = recording(T0 + 10_000_000 * np.arange(6))
    # 1 ms wide, taken at its very beginning: drawn through, the line would be off by 0.5 ms
    lines[3] = cl.bracket("realtime", 4 * EVERY, T0 + 30_000_000, 4 * EVERY + 2_000_000)
    table, losses = cl.build(*lines)
    assert [s[2] for s in cl.segments(table)] == [27] * 4
    assert cl.losses(losses) == {"paired clock reading wide": ("info", 1)}
    lines[3] = cl.bracket("realtime", 4 * EVERY, T0 + 32_000_000, 4 * EVERY + 2_000_000)
    assert cl.losses(cl.build(*lines)[1])["clock map contradicted"] == ("error", 1)


def test_readings_out_of_order_are_counted_and_left_out() -> None:
    lines = recording(T0 + 10_000_000 * np.arange(6))
    lines.insert(4, cl.bracket("realtime", 100, T0, 90))
    table, losses = cl.build(*lines)
    assert len(cl.segments(table)) == 5
    assert cl.losses(losses)["paired clock reading impossible"] == ("error", 1)


def test_a_clock_that_stands_still_is_no_map() -> None:
    table, losses = cl.build(*recording(np.full(5, T0)))
    assert table.num_rows == 0
    assert cl.losses(losses)["paired clock readings implausible"] == ("error", 5)
    assert cl.losses(losses)["no clock map"] == ("error", 1)


def test_a_check_across_two_segments_uses_the_wider_bound() -> None:
    table, _ = cl.build(
        cl.state(2000, 2000, 100, 1000, T0),
        cl.state(9000, 25000, 102, 9000, T0 + 4000 + 800),  # an 800 ns step, somewhere in 9000 .. 25000
        cl.state(30000, 30000, 104, 9000, T0 + 4000 + 800),
    )
    s = from_table(table)["realtime"]
    # from TSC 8990 (T0 + 3995) to 9010 (T0 + 4005, or 4805 if stepped)
    one = Brackets(cl.ints(8990), cl.ints(T0 + 4801), cl.ints(9010))
    assert check_brackets(s, one) == (0, 0)
    assert check_brackets(s, Brackets(cl.ints(8990), cl.ints(T0 + 5606), cl.ints(9010))) == (1, 0)
    # Back by 800 ns: T0 + 3203 is the new line's at 9010, 792 below the old one's at 8990
    table, _ = cl.build(
        cl.state(2000, 2000, 100, 1000, T0),
        cl.state(9000, 25000, 102, 9000, T0 + 4000 - 800),
        cl.state(30000, 30000, 104, 9000, T0 + 4000 - 800),
    )
    back = from_table(table)["realtime"]
    assert check_brackets(back, Brackets(cl.ints(8990), cl.ints(T0 + 3203), cl.ints(9010))) == (0, 0)
    assert check_brackets(s, Brackets(cl.ints(1000), cl.ints(T0), cl.ints(1010))) == (0, 1)


# realtime is T0 + (tsc - 1000) / 2 up to TSC 2e9, exactly
EXACT = (
    cl.state(2000, 2000, 100, 1000, T0),
    cl.bracket("tai", 2 * 10**9 - 10, T0 + 37 * SEC + 10**9 - 504, 2 * 10**9),
)


def phc_lines(n: int, ppm: int, width_ns: int, method: str = "extended") -> list[str]:
    """A PHC 100 s behind realtime and ``ppm`` fast, read every 100 ms from 100 ms on."""
    lines = []
    for i in range(1, n + 1):
        after_start = i * 10**8
        before = T0 + after_start - width_ns // 2
        phc = T0 - 100 * SEC + after_start + after_start * ppm // 10**6
        lines.append(f"P\tphc:ptp0\t{method}\t{before}\t{phc}\t{before + width_ns}")
    return lines


def test_a_phc_is_mapped_with_half_its_bracket() -> None:
    table, losses = cl.build(*EXACT, *phc_lines(9, 50, 1000))
    assert losses.num_rows == 0
    clock_map = clocks.ClockMap(table)
    assert "phc:ptp0" in clock_map.domains
    # 250 ms after T0: TSC 1000 + 5e8; the PHC gained 250 ms * 50 ppm = 12500 ns
    ns, error = clock_map.convert(cl.ints(5 * 10**8 + 1000), "tsc", "phc:ptp0")
    assert abs(int(ns[0]) - (T0 - 100 * SEC + 250_000_000 + 12_500)) <= 2
    # half of 1000 ns, + 1 whole ns of the reading, + 1 of the TSC found, + rounding
    assert 500 <= error[0] <= 504


def test_a_hardware_stamp_reaches_monotonic_with_its_bound() -> None:
    clock_map = clocks.ClockMap(cl.build(*EXACT, *phc_lines(9, 50, 1000))[0])
    stamp = T0 - 100 * SEC + 250_000_000 + 12_500
    ns, error = clock_map.convert(cl.ints(stamp), "phc:ptp0", "monotonic")
    assert abs(int(ns[0]) - (T0 - 1000 * SEC + 250_000_000)) <= 2 and 500 <= error[0] <= 506


def test_a_precise_phc_reading_has_no_bracket() -> None:
    clock_map = clocks.ClockMap(cl.build(*EXACT, *phc_lines(9, 0, 0, "precise"))[0])
    assert clock_map.convert(cl.ints(5 * 10**8), "tsc", "phc:ptp0")[1].tolist()[0] <= 4


def test_the_error_of_realtime_widens_a_phc_reading() -> None:
    # realtime itself known to 27 ns only, from paired readings
    lines = recording(T0 + 10_000_000 * np.arange(110))
    clock_map = clocks.ClockMap(cl.build(*lines, *phc_lines(9, 0, 0, "precise"))[0])
    _, error = clock_map.convert(cl.ints(EVERY + 5 * 10**8), "tsc", "phc:ptp0")
    assert 27 <= error[0] <= 32


def test_phc_readings_outside_the_map_are_counted() -> None:
    # TSC 2e9 is one second: readings 10 and 11 lie beyond the map's end
    table, losses = cl.build(*EXACT, *phc_lines(11, 0, 1000))
    assert cl.losses(losses) == {"PHC reading outside the clock map": ("warning", 2)}
    assert len(cl.segments(table, "phc:ptp0")) == 8
