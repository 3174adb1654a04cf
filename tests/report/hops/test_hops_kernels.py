# SPDX-License-Identifier: GPL-2.0-only
"""Directories of several kernels become one collection: packets followed, clocks fitted, every figure with its bound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nsight_report import hops
from nsight_report.cli import main
from nsight_report.errors import BadInput
from nsight_report.hops import layers, offsets, records
from report.hops.made_up import A_OUT, B_IN, T0, capsule, directory, record
from report.hops.test_hops import lost

#: Kernel b's clock is AHEAD_B ahead of a's, and c's is AHEAD_C ahead of b's.
AHEAD_B, AHEAD_C = 7_000_000_000_123, -3_000_000_000
#: Durations of each packet: in kernel a, on the wire, in b, on the wire to c.
TIMES = [100, 20_000, 300, 50_000]
N = 200


def way(path: Path, extra: dict[int, int] | None = None, **parts: Any) -> list[Path]:
    """Directories a, b, c of N packets a -> b -> c and N back, one ms apart; ``extra``: ns that packet n is longer on the wire a -> b."""
    bodies: dict[str, bytes] = {"a": b"", "b": b"", "c": b""}
    for n in range(N):
        at = T0 + n * 1_000_000
        _follow(bodies, "abc", at, n, TIMES[1] + (extra or {}).get(n, 0), TIMES[3])
        if parts.get("replies", True):
            _follow(bodies, "cba", at + 500_000, n, TIMES[3], TIMES[1])
    return [
        directory(path / f"{name}.capsules", body)
        for name, body in bodies.items()
        if name in parts.get("of", "abc")
    ]


def _clock(kernel: str, ns: int) -> int:
    return ns + {"a": 0, "b": AHEAD_B, "c": AHEAD_B + AHEAD_C}[kernel]


def _follow(bodies: dict[str, bytes], names: str, at: int, n: int, first_wire: int, second_wire: int) -> None:
    """One datagram, born at ``at`` of a's clock in the first kernel; it passes the second and ends in the third."""
    birth = _clock(names[0], at)
    left = at + TIMES[0]
    out = capsule(birth, [(A_OUT, birth)], n, 17)
    bodies[names[0]] += record(_clock(names[0], left), records.LEFT, 4, out, 17)
    came, gone = left + first_wire, left + first_wire + TIMES[2]
    middle = capsule(birth, [(records.ELSEWHERE, _clock(names[0], left)), (1, _clock(names[1], came))], n, 17)
    bodies[names[1]] += record(_clock(names[1], gone), records.LEFT, 6 if names == "abc" else 4, middle, 17)
    end = capsule(birth, [(records.ELSEWHERE, _clock(names[1], gone))], n, 17)
    bodies[names[2]] += record(_clock(names[2], gone + second_wire), records.END, B_IN, end, 17)


def test_a_packet_is_followed_through_three_kernels(tmp_path: Path) -> None:
    """Each wire takes as long there as back, so the estimate is close, and the bound equals that time.

    At its ends the fit has packets of one direction only, so both are less exact by some hundred ns.
    """
    c = hops.load_all(way(tmp_path))
    assert lost(c) == {}
    assert len(c.packets) == 2 * N
    assert c.packets["arrived"].all()
    assert c.kernels == ("a", "b", "c")
    first = c.hops[c.hops["packet"] == 0]
    assert first["point"].tolist() == [
        "a/a:eth0 out",
        "a/h:va out",
        "b/a:eth0 in",
        "b/h:vb out",
        "c/b:eth0 in",
    ]
    assert first["ts_ns"].tolist() == [pytest.approx(T0 + sum(TIMES[:k]), abs=600, rel=0) for k in range(5)]
    assert first["clock"].tolist() == [0, 0, 1, 1, 2]
    bounds = [0, 0, *(pytest.approx(b, abs=600) for b in (TIMES[1], TIMES[1], TIMES[1] + TIMES[3]))]
    assert first["bound_ns"].tolist() == bounds
    # Sent by c, in a's clock; the bound of its latency is that of c against a.
    (reply,) = c.packets[c.packets["packet"] == 1].to_dict("records")
    assert reply["born_ns"] == pytest.approx(T0 + 500_000, abs=600, rel=0)
    assert reply["latency_ns"] == pytest.approx(sum(TIMES), abs=600)
    assert reply["bound_ns"] == pytest.approx(TIMES[1] + TIMES[3], abs=1200)
    assert c.arrow("packets").num_rows == 2 * N
    assert c.arrow("hops").num_rows == 10 * N


