# SPDX-License-Identifier: GPL-2.0-only
"""Reading events.tsv: what is an event, what is counted, what is rejected."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from nsight_report.capture import event_lines, message_events
from nsight_report.errors import BadInput
from nsight_report.tables import external_sort

HEADER = "#nsight-events 1 clock=boottime"
FIELDS = {
    "kind": "A",
    "ts": 5000,
    "cpu": 1,
    "pid": 10,
    "tid": 11,
    "comm0": "65686361636d656d",
    "comm1": "64",
    "fd": -1,
    "call_ts": 0,
    "sk": 0,
    "netns": 4026531840,
    "proto": 6,
    "family": 2,
    "laddr_hi": "0",
    "laddr_lo": "100000a",
    "lport": 11211,
    "raddr_hi": "0",
    "raddr_lo": "200000a",
    "rport": 40000,
    "seq": 7,
    "len": 50,
    "hw": 0,
    "sw": 0,
    "aux": 2 << 8 | 0x18,
}


def line(**fields: object) -> str:
    return "\t".join(str(v) for v in (FIELDS | fields).values())


def load(tmp_path: Path, *lines: str, end: str = "\n", **kwargs: object) -> tuple[list[dict], dict[str, int]]:
    path = tmp_path / "events.tsv"
    path.write_bytes(("\n".join(lines) + end).encode("latin-1"))
    events, losses = message_events.load(path, tmp_path, **kwargs)  # type: ignore[arg-type]
    rows = pq.read_table(events.path).to_pylist()
    return rows, {row["cause"]: row["count"] for row in losses.to_pylist()}


def counts(**per_kind: int) -> list[str]:
    return [f"@n[{kind}]: {n}" for kind, n in per_kind.items()]


def test_every_field_of_an_arrival_is_decoded(tmp_path: Path) -> None:
    (e,), losses = load(tmp_path, "Attaching 9 probes...", HEADER, line(), "", *counts(A=1), "#end")
    assert (e["kind"], e["ts_ns"], e["cpu"], e["pid"], e["tid"], e["comm"]) == (
        "A",
        5000,
        1,
        10,
        11,
        "memcached",
    )
    assert (e["laddr"], e["lport"], e["raddr"], e["rport"]) == ("10.0.0.1", 11211, "10.0.0.2", 40000)
    assert (e["ifindex"], e["flags"], e["call_ns"], e["seq"], e["len"]) == (2, 0x18, None, 7, 50)
    assert losses == {}


def test_addresses_of_both_families_and_mapped_ones_are_decoded(tmp_path: Path) -> None:
    # 2001:db8::1 = bytes 20 01 0d b8 0 0 0 0 | 0 0 0 0 0 0 0 1, each half loaded little-endian
    six = line(family=10, laddr_hi="b80d0120", laddr_lo="100000000000000", raddr_hi="0", raddr_lo="0", ts=1)
    mapped = line(family=10, laddr_lo="100000affff0000", raddr_lo="200000affff0000", ts=2)
    rows, losses = load(tmp_path, HEADER, six, mapped, *counts(A=2), "#end")
    assert [(r["family"], r["laddr"], r["raddr"]) for r in rows] == [
        (10, "2001:db8::1", "::"),
        (2, "10.0.0.1", "10.0.0.2"),
    ]
    assert losses == {}


def test_events_are_sorted_and_converted_together_with_their_call(tmp_path: Path) -> None:
    r = line(kind="R", ts=900, call_ts=850, sk="ffff888100000001", fd=5, aux=0)
    rows, _ = load(
        tmp_path, HEADER, line(ts=1000), r, *counts(A=1, R=1), "#end", to_monotonic=lambda t: t - 100
    )
    assert [(e["kind"], e["ts_ns"], e["call_ns"]) for e in rows] == [("R", 800, 750), ("A", 900, None)]
    assert rows[0]["sk"] == 0xFFFF888100000001


def test_monotonic_file_is_not_converted(tmp_path: Path) -> None:
    rows, _ = load(
        tmp_path,
        HEADER.replace("boottime", "monotonic"),
        line(),
        *counts(A=1),
        "#end",
        to_monotonic=lambda t: t - 100,
    )
    assert rows[0]["ts_ns"] == 5000


def test_events_outside_the_clock_readings_are_counted(tmp_path: Path) -> None:
    rows, losses = load(
        tmp_path, HEADER, line(ts=10), line(ts=20), *counts(A=2), "#end", to_monotonic=lambda t: (t, t > 15)
    )
    assert [e["ts_ns"] for e in rows] == [20] and losses == {"events outside the clock readings": 1}


def test_events_the_probe_produced_but_nobody_delivered_are_lost(tmp_path: Path) -> None:
    _, losses = load(tmp_path, HEADER, line(), "Lost 5 events", *counts(A=4, R=1), "#end")
    # 4 - 1 = 3 A and 1 - 0 = 1 R; bpftrace reports 5: one more, of unknown kind
    assert losses == {"A events lost": 3, "R events lost": 1, "events lost by bpftrace": 1}


def test_cut_recording_says_so_and_its_last_heartbeat_still_bounds_the_loss(tmp_path: Path) -> None:
    rows, losses = load(
        tmp_path, HEADER, line(), *counts(A=1), line(ts=6000), *counts(A=5), line(ts=7000)[:40], end=""
    )
    assert len(rows) == 2
    assert losses == {"A events lost": 3, "message events were cut": 1, "unfinished last line": 1}


def test_counts_beyond_what_a_table_holds_are_the_most_it_holds(tmp_path: Path) -> None:
    """Ten lines of 10^18 - 1 lost events are more than 2^63."""
    _, losses = load(tmp_path, HEADER, line(), *["Lost 999999999999999999 events"] * 10, "#end")
    assert losses["events lost by bpftrace"] == 2**63 - 1


def test_complete_looking_last_line_without_end_of_line_is_not_trusted(tmp_path: Path) -> None:
    # aux 536 = 0x218 may be the beginning of 5364
    rows, losses = load(tmp_path, HEADER, line(ts=1), line(ts=2), end="")
    assert len(rows) == 1 and losses["unfinished last line"] == 1


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"ts": -5}, "events with impossible time"),
        ({"ts": 0}, "events with impossible time"),
        ({"ts": 2**62}, "events with impossible time"),
        ({"kind": "R", "call_ts": 5001}, "events with impossible time"),
        ({"cpu": 1 << 20}, "events with impossible core"),
        ({"tid": -1}, "events with impossible process or thread"),
        ({"seq": 2**32}, "events with impossible sequence number"),
        ({"len": 2**40}, "events with impossible length"),
        ({"len": -(2**63)}, "events with impossible length"),
        ({"fd": -(2**63)}, "events with impossible descriptor, namespace or timestamp"),
        ({"proto": 1}, "events with unknown protocol or address family"),
        ({"rport": 70000}, "events with impossible port"),
        ({"ts": "12345678901234567890"}, "event lines with impossible numbers"),
        ({"ts": "1-2"}, "event lines with impossible numbers"),
        ({"seq": ""}, "event lines with impossible numbers"),
        ({"sk": "x"}, "event lines with impossible numbers"),
        ({"kind": "Z"}, "foreign lines among the events"),
        ({"ts": "1\0002"}, "foreign lines among the events"),
        ({"ts": "1\xff"}, "foreign lines among the events"),
    ],
)
def test_impossible_event_is_rejected_and_counted_and_its_neighbours_stay(
    tmp_path: Path, fields: dict, cause: str
) -> None:
    stamp = 1_795_000_000_000_000_000  # of a wall clock: one digit more than the time since boot
    good = line(ts=4000, hw=stamp), line(ts=6000, sw=stamp)
    rows, losses = load(tmp_path, HEADER, good[0], line(**fields), good[1], *counts(A=2), "#end")
    assert [e["ts_ns"] for e in rows] == [4000, 6000]
    assert losses.get(cause) == 1


def test_event_far_out_of_order_is_rejected_alone(tmp_path: Path) -> None:
    second = 1_000_000_000
    times = [100 * second + i for i in range(20)]
    times[7] = 40 * second
    times[12] = 160 * second
    rows, losses = load(tmp_path, HEADER, *(line(ts=t) for t in times), *counts(A=20), "#end")
    assert [e["ts_ns"] for e in rows] == [t for i, t in enumerate(times) if i not in (7, 12)]
    assert losses["events far out of order"] == 2


def test_slow_traffic_is_not_out_of_order(tmp_path: Path) -> None:
    times = [(1 + i * 600) * 1_000_000_000 for i in range(20)]  # one event every ten minutes
    rows, losses = load(tmp_path, HEADER, *(line(ts=t) for t in times), *counts(A=20), "#end")
    assert len(rows) == 20 and losses == {}


def test_control_characters_in_a_name_are_escaped(tmp_path: Path) -> None:
    # 1b 5b 33 31 6d = ESC [ 3 1 m
    (e,), _ = load(tmp_path, HEADER, line(comm0="6d31335b1b"), *counts(A=1), "#end")
    assert e["comm"] == "\\x1b[31m"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"hello\nworld\n", "not a file of message events"),
        (b"\x7fELF\x02\x01" + bytes(range(256)) * 40, "not a file of message events"),
        (b"#nsight-events 3 clock=boottime\n", "version 3"),
        (b"#nsight-events " + b"1" * 5000 + b" clock=boottime\n", "version 1111"),
        (b"#nsight-events 1 clock=tea\n", "clock 'tea'"),
    ],
)
def test_files_that_are_none_of_ours_are_refused_with_a_reason(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "events.tsv"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=words) as error:
        message_events.load(path, tmp_path)
    assert error.value.hint


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        message_events.load(tmp_path / "events.tsv", tmp_path)


def test_recording_without_a_message_is_an_empty_table(tmp_path: Path) -> None:
    rows, losses = load(tmp_path, HEADER, *counts(ack=3), "#end")
    assert rows == [] and losses == {"probe count: ack": 3}


def test_large_file_with_lines_across_block_borders_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_lines, "_BLOCK", 1000)
    rows, losses = load(tmp_path, HEADER, *(line(ts=1000 + i) for i in range(500)), *counts(A=500), "#end")
    assert [e["ts_ns"] for e in rows] == list(range(1000, 1500)) and losses == {}


def test_random_bytes_never_crash_the_reader(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    whole = (
        "\n".join([HEADER, *(line(ts=5000 + i) for i in range(30)), "@n[A]: 30", "#end"]) + "\n"
    ).encode()
    path = tmp_path / "events.tsv"
    for _ in range(150):
        data = bytearray(whole)
        for at in rng.integers(len(HEADER) + 1, len(data), 8):
            data[at] = rng.integers(0, 256)
        path.write_bytes(data[: rng.integers(len(HEADER) + 1, len(data))])
        events, losses = message_events.load(path, tmp_path)
        assert events.n_rows() <= 31
        assert losses.num_rows >= 1


def pieces_of(monkeypatch: pytest.MonkeyPatch, block: int, unit: int, piece: int) -> None:
    """Read ``block`` bytes at a time, and sort ``piece`` events at a time."""
    monkeypatch.setattr(event_lines, "_BLOCK", block)
    monkeypatch.setattr(external_sort, "UNIT_ROWS", unit)
    monkeypatch.setattr(external_sort, "PIECE_ROWS", piece)


def disordered(n_lines: int) -> list[str]:
    """Events of three cores that come late or at equal times, some of them invalid; each has a different ``seq``."""
    random = np.random.default_rng(7)
    late = random.integers(0, 200, n_lines) * random.integers(0, 2, n_lines)
    times = 10**12 + 10 * np.arange(n_lines) - 100 * late
    times[random.integers(0, n_lines, 20)] += 20_000_000_000
    cores = random.integers(0, 3, n_lines)
    cores[random.integers(0, n_lines, 9)] = 7
    comm = [f"{ord('a') + i // 200:x}" for i in range(n_lines)]
    lines = [
        line(ts=t, cpu=c, seq=i, comm0=comm[i], comm1=0)
        for i, (t, c) in enumerate(zip(times.tolist(), cores.tolist(), strict=True))
    ]
    lines[n_lines // 2] = line(rport=70000)
    return lines


def test_events_are_the_same_in_whatever_pieces_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = [HEADER, *disordered(2000), *counts(A=2100), "#end"]

    def known(ts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return ts - 5, ts % 64 != 0

    whole = load(tmp_path, *text, to_monotonic=known)
    pieces_of(monkeypatch, 3000, 7, 40)
    assert load(tmp_path, *text, to_monotonic=known) == whole
    rows, losses = whole
    assert [(e["ts_ns"], e["seq"]) for e in rows] == sorted((e["ts_ns"], e["seq"]) for e in rows)
    assert losses["events with impossible port"] == 1 and losses["A events lost"] == 100
    assert losses["events far out of order"] > 0 and losses["events outside the clock readings"] > 0
    left_out = ("events with impossible port", "events far out of order", "events outside the clock readings")
    assert len(rows) + sum(losses[cause] for cause in left_out) == 2000


def test_event_that_comes_many_pieces_late_stands_at_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces_of(monkeypatch, 300, 2, 2)
    late = line(ts=1001, cpu=2, seq=9)  # after all events of core 1
    rows, losses = load(
        tmp_path, HEADER, *(line(ts=1000 + i, seq=1) for i in range(50)), late, *counts(A=51), "#end"
    )
    assert [(e["ts_ns"], e["seq"]) for e in rows[:4]] == [(1000, 1), (1001, 1), (1001, 9), (1002, 1)]
    assert len(rows) == 51 and losses == {}


def test_event_out_of_order_at_the_border_of_two_pieces_is_rejected_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = 1_000_000_000
    for wrong in range(4, 16):  # for any position of the border: three lines are a piece
        times = [100 * second + i for i in range(20)]
        times[wrong] = 40 * second
        pieces_of(monkeypatch, 3 * len(line(ts=times[0])) + 3, 2, 2)
        rows, losses = load(tmp_path, HEADER, *(line(ts=t) for t in times), *counts(A=20), "#end")
        assert [e["ts_ns"] for e in rows] == [t for i, t in enumerate(times) if i != wrong]
        assert losses == {"events far out of order": 1}


def test_events_beyond_the_limit_are_counted_over_all_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces_of(monkeypatch, 1000, 8, 8)
    monkeypatch.setattr(message_events, "MAX_EVENTS", 25)
    rows, losses = load(tmp_path, HEADER, *(line(ts=1000 + i) for i in range(60)), *counts(A=60), "#end")
    assert [e["ts_ns"] for e in rows] == list(range(1000, 1025))
    # 60 - 25 = 35; they also count as not delivered
    assert losses == {"event lines beyond the limit": 35, "A events lost": 35}


def test_memory_does_not_grow_with_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces_of(monkeypatch, 30_000, 100, 400)
    path = tmp_path / "events.tsv"
    most = []
    for n_lines in (2_000, 20_000):
        path.write_text("\n".join([HEADER, *(line(ts=1000 + i) for i in range(n_lines)), "#end"]) + "\n")
        tracemalloc.start()
        message_events.load(path, tmp_path)
        most.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert most[1] < 1.5 * most[0]
