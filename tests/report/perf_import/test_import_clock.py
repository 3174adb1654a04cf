# SPDX-License-Identifier: GPL-2.0-only
"""Clocks of a recording without BPF: from the tracepoint, from a patched perf, or only from perf's -k."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nsight_report import clocks
from nsight_report.capture import perf_data
from nsight_report.clocks import clock_readings
from nsight_report.errors import BadInput
from nsight_report.losses import Ledger
from nsight_report.perf_import import clock as import_clock
from nsight_report.perf_import import import_perf_data
from recording import NS, Recording, clock, time_conv
from world import BEGIN, CONV, MONO, MS, MULT, REAL, SHIFT, TAI, US, machine, socket, switch, update

END = BEGIN + 100 * MS


def read(
    made: Recording, tmp_path: Path, beside: Path | None = None
) -> tuple[clocks.ClockMap, Any, dict[str, int]]:
    """Clock map, its table, and losses of a recording that ends at END."""
    switch(made, END, 1, (0, b"swapper/1"), (7, b"x"))
    ledger = Ledger("record")
    decoded, wide = perf_data.load_wide(made.write(tmp_path / "perf.data"))
    text = import_clock.clock_tsv(decoded, wide, "perf.data", beside, ledger)
    table, lost = clocks.build(clock_readings.parse(text.encode()))
    rows = [*ledger.table().to_pylist(), *lost.to_pylist()]
    return clocks.ClockMap(table), table.to_pandas(), {r["cause"]: r["count"] for r in rows}


def offsets(known: clocks.ClockMap, times: list[int], domain: str) -> list[int]:
    """Perf's times converted to ``domain``, minus the times themselves."""
    converted, _error = known.convert(np.array(times), "perf", domain)
    return (converted - np.array(times)).tolist()


def test_perf_s_times_become_those_that_the_kernel_would_have_told(tmp_path: Path) -> None:
    known, table, lost = read(machine(), tmp_path)
    times = [BEGIN, BEGIN + 12_345, END]
    assert offsets(known, times, "monotonic") == [MONO] * 3
    assert offsets(known, times, "realtime") == [MONO + REAL] * 3
    assert offsets(known, times, "tai") == [MONO + REAL + TAI * NS] * 3
    assert set(table["source"].astype(str)) == {"timekeeper", "perf"}
    assert int(table["error_ns"].max()) == 0 and not lost


def test_clock_that_the_tracepoint_does_not_tell_is_not_made_up(tmp_path: Path) -> None:
    known, _, _ = read(machine(), tmp_path)
    assert "boottime" not in known.domains


def test_time_before_the_first_update_is_refused(tmp_path: Path) -> None:
    known, _, _ = read(machine(), tmp_path)
    assert known.convert_masked(np.array([BEGIN - US, BEGIN]), "perf", "monotonic")[2].tolist() == [
        False,
        True,
    ]


def test_other_rate_holds_from_its_update_on_and_not_before(tmp_path: Path) -> None:
    """419 / 4194304 faster from BEGIN + 10 ms on: 1 ms later that is 99.9 ns, and at the end, 90 ms later, 8990.8 ns."""
    made = machine()
    update(made, BEGIN + 10 * MS, late=0, mult=MULT + 419)
    known, _, _ = read(made, tmp_path)
    found = [o - MONO for o in offsets(known, [BEGIN + 10 * MS - 1, BEGIN + 11 * MS, END], "monotonic")]
    assert found == [0, 99, 8990]


def test_step_is_where_the_update_is_and_what_lies_before_it_keeps_its_time(tmp_path: Path) -> None:
    made = machine()
    made_real = {"base_real": BEGIN + 10 * MS + MONO + REAL + 5 * NS - 3, "action": 2}
    update(made, BEGIN + 10 * MS, late=0, **made_real)
    known, _, _ = read(made, tmp_path)
    times = [BEGIN + 10 * MS - 1, BEGIN + 10 * MS]
    assert offsets(known, times, "realtime") == [MONO + REAL, MONO + REAL + 5 * NS]
    assert offsets(known, times, "monotonic") == [MONO, MONO]


def test_between_reading_and_publishing_the_bound_covers_both_lines(tmp_path: Path) -> None:
    """The kernel read the counter 500 ns before it published the update; until then readers used the previous line."""
    made = machine()
    update(made, BEGIN + 10 * MS, late=500, ahead=40)
    known, _, _ = read(made, tmp_path)
    ns, error = known.convert(np.array([BEGIN + 10 * MS - 200]), "perf", "monotonic")
    assert abs(int(ns[0]) - (BEGIN + 10 * MS - 200 + MONO)) <= int(error[0]) <= 41