def test_layers_within_a_kernel_are_exact_and_those_between_have_the_bound_of_their_two(
    tmp_path: Path,
) -> None:
    c = hops.load_all(way(tmp_path))
    rows = layers.passages(c)
    assert rows[rows["packet"] == 0]["dur_ns"].tolist() == [
        TIMES[0], pytest.approx(TIMES[1], abs=600), TIMES[2], pytest.approx(TIMES[3], abs=600)
    ]  # fmt: skip
    assert rows[rows["packet"] == 0]["bound_ns"].tolist() == [
        0, pytest.approx(TIMES[1], abs=600), 0, pytest.approx(TIMES[3], abs=600)
    ]  # fmt: skip
    words = layers.words(c, rows)
    assert words["a/h:va out -> b/a:eth0 in"] == "queue, driver and device from a to b"
    assert (rows.groupby("packet")["dur_ns"].sum() == c.packets["latency_ns"]).all()


def test_the_wire_that_delays_is_named_with_its_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four packets of 400 take 3 ms longer: 1 %. Asymmetry does not change how much longer they take than others."""
    paths = way(tmp_path, {50: 3_000_000, 51: 3_000_000, 120: 3_000_000, 121: 3_000_000})
    assert main(["hops", *map(str, paths), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    first = made["layers"][0]
    assert first["layer"] == "a/h:va out -> b/a:eth0 in"
    assert first["share"] > 0.99
    assert made["n_slow"] == 4
    assert made["slow_excess_ns"] == pytest.approx(3_000_000, abs=first["excess_bound_ns"])
    assert [c["kernel"] for c in made["clocks"]] == ["b", "c"]
    assert made["clocks"][0]["bound_ns"] == pytest.approx(TIMES[1], abs=600)
    assert main(["hops", *map(str, paths)]) == 0
    said = capsys.readouterr().out
    assert "clock of b against a: bound 20." in said
    assert "in queue, driver and device from a to b" in said


def test_without_replies_the_offset_is_unknown_and_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = way(tmp_path, {9: 1_000_000, 10: 1_000_000}, replies=False)
    c = hops.load_all(paths)
    assert lost(c) == {"hops_clocks_one_way": 2}
    assert set(c.packets["bound_ns"]) == {offsets.UNKNOWN}
    rows = layers.passages(c)
    wire = rows[rows["layer"] == "a/h:va out -> b/a:eth0 in"]["dur_ns"]
    assert sorted(wire)[:-2] == pytest.approx([0] * (N - 2), abs=2)
    assert sorted(wire)[-2:] == pytest.approx([1_000_000] * 2, abs=2)
    assert main(["hops", *map(str, paths)]) == 0
    assert "above the smallest" in capsys.readouterr().out


def test_what_nobody_saw_leave_or_arrive_is_counted(tmp_path: Path) -> None:
    """Without b nothing connects a and c; without c packets end where they leave b, because no record exists beyond b."""
    paths = way(tmp_path)
    with pytest.raises(BadInput, match=r"c\.capsules: no packet went"):
        hops.load_all([paths[0], paths[2]])
    c = hops.load_all(paths[:2])
    assert lost(c) == {"hops_came_from_unknown": N}
    assert c.packets["arrived"].all()
    assert len(c.packets) == 2 * N


def test_a_packet_that_is_lost_between_kernels_did_not_arrive(tmp_path: Path) -> None:
    paths = way(tmp_path)
    whole = (paths[2] / "capsules").read_bytes()
    size = records.RECORD.itemsize
    kept = [
        whole[64 + k * size :][:size] for k in range(2 * N) if k != 0
    ]  # c saw the first request as its first record
    (paths[2] / "capsules").write_bytes(whole[:64] + b"".join(kept))
    c = hops.load_all(paths)
    assert lost(c) == {"hops_left_not_seen": 1}
    assert c.packets["arrived"].tolist() == [False] + [True] * (2 * N - 1)


def test_forged_crossings_in_a_circle_end(tmp_path: Path) -> None:
    """A packet of which each of two kernels says that it came from the other."""
    paths = way(tmp_path, of="ab")
    bodies = []
    for k, other in ((0, 1), (1, 0)):
        times = [T0 + 5_000_000_000 + 1000 * i for i in (k, other)]
        body = capsule(T0, [(records.ELSEWHERE, times[1])], 9, 17)
        bodies.append(record(times[0], records.LEFT, 4, body, 17))
    for path, body in zip(paths, bodies):
        with (path / "capsules").open("ab") as file:
            file.write(body)
    assert len(hops.load_all(paths).packets) >= 2 * N


@pytest.mark.parametrize("wrong", ["match", "twice"])
def test_directories_that_cannot_be_joined_are_errors_with_their_fix(tmp_path: Path, wrong: str) -> None:
    paths = way(tmp_path)
    if wrong == "match":
        paths.append(directory(tmp_path / "m", record(T0, records.MATCH, B_IN, b"12345678") * 2))
    else:
        paths.append(paths[0])
    with pytest.raises(BadInput) as error:
        hops.load_all(paths)
    assert error.value.hint


def drawn(
    seed: int, drift: float, n: int = 20_000
) -> tuple[offsets.Offset, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A fit of packets with delays from 20 us there and from 90 us back; times, and the true offsets at these times."""
    numbers = np.random.default_rng(seed)
    there, back = (np.sort(numbers.integers(0, 30_000_000_000, n)) + T0 for _ in range(2))

    def true(ns: Any) -> Any:
        return AHEAD_B + ((ns - T0) * drift).astype(np.int64)

    came = there + 20_000 + numbers.exponential(50_000, n).astype(np.int64)
    home = back + 90_000 + numbers.exponential(90_000, n).astype(np.int64)
    fit = offsets.fit(
        (there, came + true(came)),
        (back + true(back), home),
        (T0, T0 + 30_000_000_000),
        (T0 + AHEAD_B, T0 + AHEAD_B + 30_000_000_000),
    )
    return fit, there, true(there)


