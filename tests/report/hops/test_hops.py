# SPDX-License-Identifier: GPL-2.0-only
"""Records of nsight-stamp become packets, hops and layers; what is wrong with them is counted."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from nsight_report import hops
from nsight_report.cli import main
from nsight_report.errors import BadInput
from nsight_report.hops import layers, records
from report.hops.made_up import (
    A_OUT,
    B_IN,
    DEVICES,
    SESSION,
    T0,
    VA_IN,
    VB_OUT,
    capsule,
    directory,
    manifest,
    record,
    segment,
)


def lost(collection: hops.Collection) -> dict[str, int]:
    return {row["key"]: row["count"] for row in collection.losses.to_pylist()}


def test_times_of_32_bits_are_completed_across_their_end(tmp_path: Path) -> None:
    """Born 1000 ns before the low bits wrap around, collected 3000 ns after."""
    body = segment(T0, T0 + 500, T0 + 1500, T0 + 2500, T0 + 4000)
    c = hops.load(directory(tmp_path / "d", body))
    assert lost(c) == {}
    assert c.hops["ts_ns"].tolist() == [T0, T0 + 500, T0 + 1500, T0 + 2500, T0 + 4000]
    assert c.hops["number"].tolist() == [0, A_OUT, VA_IN, VB_OUT, B_IN]
    assert c.hops["point"].tolist() == ["socket", "a:eth0 out", "h:va in", "h:vb out", "b:eth0 in"]
    assert c.hops["flags"].tolist() == [1, 1, 1, 1, 0]  # the last one was not written into the packet
    (packet,) = c.packets.to_dict("records")
    assert (packet["born_ns"], packet["last_ns"], packet["latency_ns"]) == (T0, T0 + 4000, 4000)
    assert (packet["saddr"], packet["sport"], packet["daddr"], packet["dport"]) == (
        "10.0.0.1",
        4000,
        "10.0.0.2",
        80,
    )
    assert packet["arrived"]
    assert not packet["again"]
    assert c.arrow("packets").num_rows == 1
    assert c.arrow("hops").num_rows == 5


def test_the_third_slot_can_be_the_annotation_instead_of_a_point(tmp_path: Path) -> None:
    """Bits 2 and 13: veth is kind 1, tunnel 6. A time in it would be later than the record."""
    stamps = [(VA_IN, T0 + 20), (VB_OUT, T0 + 30), (31, 1 << 2 | 1 << 13)]
    some = record(T0 + 40, records.END, B_IN, capsule(T0, stamps, 9, 6))
    none = record(T0 + 60, records.END, B_IN, capsule(T0 + 50, [(0, 0), (0, 0), (31, 0)], 10, 6))
    wrong = record(T0 + 80, records.END, B_IN, capsule(T0 + 70, [(VA_IN, T0 + 71), (30, 0)], 11, 6))
    c = hops.load(
        directory(
            tmp_path / "d", some + none + wrong + segment(T0, T0 + 1, T0 + 2, T0 + 3, T0 + 4), version=2
        )
    )
    assert lost(c) == {"hops_capsules_damaged": 1}
    assert dict(c.packets["at"].value_counts()) == {"veth:in, tunnel:out": 1, "none": 1, "all": 1}
    of = c.packets.set_index("at")["packet"]
    for at, ways in (("veth:in, tunnel:out", [0, VA_IN, VB_OUT, B_IN]), ("none", [0, B_IN])):
        assert c.hops.loc[c.hops["packet"] == of[at], "number"].tolist() == ways
    assert c.arrow("packets").column("at").null_count == 0


def test_a_segment_that_a_device_above_gets_as_well_is_one_packet_with_that_hop(tmp_path: Path) -> None:
    """31 in the second slot: it arrived at VB_OUT. Its arrival lies between birth and record, and slots after it are filled from then on."""
    stamps = [(VA_IN, T0 + 10)]
    first = record(T0 + 20, records.END, VB_OUT, capsule(T0, stamps, 9, 6), seq=9)
    above = record(T0 + 40, records.END, B_IN, capsule(T0, [(A_OUT, T0 + 30), (31, T0 + 20)], 9, 6), seq=9)
    # Born after it arrived; stamped before it; the third slot filled and the first one empty.
    early = record(T0 + 80, records.END, B_IN, capsule(T0 + 70, [(0, 0), (31, T0 + 69)], 11, 6), seq=11)
    late = record(
        T0 + 80, records.END, B_IN, capsule(T0 + 70, [(A_OUT, T0 + 71), (31, T0 + 72)], 12, 6), seq=12
    )
    gap = record(
        T0 + 80, records.END, B_IN, capsule(T0 + 70, [(0, 0), (31, T0 + 72), (A_OUT, T0 + 73)], 13, 6), seq=13
    )
    c = hops.load(directory(tmp_path / "d", above + first + early + late + gap))
    assert lost(c) == {"hops_times_out_of_order": 2, "hops_capsules_damaged": 1}
    assert c.hops["number"].tolist() == [0, VA_IN, VB_OUT, A_OUT, B_IN]
    assert c.hops["ts_ns"].tolist() == [T0, T0 + 10, T0 + 20, T0 + 30, T0 + 40]
    assert c.packets["latency_ns"].tolist() == [40]


def test_a_layer_over_points_that_an_annotation_leaves_out_is_not_called_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the sender's socket to b, over four points: not only the sending stack."""
    none = b"".join(
        record(T0 + 1000 * i + 40, records.END, B_IN, capsule(T0 + 1000 * i, [(0, 0), (0, 0), (31, 0)], i, 6))
        for i in range(9)
    )
    path = str(directory(tmp_path / "d", none, version=2))
    assert main(["hops", path, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert [layer["what"] for layer in made["layers"]] == ["all from socket to b:eth0 in"]
    assert main(["hops", path]) == 0
    assert "timestamps between birth and end: 9 at none" in capsys.readouterr().out


def test_packets_of_a_kernels_first_seconds_count(tmp_path: Path) -> None:
    """A guest boots within the 4.3 s of 32 bits; a birth time later than the current time is invalid."""
    early = segment(1_000_000, 1_000_500, 1_001_500, 1_002_500, 1_004_000)
    later = segment(1_005_000, 1_000_500, 1_001_500, 1_002_500, 1_004_000, seq=2000)
    c = hops.load(directory(tmp_path / "d", early + later))
    assert c.hops["ts_ns"].tolist() == [1_000_000, 1_000_500, 1_001_500, 1_002_500, 1_004_000]
    assert lost(c) == {"hops_times_out_of_order": 1}


def test_a_packet_whose_slots_were_emptied_on_the_way_is_one_packet(tmp_path: Path) -> None:
    """vb's record has the hops written before it; b's record, which comes first in the file, has none."""
    dump = record(T0 + 30, records.DUMP, VB_OUT, capsule(T0, [(A_OUT, T0 + 10), (VA_IN, T0 + 20)], 9, 17), 17)
    end = record(T0 + 40, records.END, B_IN, capsule(T0, [], 9, 17), 17)
    c = hops.load(directory(tmp_path / "d", end + dump))
    assert c.hops["ts_ns"].tolist() == [
        T0 + 10,
        T0 + 20,
        T0 + 30,
        T0 + 40,
    ]  # a datagram is born at its first point
    assert c.packets["born_ns"].tolist() == [T0 + 10]
    assert c.packets["arrived"].tolist() == [True]


def test_packets_of_one_time_are_told_by_their_number_and_never_seen_ones_did_not_arrive(
    tmp_path: Path,
) -> None:
    first, second = (
        record(T0 + 9, records.DUMP, VB_OUT, capsule(T0, [(A_OUT, T0 + 5)], n, 17), 17) for n in (1, 2)
    )
    c = hops.load(directory(tmp_path / "d", first + second + segment(T0, *[T0 + 7] * 4, again=1)))
    assert len(c.packets) == 3
    assert sorted(c.packets["arrived"]) == [False, False, True]
    assert c.packets[c.packets["again"]]["proto"].tolist() == [6]


def test_a_packet_that_ends_twice_has_each_stamp_once(tmp_path: Path) -> None:
    """Behind DNAT: collected at the router, and 100 ns later at the container, with the same slots."""
    times = [(A_OUT, T0 + 10), (VA_IN, T0 + 20)]
    router = record(T0 + 30, records.END, 5, capsule(T0, times, 1000, 6))
    end = record(T0 + 130, records.END, B_IN, capsule(T0, times, 1000, 6))
    c = hops.load(directory(tmp_path / "d", router + end))
    assert c.hops["ts_ns"].tolist() == [T0, T0 + 10, T0 + 20, T0 + 30, T0 + 130]
    assert c.packets["latency_ns"].tolist() == [130]


GOOD = segment(T0, T0 + 1, T0 + 2, T0 + 3, T0 + 4)
WRONG = {
    "hops_capsules_damaged": [
        segment(T0, T0 + 1, T0 + 2, T0 + 3, T0 + 4, sum=1),
        segment(T0, T0 + 1, T0 + 2, T0 + 3, T0 + 4, session=SESSION ^ 1),
        record(T0 + 4, records.END, B_IN, capsule(T0, [(0, 0), (VA_IN, T0)], 1000, 6)),
        record(T0 + 4, records.END, B_IN, capsule(T0, [(9, T0)], 1000, 6)),
        record(T0 + 4, records.END, B_IN, capsule(T0, [], 1000, 17, 100), 17, length=101),
        record(T0 + 4, records.END, B_IN, b"\xff" * 28),
    ],
    "hops_times_out_of_order": [
        segment(T0, T0 + 2, T0 + 1, T0 + 3, T0 + 4),
        segment(T0 + 1, T0, T0 + 2, T0 + 3, T0 + 4),
        segment(T0, T0 + 1, T0 + 2, T0 + 5, T0 + 4),
        record(1, records.END, B_IN, capsule(T0, [], 1000, 6)),
    ],
    "hops_records_impossible": [
        record(T0, 9, B_IN, capsule(T0, [], 1000, 6)),
        record(T0, records.END, 0, capsule(T0, [], 1000, 6)),
        record(T0, records.END, 9, capsule(T0, [], 1000, 6)),
        record(T0, records.END, B_IN, capsule(T0, [], 1000, 6), proto=1),
        record(1 << 63, records.END, B_IN, capsule(T0, [], 1000, 6)),
        record(0, records.END, B_IN, capsule(T0, [], 1000, 6)),
        record(T0, records.MATCH, B_IN, b"12345678"),
    ],
}


@pytest.mark.parametrize(("key", "body"), [(key, body) for key, bodies in WRONG.items() for body in bodies])
def test_records_that_cannot_be_are_left_out_and_counted(tmp_path: Path, key: str, body: bytes) -> None:
    c = hops.load(
        directory(tmp_path / "d", GOOD + body + GOOD.replace(b"\x03\0\0\0\0\0\0\0", b"\x04\0\0\0\0\0\0\0"))
    )
    assert lost(c) == {key: 1}
    assert len(c.packets) == 1


def test_a_file_that_ends_within_a_record_is_read_up_to_there(tmp_path: Path) -> None:
    c = hops.load(directory(tmp_path / "d", GOOD + GOOD[:50], state="recording", counted=None))
    assert lost(c) == {"capsules_were_cut": 1, "hops_file_cut": 1}
    assert len(c.packets) == 1
    assert c.counts == {}


def test_what_nsight_stamp_counted_is_in_the_losses(tmp_path: Path) -> None:
    counts = {
        "3": {"dump_lost": 4, "forged": 1},
        "7": {"end_lost": 2, "dump_lost": 1},
        "31": {"taken_off": 6},
        "99": {"end_lost": 5},
        "x": 3,
    }
    c = hops.load(directory(tmp_path / "d", GOOD, counted={"counts": counts}))
    assert lost(c) == {
        "capsule_dump_lost": 5,
        "capsule_forged": 1,
        "capsule_end_lost": 2,
        "capsule_taken_off": 6,
    }


def test_devices_that_came_while_it_ran_and_were_not_covered_are_in_the_losses(tmp_path: Path) -> None:
    came = {"unguarded": ["h1:vpn", "h2:vpn"], "no_points": ["h1:v9"]}
    c = hops.load(directory(tmp_path / "d", GOOD, **came))
    assert lost(c) == {"capsule_unguarded": 2, "capsule_no_points": 1}
    assert lost(hops.load(directory(tmp_path / "e", GOOD, unguarded=7))) == {}


@pytest.mark.parametrize(
    "changed",
    [
        {"format": "nsight-capture"},
        {"version": 3},
        {"version": True},
        {"points": []},
        {"points": "none"},
        {"points": [{"number": 1}] * 3},
        {"points": [*manifest()["points"][:2], 7]},
        {"points": manifest()["points"] * 4},
    ],
)
def test_a_manifest_of_something_else_is_an_error_with_its_fix(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    with pytest.raises(BadInput) as error:
        hops.load(directory(tmp_path / "d", GOOD, **changed))
    assert error.value.hint


def test_files_of_something_else_are_errors(tmp_path: Path) -> None:
    path = directory(tmp_path / "d", GOOD)
    for data in (
        b"",
        b"NSIGHTC1",
        b"NSIGHTR1" + b"\0" * 200,
        b"NSIGHTC1" + struct.pack("<II", 95, 1) + b"\0" * 200,
    ):
        (path / "capsules").write_bytes(data)
        with pytest.raises(BadInput):
            hops.load(path)
    (path / "capsules").unlink()
    (path / "capsules").symlink_to("/dev/zero")
    with pytest.raises(BadInput):
        hops.load(path)


def test_damaged_files_give_tables_or_an_error_and_nothing_else(tmp_path: Path) -> None:
    """Random bytes of a good file are changed; everything that remains must be explainable."""
    numbers = random.Random(5)
    body = b"".join(
        segment(T0 + n * 9000, *(T0 + n * 9000 + k for k in (1, 2, 3, 4)), seq=n) for n in range(20)
    )
    path = directory(tmp_path / "d", body)
    whole = (path / "capsules").read_bytes()
    for _ in range(200):
        damaged = bytearray(whole[: numbers.randrange(60, len(whole))])
        for _ in range(numbers.randrange(1, 40)):
            damaged[numbers.randrange(len(damaged))] = numbers.randrange(256)
        (path / "capsules").write_bytes(damaged)
        try:
            c = hops.load(path)
        except BadInput:
            continue
        rows = layers.passages(c)
        assert (rows["dur_ns"] >= 0).all()
        c.arrow("hops"), c.arrow("packets"), layers.bursts(c.packets), layers.by_second(c.packets)


def sightings(*rows: tuple[int, int, int]) -> bytes:
    """Records made from (ns, point, key)."""
    return b"".join(record(ns, records.MATCH, point, struct.pack("<Q", key), 17) for ns, point, key in rows)


def test_the_nth_packet_with_a_key_is_the_nth_at_each_point(tmp_path: Path) -> None:
    """Key 5 twice at three points each; the second packet overtakes the first nowhere."""
    rows = [(T0 + 100 * n + p, p, 5) for n in (0, 1) for p in (A_OUT, VA_IN, B_IN)]
    c = hops.load(directory(tmp_path / "d", sightings(*rows[::-1])))
    assert c.match
    assert lost(c) == {}
    assert c.hops["packet"].tolist() == [0, 0, 0, 1, 1, 1]
    assert c.packets["born_ns"].tolist() == [T0 + A_OUT, T0 + 100 + A_OUT]
    assert c.packets["latency_ns"].tolist() == [B_IN - A_OUT] * 2


def test_keys_that_points_saw_differently_often_are_doubtful_and_single_ones_alone(tmp_path: Path) -> None:
    """Key 5: twice at a, once at b, 3 sightings. Key 6: at a only. Key 7 is good."""
    rows = [
        (T0, A_OUT, 5),
        (T0 + 1, A_OUT, 5),
        (T0 + 2, B_IN, 5),
        (T0 + 3, A_OUT, 6),
        (T0 + 4, A_OUT, 7),
        (T0 + 5, B_IN, 7),
    ]
    c = hops.load(directory(tmp_path / "d", sightings(*rows)))
    assert lost(c) == {"hops_match_doubtful": 3, "hops_match_alone": 1}
    assert c.packets["latency_ns"].tolist() == [1]


def ways(tmp_path: Path, slow: dict[int, int]) -> hops.Collection:
    """100 segments 1 ms apart: 10, 20, 30, 40 ns in their four layers; ``slow`` ones take longer in the third layer, h."""
    body = b""
    for n in range(100):
        born, more = T0 + n * 1_000_000, slow.get(n, 0)
        body += segment(born, born + 10, born + 30, born + 60 + more, born + 100 + more, seq=n)
    return hops.load(directory(tmp_path / "d", body))


def test_layers_add_up_and_the_excess_is_where_it_was_made(tmp_path: Path) -> None:
    c = ways(tmp_path, {50: 1_000, 51: 3_000})
    rows = layers.passages(c)
    assert (rows.groupby("packet")["dur_ns"].sum() == c.packets["latency_ns"]).all()
    assert rows[rows["packet"] == 51]["dur_ns"].tolist() == [10, 20, 3_030, 40]
    excess = layers.excess(c, rows, layers.chosen(c.packets, 98, 100), layers.chosen(c.packets, 25, 75))
    assert excess.iloc[0].to_dict() == {
        "layer": "h:va in -> h:vb out",
        "excess_ns": 4_000,
        "n": 2,
        "share": 1.0,
    }
    assert excess["excess_ns"].tolist() == [4_000, 0, 0, 0]
    assert layers.words(c, rows) == {
        "socket -> a:eth0 out": "sending stack",
        "a:eth0 out -> h:va in": "queue and link of a:eth0",
        "h:va in -> h:vb out": "forwarding in h",
        "h:vb out -> b:eth0 in": "queue and link of h:vb",
    }


def test_a_layer_that_usual_packets_do_not_pass_counts_wholly(tmp_path: Path) -> None:
    """A detour: from a:eth0 out directly to b, in 5,000 ns."""
    body = b"".join(segment(T0 + n, T0 + n + 1, T0 + n + 2, T0 + n + 3, T0 + n + 4, seq=n) for n in range(99))
    body += record(T0 + 6_001, records.END, B_IN, capsule(T0 + 1_000, [(A_OUT, T0 + 1_001)], 500, 6), seq=500)
    c = hops.load(directory(tmp_path / "d", body))
    excess = layers.excess(
        c, layers.passages(c), layers.chosen(c.packets, 99, 100), layers.chosen(c.packets, 25, 75)
    )
    assert excess.iloc[0]["layer"] == "a:eth0 out -> b:eth0 in"
    assert excess.iloc[0]["excess_ns"] == 5_000


def test_a_second_s_mean_hides_what_single_packets_show(tmp_path: Path) -> None:
    """100 packets of 100 ns, two of them 10,000 and 20,000 ns longer and 1 ms apart: mean (100 * 100 + 30,000) / 100 = 400 ns."""
    c = ways(tmp_path, {50: 10_000, 51: 20_000})
    (second,) = layers.by_second(c.packets).to_dict("records")
    assert second == {"second": 0, "n": 100, "mean_ns": 400, "p50_ns": 100, "max_ns": 20_100, "over_mean": 2}
    (burst,) = layers.bursts(c.packets).to_dict("records")
    assert burst == {"start_ns": T0 + 50_000_000, "dur_ns": 1_020_100, "n": 2, "max_ns": 20_100}


def test_the_command_names_the_layer_and_writes_the_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ways(tmp_path, {50: 10_000, 51: 20_000})
    assert main(["hops", str(tmp_path / "d"), "--slowest", "2", "-o", str(tmp_path / "tables")]) == 0
    said = capsys.readouterr().out
    assert (
        "The slowest 2 % (2 packets) took 15.0 us longer than usual: 100% of it in forwarding in h (h:va in -> h:vb out)."
        in said
    )
    assert sorted(p.name for p in (tmp_path / "tables").iterdir()) == ["hops.parquet", "packets.parquet"]
    assert main(["hops", str(tmp_path / "d"), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["layers"][0]["layer"] == "h:va in -> h:vb out"
    assert [h["ns"] for h in made["slowest"][0]["layers"]] == [10, 20, 20_030, 40]
    assert made["accounting"] == {"drawn": 2, "born": 2, "ended": 2}


def test_an_empty_directory_and_those_of_other_tools_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = directory(tmp_path / "d", b"")
    assert main(["hops", str(path)]) == 0
    assert "No packet was seen to arrive." in capsys.readouterr().out
    assert main([str(path)]) == 3
    assert f"hint: nsight-report hops {path}" in capsys.readouterr().err
    assert main(["hops", str(tmp_path / "none")]) == 3
    assert "nsight-capsule" in capsys.readouterr().err


def test_names_from_a_directory_are_made_safe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = manifest()["points"]
    made[VA_IN]["device"] = "\x1b[31m" + "x" * 500
    assert main(["hops", str(directory(tmp_path / "d", GOOD, points=made))]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert len(DEVICES) == 4