def test_update_of_another_timekeeper_changes_nothing(tmp_path: Path) -> None:
    made = machine()
    update(made, BEGIN + 10 * MS, ahead=NS, tk_id=1)
    assert offsets(read(made, tmp_path)[0], [END], "monotonic") == [MONO]


def test_lost_events_widen_the_bound_around_them(tmp_path: Path) -> None:
    made = machine()
    made.lost(BEGIN + 15 * MS, 3)
    for ms in (10, 20, 30, 40):
        update(made, BEGIN + ms * MS)
    known, _, lost = read(made, tmp_path)
    at = np.array([BEGIN + 18 * MS, BEGIN + 38 * MS])
    _, error = known.convert(at, "perf", "monotonic")
    # 10 ms at the 1000 ppm by which the clock can have been adjusted meanwhile
    assert 10_000 <= error[0] <= 20_002 and error[1] == 0
    assert lost["perf lost events between clock updates"] == 2


def test_events_lost_after_the_last_update_widen_the_bound_up_to_the_end(tmp_path: Path) -> None:
    made = machine()
    update(made, BEGIN + 40 * MS)
    made.lost(BEGIN + 60 * MS, 3)
    known, _, _ = read(made, tmp_path)
    _, error = known.convert(np.array([END]), "perf", "monotonic")
    assert 60_000 <= error[0] <= 60_002


def test_impossible_update_is_counted_and_widens_the_bound_around_it(tmp_path: Path) -> None:
    made = machine()
    for ms in (10, 20, 30):
        update(made, BEGIN + ms * MS, **({"shift": 40} if ms == 20 else {}))
    known, _, lost = read(made, tmp_path)
    _, error = known.convert(np.array([BEGIN + ms * MS for ms in (5, 25, 35)]), "perf", "monotonic")
    # 20 ms between the two good updates, at the 1000 ppm by which the clock can have been adjusted meanwhile
    assert error[0] == 0 and 20_000 <= error[1] <= 20_002 and error[2] == 0
    assert lost["clock update impossible"] == 1


def test_bound_is_wider_up_to_the_end_after_an_impossible_last_update(tmp_path: Path) -> None:
    made = machine()
    update(made, BEGIN + 40 * MS)
    update(made, BEGIN + 60 * MS, mult=0)
    known, _, lost = read(made, tmp_path)
    _, error = known.convert(np.array([BEGIN + 20 * MS, END]), "perf", "monotonic")
    assert error[0] == 0 and 60_000 <= error[1] <= 60_002
    assert lost["clock update impossible"] == 1


def test_impossible_update_of_another_timekeeper_is_nobody_s_loss(tmp_path: Path) -> None:
    made = machine()
    update(made, BEGIN + 10 * MS, shift=40, tk_id=1)
    _known, table, lost = read(made, tmp_path)
    assert "clock update impossible" not in lost and int(table["error_ns"].max()) == 0


def test_time_in_another_clocksource_is_not_converted_with_it(tmp_path: Path) -> None:
    made = machine()
    for ms in (10, 11, 12):
        update(made, BEGIN + ms * MS)
    update(made, BEGIN + 20 * MS, cs_id=1, cycle_last=12_345, mult=1 << 23)
    update(made, BEGIN + 30 * MS)
    known, _, lost = read(made, tmp_path)
    good = known.convert_masked(np.array([BEGIN + 11 * MS, BEGIN + 25 * MS, END]), "perf", "monotonic")[2]
    assert good.tolist() == [True, False, True]
    assert lost["clocksource not TSC"] == 1


def test_file_in_monotonic_serves_with_any_clocksource(tmp_path: Path) -> None:
    """kvm-clock: its counter is ns since another moment, and perf cannot offer a TSC."""
    made = machine(clockid=1)
    made.records.clear()
    for ms in (0, 10):
        then = BEGIN + ms * MS - 500
        made.sample(
            "timekeeping:timekeeping_update", BEGIN + ms * MS + MONO, cycle_last=then + 777 * NS,
            base_mono=then + MONO, base_real=then + MONO + REAL, mult=1 << 23, shift=23, tai_offset=TAI,
        )  # fmt: skip
    known, _, lost = read(made, tmp_path)
    real, _ = known.convert(np.array([BEGIN + MONO, END + MONO]), "monotonic", "realtime")
    assert (real - REAL - MONO).tolist() == [BEGIN, END] and not lost