@pytest.mark.parametrize("drift", [0.0, 40e-6, -400e-6])
def test_the_true_offset_is_within_the_bound_which_is_half_of_both_smallest_delays(drift: float) -> None:
    """(20 + 90) / 2 = 55 us; the estimate is wrong by half their difference, which the packets cannot show."""
    fit, at, true = drawn(3, drift)
    offset, bound = fit.of(at)
    assert (np.abs(offset - true) <= bound).all()
    assert bound.max() < 57_000
    assert np.median(offset - true) == pytest.approx(-35_000, abs=1_500)
    assert fit.drift() == pytest.approx(drift, abs=2e-7)
    assert fit.contradictions == 0
    assert np.abs(fit.back_to_a(at + offset)[0] - at).max() <= 1


def test_a_stepped_clock_gets_a_line_on_each_side_and_a_bound_that_covers_the_step() -> None:
    numbers = np.random.default_rng(4)
    there, back = (np.sort(numbers.integers(0, 10_000_000_000, 2000)) + T0 for _ in range(2))

    def true(ns: Any) -> Any:
        return np.where(ns < T0 + 3_100_000_000, 0, 2_000_000)

    came, home = there + 30_000, back + 30_000
    fit = offsets.fit((there, came + true(came)), (back + true(back), home), *[(T0, T0 + 10_000_000_000)] * 2)
    at = T0 + np.arange(0, 10_000_000_000, 1_000_000)
    offset, bound = fit.of(at)
    assert (np.abs(offset - true(at)) <= bound + 1).all()
    assert np.median(bound) < 40_000
    assert fit.contradictions


