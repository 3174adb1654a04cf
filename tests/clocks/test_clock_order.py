# SPDX-License-Identifier: GPL-2.0-only
"""The order of TSC and realtime readings after conversion (section 6.1 of the paper).

``ordering.py`` makes the claim over ten million readings. The tests here show that the comparison
can tell a good map from a bad one, on a simulated disciplined clock and briefly on this machine.
"""

import subprocess
import sys
from pathlib import Path

import clock_lines as cl
import numpy as np
import ordering
import ordering_record
import pyarrow as pa
import pytest
from machinery.harness import built
from nsight_report import clocks
from nsight_report.clocks import clock_readings

SEC = 10**9
T0 = 5000 * SEC
TICK = 8_000_000  # cycles: 4 ms
LATE = 1_000_000  # cycles from an update until it is seen: up to 0.5 ms


def simulate(n_ticks: int, ppm: int, step_ns: int = 0) -> tuple[list[str], np.ndarray]:
    """A recording of a clock that at each tick runs exactly or ``ppm`` fast, and readings of it.

    At every eighth tick it is stepped by ``step_ns``, alternately forward and back. Readings are
    200 cycles apart; the realtime reading comes 100 cycles after its TSC reading.
    """
    rng = np.random.default_rng(7)
    starts, mults, fracs = [10**6], [cl.MULT], [T0 << cl.SHIFT]
    for i in range(1, n_ticks):
        starts.append(starts[-1] + TICK)
        here = fracs[-1] + TICK * mults[-1]
        fracs.append(here + ((step_ns if i % 16 else -step_ns) << cl.SHIFT if i % 8 == 0 else 0))
        mults.append(cl.MULT + int(rng.integers(0, 2)) * cl.MULT * ppm // 10**6)
    lines = []
    for i, (start, mult, frac) in enumerate(zip(starts, mults, fracs, strict=True)):
        late = int(rng.integers(1000, LATE)) if i else 0
        prev = start + late - LATE if i else start
        ns, rest = frac >> cl.SHIFT, frac % (1 << cl.SHIFT)
        lines.append(cl.state(prev, start + late, 2 * i, start, ns, frac=rest, mult=mult, monotonic_ns=T0))
    end = starts[-1] + TICK
    lines.append(f"B\ttai\t{end}\t{(fracs[-1] + TICK * mults[-1] >> cl.SHIFT) + 37 * SEC}\t{end}")

    tsc = np.arange(10**6, end - 400, 200)
    at = tsc + 100
    row = np.searchsorted(np.array(starts), at, side="right") - 1
    bases = np.array([f >> cl.SHIFT for f in fracs], np.int64)
    rests = np.array([f % (1 << cl.SHIFT) for f in fracs], np.int64)
    realtime = bases[row] + (((at - np.array(starts)[row]) * np.array(mults)[row] + rests[row]) >> cl.SHIFT)
    return lines, np.column_stack([tsc, realtime])


@pytest.mark.parametrize(("ppm", "step_ns"), [(0, 0), (1, 0), (500, 0), (500, 2_000_000)])
def test_the_map_keeps_every_reading_in_order(ppm: int, step_ns: int) -> None:
    lines, pairs = simulate(64, ppm, step_ns)
    table, losses = cl.build(*lines)
    result = ordering.compare(pairs, table)
    assert result.violations == 0, result
    assert result.strict > 0.8 * len(pairs)
    assert losses.num_rows == 0


@pytest.mark.parametrize(("ppm", "step_ns"), [(1, 0), (500, 0), (0, 2_000_000), (500, 2_000_000)])
def test_a_stale_map_does_not(ppm: int, step_ns: int) -> None:
    lines, pairs = simulate(64, ppm, step_ns)
    table, _ = cl.build(*lines)
    # 1 ppm shifts a 4 ms tick by 4 ns, and the readings are 50 ns apart: after some 25 ticks this is visible
    assert ordering.compare(pairs, ordering.stale(table)).violations > 100


def test_one_lost_update_is_noticed() -> None:
    # As if the recorder had skipped a line without reporting it: bracket and state follow the line before.
    lines, pairs = simulate(64, 500)
    table, _ = cl.build(*lines)
    rows = table.to_pylist()
    mine = [i for i, r in enumerate(rows) if r["domain"] == "realtime"]
    # 500 ppm of a 4 ms tick are 2000 ns
    skipped = next(i for i in mine[1:] if rows[i]["mult"] != rows[i - 1]["mult"])
    for i in (skipped, skipped + 1):
        for name in ("anchor_tsc", "anchor_ns", "anchor_frac", "mult"):
            rows[i][name] = rows[skipped - 1][name]
        rows[i]["error_ns"] = 0
    result = ordering.compare(pairs, pa.Table.from_pylist(rows, schema=table.schema))
    assert result.violations > 0


def test_a_step_that_was_undone_between_two_looks_is_told_apart() -> None:
    """The poller sleeps over ticks 8 and 9: the first steps the clock forward by a second, the second back."""
    lines, pairs = simulate(32, 0)
    start = 10**6 + 8 * TICK
    stepped = (pairs[:, 0] >= start) & (pairs[:, 0] < start + TICK)
    pairs[stepped, 1] += SEC
    states = [line.split("\t") for line in lines]
    states[10][1] = str(start - 1000)
    readings = cl.readings(*("\t".join(state) for i, state in enumerate(states) if i not in (8, 9)))
    table, _ = clocks.build(readings)
    unknown = ordering.missed(readings)
    assert len(unknown) == 1 and unknown[0, 0] < start < start + TICK < unknown[0, 1]
    result = ordering.compare(pairs, table, unknown)
    assert result.violations == 0 and result.undone >= stepped.sum() - 1, result
    assert ordering.compare(pairs, table).violations == result.undone
    # The same step anywhere else is out of order.
    pairs[100, 1] += SEC
    assert ordering.compare(pairs, table, unknown).violations == 1


def test_two_steps_while_the_reader_was_away_are_in_order() -> None:
    """The clock goes back a second at ticks 8 and 9. The poller sees both steps; the reader is away from tick 7 to 10.

    The reading before the pause is then two seconds later than the TSC after it: each step is within the bound of its
    own segment, but together they are beyond either bound.
    """
    lines, pairs = simulate(32, 0)
    start = 10**6 + 8 * TICK
    states = [line.split("\t") for line in lines]
    for i, state in enumerate(states[:-1]):
        state[8] = str(int(state[8]) - min(max(i - 7, 0), 2))  # whole seconds
    readings = cl.readings(*("\t".join(state) for state in states))
    table, _ = clocks.build(readings)
    pairs[:, 1] -= SEC * ((pairs[:, 0] + 100 >= start).astype(int) + (pairs[:, 0] + 100 >= start + TICK))
    away = (pairs[:, 0] >= start - TICK) & (pairs[:, 0] < start + 2 * TICK)
    result = ordering.compare(pairs[~away], table, ordering.missed(readings))
    assert result.violations == 0 and result.undone == 0, result
    assert 0.99 * SEC < result.max_error_ns < 1.01 * SEC
    # All pairs, as if the reader had not paused: each step is within the bound of its own bracket.
    assert ordering.compare(pairs, table, ordering.missed(readings)).violations == 0
    # A reading that is off by another second is a violation.
    pairs[np.flatnonzero(~away)[100], 1] += SEC
    assert ordering.compare(pairs[~away], table).violations == 1


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, clock_readings.Readings]:
    """A second of readings of this machine's clock."""
    directory = tmp_path_factory.mktemp("order")
    ordering.build()
    ordering_record.record(directory, 200_000, 1.0)
    return ordering.load(directory)