def test_file_in_monotonic_without_updates_serves_and_says_what_it_cannot(tmp_path: Path) -> None:
    names = tuple(n for n in Recording().names if not n.startswith("timekeeping"))
    made = machine(clockid=1, names=names)
    socket(made, "sock_data_queued", BEGIN, pos=0, length=9)
    known, _, lost = read(made, tmp_path)
    assert known.domains == ("monotonic",) and lost == {"clocks not recorded": 1}


def conv_with_clock(at: int, ahead: int = 0, **more: Any) -> bytes:
    """A patched perf's record of an update at perf time ``at``."""
    fields = {
        "mono": at + MONO + ahead,
        "real": at + MONO + REAL + ahead,
        "cycles": 2 * at,
        "mult": MULT,
        "shift": SHIFT,
    }
    return time_conv(*CONV, clock=clock(at, **{**fields, **more}))


def test_clock_map_of_a_patched_perf_serves_without_the_tracepoint(tmp_path: Path) -> None:
    made = machine(names=tuple(n for n in Recording().names if not n.startswith("timekeeping")))
    made.records += [conv_with_clock(BEGIN), conv_with_clock(BEGIN + 10 * MS, ahead=40, step=True)]
    known, table, _ = read(made, tmp_path)
    assert offsets(known, [BEGIN, BEGIN + 10 * MS - 1, END], "realtime") == [
        MONO + REAL,
        MONO + REAL,
        MONO + REAL + 40,
    ]
    assert "timekeeper" in set(table["source"].astype(str))


def test_readings_of_a_patched_perf_serve_with_their_error(tmp_path: Path) -> None:
    made = machine(names=tuple(n for n in Recording().names if not n.startswith("timekeeping")))
    for ms in range(0, 101, 10):
        made.records.append(conv_with_clock(BEGIN + ms * MS, mult=0, shift=0, cycles=0, error=80))
    known, _, _ = read(made, tmp_path)
    ns, error = known.convert(np.array([BEGIN + 55 * MS]), "perf", "monotonic")
    assert abs(int(ns[0]) - BEGIN - 55 * MS - MONO) <= 1 and 80 <= error[0] <= 90


@pytest.mark.parametrize(
    ("made", "why", "fix"),
    [
        (lambda: machine(names=("sched:sched_switch",)), "nothing shows how perf's clock", "timekeeping_update"),
        (lambda: machine(clockid=0, names=("sched:sched_switch",)), "in the clock realtime", "without -k"),
    ],
)  # fmt: skip
def test_recording_whose_clocks_are_not_known_is_refused_with_the_fix(
    tmp_path: Path, made: Any, why: str, fix: str
) -> None:
    with pytest.raises(BadInput, match=why) as caught:
        read(made(), tmp_path)
    assert fix in caught.value.hint


def test_perf_clock_without_tsc_and_clocksource_without_tsc_are_refused(tmp_path: Path) -> None:
    made = machine()
    made.records = made.records[1:]  # no TIME_CONV
    with pytest.raises(BadInput, match="not based on the TSC") as caught:
        read(made, tmp_path)
    assert "-k CLOCK_MONOTONIC" in caught.value.hint
    made = Recording()
    made.records.append(time_conv(*CONV))
    update(made, BEGIN, mult=1 << 23, cycle_last=BEGIN + NS)  # counts ns: kvm-clock
    with pytest.raises(BadInput, match="clocksource was not the TSC"):
        read(made, tmp_path)


def test_readings_of_another_counter_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "clock.tsv"
    other.write_text(
        "#nsight-clock 1 tsc_khz=3000000 clocksource=tsc\nB\tmonotonic\t1\t2\t3\nE\t0\t0\t0\t0\t0\n"
    )
    with pytest.raises(BadInput, match="3000000 kHz"):
        read(machine(), tmp_path, other)


def test_event_of_a_message_outside_the_clocks_is_left_out_and_counted(tmp_path: Path) -> None:
    made = machine()
    socket(made, "sock_data_read", BEGIN - US, pos=0, length=9, tid=7)
    socket(made, "sock_data_read", BEGIN + US, pos=9, length=9, tid=7)
    switch(made, BEGIN + MS, 1, (0, b"swapper/1"), (7, b"x"))
    result = import_perf_data(made.write(tmp_path / "perf.data"))
    assert result.events == {"reads": 1}
    assert {r["cause"]: r["count"] for r in result.losses}["sock_data_read outside the clock mapping"] == 1