def test_a_step_that_packets_of_one_direction_saw_makes_the_offset_unknown_there() -> None:
    """Replies exist only after the step: before it, nothing shows how much of a delay is offset."""
    numbers = np.random.default_rng(5)
    there = np.sort(numbers.integers(0, 10_000_000_000, 500)) + T0
    back = np.sort(numbers.integers(5_000_000_000, 10_000_000_000, 500)) + T0

    def true(ns: Any) -> Any:
        return np.where(ns < T0 + 4_000_000_000, 0, 2_000_000_000)

    came, home = there + 30_000, back + 30_000
    span = (T0, T0 + 10_000_000_000)
    fit = offsets.fit((there, came + true(came)), (back + true(back), home), span, span)
    at = T0 + np.arange(0, 10_000_000_000, 1_000_000)
    offset, bound = fit.of(at)
    known = bound != offsets.UNKNOWN
    assert (np.abs(offset - true(at)) <= bound + 1)[known].all()
    assert not known[at < T0 + 4_000_000_000].any()
    assert known[at > T0 + 5_100_000_000].all()
    assert np.median(bound[known]) < 40_000
    assert fit.wander_ns == offsets.UNKNOWN
    assert fit.contradictions


def test_beyond_the_packets_the_bound_grows_with_what_clocks_may_drift() -> None:
    """A second of packets, and hops of b that are 100 s later: they are in a's clock within their bound."""
    numbers = np.random.default_rng(6)
    there, back = (np.sort(numbers.integers(0, 1_000_000_000, 200)) + T0 for _ in range(2))

    def true(ns: Any) -> Any:
        return AHEAD_B + ((ns - T0) * 400e-6).astype(np.int64)

    came = there + 20_000 + numbers.exponential(50_000, 200).astype(np.int64)
    home = back + 90_000 + numbers.exponential(90_000, 200).astype(np.int64)
    span = (T0, T0 + 1_000_000_000)
    late = np.arange(T0, T0 + 100_000_000_000, 1_000_000_000)
    of_b = int(late[0] + true(late)[0]), int(late[-1] + true(late)[-1])
    fit = offsets.fit((there, came + true(came)), (back + true(back), home), span, of_b)
    found, bound = fit.back_to_a(late + true(late))
    assert (np.abs(found - late) <= bound).all()
    assert bound[0] < 100_000


@pytest.mark.parametrize("rate", [1, 10])
def test_times_of_a_clock_that_runs_away_are_converted_back(rate: int) -> None:
    """Clock b stands 5 s ahead, and then runs ``rate`` times as fast: no step towards the answer is nearer by the drift."""
    at = np.array([T0, T0 + 1_000_000_000, T0 + 3_000_000_000])
    middle = np.array([0.0, 0.0, 2e9 * (rate - 1)])
    offset = offsets.Offset(at, middle - 10, middle + 10, 5_000_000_000, 9, 9, 20, 0)
    a = T0 + np.arange(-1_000, 3_000_000_000, 7_654_321)
    found, bound = offset.back_to_a(a + offset.of(a)[0])
    assert np.abs(found - a).max() <= 1
    assert set(bound) == {11}


def test_damaged_files_of_several_kernels_give_a_report_or_an_error_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes of good records are changed, mostly times: the only part of the file without a checksum."""
    numbers = np.random.default_rng(8)
    paths = way(tmp_path, {9: 1_000_000})
    whole = [(path / "capsules").read_bytes() for path in paths]
    size = records.RECORD.itemsize
    codes = set()
    for _ in range(10):
        for path, data in zip(paths, whole):
            damaged = bytearray(data[: numbers.integers(64, len(data))])
            for _ in range(numbers.integers(1, 60)):
                at = (
                    64
                    + numbers.integers(0, 2 * N) * size
                    + numbers.integers(0, 8 if numbers.random() < 0.7 else size)
                )
                if at < len(damaged):
                    damaged[at] = numbers.integers(0, 256)
            (path / "capsules").write_bytes(damaged)
        codes.add(main(["hops", *map(str, paths), "--json"]))
        said = capsys.readouterr()
        assert "internal error" not in said.err, said.err
    assert 0 in codes
    assert codes <= {0, 3}