@pytest.mark.timing
def test_this_machines_clock_is_kept_in_order(host: tuple[np.ndarray, clock_readings.Readings]) -> None:
    pairs, readings = host
    table, losses = clocks.build(readings)
    result = ordering.compare(pairs, table)
    assert result.violations == 0, result
    assert result.n_readings == 2 * len(pairs) >= 400_000
    assert "error" not in [severity for severity, _ in cl.losses(losses).values()]


@pytest.mark.timing
def test_this_machines_clock_with_paired_readings_only(
    host: tuple[np.ndarray, clock_readings.Readings],
) -> None:
    pairs, readings = host
    table, _ = clocks.build(ordering.paired_only(readings))
    start, end = clocks.ClockMap(table).range_tsc("realtime")
    inside = pairs[(pairs[:, 0] >= start) & (pairs[:, 0] < end)]
    result = ordering.compare(inside, table)
    assert len(inside) > 100_000 and result.violations == 0, result
    assert result.strict == 0  # paired readings always have a bound


@pytest.mark.timing
def test_a_rate_that_is_off_by_one_ppm_is_noticed(host: tuple[np.ndarray, clock_readings.Readings]) -> None:
    # This machine's clock may not be disciplined, so a stale map could be right: spoil a good one.
    pairs, readings = host
    frame = clocks.build(readings)[0].to_pandas()
    first = frame.groupby("domain", observed=True)["anchor_tsc"].transform("min")
    # segments are wrong by 1 ppm, so later ones are further off
    frame["anchor_ns"] += (frame["anchor_tsc"] - first) // 2 // 10**6
    table = pa.Table.from_pandas(frame, schema=clocks.build(readings)[0].schema, preserve_index=False)
    assert ordering.compare(pairs, table).violations > 100


@pytest.mark.timing
def test_the_program_says_pass() -> None:
    program = Path(ordering.__file__)
    command = [sys.executable, str(program), "--pairs", "100000", "--seconds", "0.5"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "out of order: 0 " in done.stdout and done.stdout.endswith("PASS\n"), done
    assert "200000 readings" in done.stdout or "200064 readings" in done.stdout


def test_the_clock_is_not_disturbed_outside_a_guest() -> None:
    program = Path(ordering.__file__).parent / "disturb_clock"
    built.make(program.parent)
    done = subprocess.run([str(program), "1"], capture_output=True, text=True, env={})
    assert done.returncode == 4 and "NSIGHT_GUEST=1" in done.stderr
