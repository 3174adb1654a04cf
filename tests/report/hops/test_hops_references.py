# SPDX-License-Identifier: GPL-2.0-only
"""The clocks of two kernels by a clock that both have read: exact within what is known of its error, or not used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nsight_report import hops
from nsight_report.cli import main
from nsight_report.hops import layers, records, references
from report.hops.made_up import A_OUT, B_IN, T0, capsule, record
from report.hops.test_hops import lost
from report.hops.test_hops_kernels import AHEAD_B, AHEAD_C, TIMES, way

#: Kernel a is a guest of c: its TSC is 3/2 of the host's, minus this.
OFFSET = -123_456_789_000
GUESTS = {"a": {"offset": OFFSET, "ratio": 3 << 47, "ratio_bits": 48}}
#: A reading takes that long, with the value in its middle.
TAKES = 200
AHEAD = {"a": 0, "b": AHEAD_B, "c": AHEAD_B + AHEAD_C}


def readings(ahead: int, value: Any, every: int = 50_000_000, n: int = 7) -> list[list[int]]:
    """Readings from 50 ms before the first packet on; ``value``: of the clock, at a time of a's clock."""
    times = [T0 - 50_000_000 + i * every for i in range(n)]
    return [[at + ahead - TAKES // 2, value(at), at + ahead + TAKES // 2] for at in times]


def with_common(paths: list[Path], **by_name: Any) -> list[Path]:
    for path in paths:
        name = path.name.removesuffix(".capsules")
        file = path / "manifest.json"
        made = json.loads(file.read_text()) | {
            "common": by_name.get(name),
            "host": {"boot_id": f"boot of {name}"},
        }
        file.write_text(json.dumps(made))
    return paths


def ptp(name: str, wrong: int = 0, bound_ns: int = 30, **of: Any) -> dict[str, Any]:
    """What nsight-capsule writes about a PTP clock that is off by ``wrong`` in this kernel."""
    return {"clock": {"name": "/dev/ptp0", "bound_ns": bound_ns},
            "readings": {"common": readings(AHEAD[name], lambda at: 1_800_000_000 * 10**9 + at + wrong, **of)}}  # fmt: skip


def tsc(name: str, guests: dict[str, Any]) -> dict[str, Any]:
    """TSCs of 2 GHz; a's is what KVM makes of c's."""

    def value(at: int) -> int:
        return (2 * at * 3 >> 1) + OFFSET if name == "a" else 2 * at

    return {"clock": None, "readings": {"tsc": readings(AHEAD[name], value)}, "guests": guests}


def bound_of(c: hops.Collection, kernel: int) -> int:
    """The largest bound for the packets' times."""
    ns = c.hops.loc[c.hops["clock"] == kernel, "ts_ns"].to_numpy(np.int64)
    return int(c.crossings[kernel].offset.of(ns)[1].max())


@pytest.mark.parametrize("replies", [True, False], ids=["both-ways", "one-way"])
def test_a_common_clock_shows_the_offset_whatever_way_packets_went(tmp_path: Path, replies: bool) -> None:
    """Its error: two brackets of 200 ns, half of both, and 30 ns in each kernel; c has no such clock."""
    c = hops.load_all(with_common(way(tmp_path, replies=replies), a=ptp("a"), b=ptp("b", wrong=25)))
    assert c.crossings[1].offset.by == "common"
    assert c.crossings[2].offset.by == ""
    assert 0 <= bound_of(c, 1) - (TAKES + 2 * 30) <= 2
    rows = layers.passages(c)
    wire = rows[rows["layer"] == "a/h:va out -> b/a:eth0 in"]
    assert (np.abs(wire["dur_ns"] - TIMES[1]) <= 25 + 2).all()
    assert (wire["bound_ns"] == bound_of(c, 1)).all()
    assert set(lost(c)) == (set() if replies else {"hops_clocks_one_way"})


def test_a_guest_s_tsc_is_converted_into_its_host_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """a is a guest of c, and packets go through b. Two TSCs without that relation are not compared."""
    paths = way(tmp_path, of="ab")
    renamed = paths[1].rename(tmp_path / "host.capsules")
    ahead_of_c, AHEAD["host"] = AHEAD["c"], AHEAD_B
    try:
        with_common([paths[0], renamed], a=tsc("a", {}), host=tsc("host", GUESTS))
        c = hops.load_all([paths[0], renamed])
        assert c.crossings[1].offset.by == "tsc"
        assert 0 <= bound_of(c, 1) - TAKES <= 3
        assert main(["hops", str(paths[0]), str(renamed)]) == 0
        assert "(by the TSC, which both read)" in capsys.readouterr().out
        with_common([paths[0], renamed], a=tsc("a", {}), host=tsc("host", {}))
        assert hops.load_all([paths[0], renamed]).crossings[1].offset.by == ""
    finally:
        AHEAD["c"] = ahead_of_c
        del AHEAD["host"]


def test_a_clock_by_which_packets_arrive_before_they_were_sent_is_not_used(tmp_path: Path) -> None:
    """b's copy of it is 25 us behind, and packets take 20 us."""
    wrong = hops.load_all(with_common(way(tmp_path, of="ab"), a=ptp("a"), b=ptp("b", wrong=25_000)))
    assert wrong.crossings[1].offset.by == ""
    assert lost(wrong)["hops_common_clock_wrong"] == 1
    assert bound_of(wrong, 1) == pytest.approx(TIMES[1], abs=600)


def test_a_clock_that_is_less_exact_than_packets_is_not_used(tmp_path: Path) -> None:
    c = hops.load_all(with_common(way(tmp_path, of="ab"), a=ptp("a", bound_ns=40_000), b=ptp("b")))
    assert c.crossings[1].offset.by == ""
    assert "hops_common_clock_wrong" not in lost(c)


def test_the_bound_has_how_much_the_readings_bend() -> None:
    """b's clock gains 10 us for each of two intervals, then nothing: at the bend it is 5 us off the line between its neighbours."""
    at = np.arange(6, dtype=np.int64) * 1_000_000
    bent = at + np.array([0, 10, 20, 20, 20, 20], np.int64) * 1_000
    a = references.Readings(at[:-1] + 500_000, at[:-1] + 500_000, at[:-1] + 500_000)
    found = references.offset(a, references.Readings(bent, at, bent), (0, 5_000_000), (0, 5_000_000))
    assert found
    offset, bound = found.of(a.value)
    assert offset.tolist() == [5_000, 15_000, 20_000, 20_000, 20_000]
    assert bound.tolist() == [1, 5_001, 5_001, 1, 1]


def test_beyond_the_readings_the_bound_grows_with_what_clocks_may_drift() -> None:
    """The readings are from 1 to 5 ms, and the first time that is asked for is 1 ms earlier: 1 us more."""
    at = np.arange(1, 6, dtype=np.int64) * 1_000_000
    of = references.Readings(at, at, at)
    found = references.offset(of, of, (0, 7_000_000), (0, 7_000_000))
    assert found
    assert found.of(np.array([0, 1_000_000, 5_000_000, 7_000_000]))[1].tolist() == [1_001, 1, 1, 2_001]


def test_a_kernel_that_was_recorded_for_longer_does_not_make_a_clock_useless(tmp_path: Path) -> None:
    """b saw a packet 10 s before the others: there the bound is 10 ms more. But packets passed between a and b later."""
    paths = with_common(way(tmp_path, of="ab"), a=ptp("a"), b=ptp("b"))
    early = T0 + AHEAD_B - 10_000_000_000
    body = record(early, records.END, B_IN, capsule(early - 5, [(A_OUT, early - 3)], 9_999, 17), 17)
    with (paths[1] / "capsules").open("ab") as file:
        file.write(body)
    c = hops.load_all(paths)
    assert c.crossings[1].offset.by == "common"
    crossed = c.packets[c.packets["length"].gt(0) & (c.packets["born_ns"] >= T0)]
    assert crossed["bound_ns"].max() <= TAKES + 2 * 30 + 2


@pytest.mark.parametrize("raw", [
    None, [], {"readings": 7}, {"readings": {"tsc": [[1, 2]], "common": [["a", 1, 2]], "else": []}},
    {"readings": {"tsc": [[1, 1 << 80, 2], [5, 1, 4]], "common": [[1, 2, 3]]}, "clock": {"bound_ns": -1}},
    {"guests": {"a": {"offset": 1, "ratio": 0, "ratio_bits": 48}, "b": 7, "c": {"offset": 1, "ratio": 1, "ratio_bits": 1 << 40}}},
])  # fmt: skip
def test_what_no_recorder_writes_is_left_out(raw: Any) -> None:
    found = references.of(raw)
    assert not any(found.readings.values())
    assert found.guests == {}


def test_readings_of_a_clock_that_was_set_are_not_used() -> None:
    """It went back once."""
    rows = [(10, 100, 11), (20, 200, 21), (30, 150, 31), (40, 250, 41)]
    one = references.Kernel("a", "x", references.References({"common": rows}))
    other = references.Kernel(
        "b", "y", references.References({"common": sorted(rows, key=lambda r: r[1])[:1]})
    )
    assert references.pairs(one, other, [one, other]) == []
    assert references.pairs(one, one, [one]) == []
