# SPDX-License-Identifier: GPL-2.0-only
"""Lines of events.tsv that hold a whole message become the events that the probes saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from nsight_report.capture import message_events, message_lines

HEADER = "#nsight-events 2 clock=monotonic min_latency_us=0 one_of=0\n"
S = 1_000_000_000
#: A read of ten bytes by thread 8 of process 7 on core 3; its packet arrived on core 1 and was handed off on core 2.
READ = {
    "kind": "R", "ts": 5000, "cores": "200010003", "thread": "700000008", "comm0": "61", "comm1": "0", "fd": 4,
    "call_ts": 4000, "sk": "ffff888100000000", "socket": "f00000630602", "laddr_hi": "0", "laddr_lo": "100007f",
    "raddr_hi": "0", "raddr_lo": "200007f", "ports": "1f9003e8", "seq": 1000, "len": 10, "p_ts": 1000,
    "p_range": (1010 << 32) | 10, "p_hw": 0, "p_sw": 77, "p_aux": 0x118, "h_ts": 2000, "p_laddr_hi": "0",
    "p_laddr_lo": "0", "p_raddr_hi": "0", "p_raddr_lo": "0", "p_peer": "0",
}  # fmt: skip
#: The same for a datagram, whose socket has no peer.
DATAGRAM = READ | {
    "socket": "f00000631102", "raddr_lo": "0", "ports": "1f900000", "seq": 0, "p_range": 10,
    "p_laddr_lo": "100007f", "p_raddr_lo": "300007f", "p_peer": "207d0",
}  # fmt: skip
SEND = READ | {"kind": "S", "h_ts": 0, "cores": "10003"}


def load(tmp_path: Path, *lines: dict[str, Any] | str, header: str = HEADER) -> tuple[Any, dict[str, int]]:
    """Events and losses of a file of these lines."""
    text = [line if isinstance(line, str) else "\t".join(map(str, line.values())) for line in lines]
    (tmp_path / "events.tsv").write_text(header + "\n".join(text) + "\n@n[R]: 1\n#end\n")
    written, lost = message_events.load(tmp_path / "events.tsv", tmp_path)
    return pq.read_table(written.path).to_pylist(), {
        row["cause"]: row["count"] for row in lost.to_pylist() if row["count"]
    }


def test_fields_are_those_that_a_line_has():
    assert list(READ) == message_lines.COLUMNS


def test_read_becomes_arrival_hand_off_and_read(tmp_path):
    events, _ = load(tmp_path, READ)
    assert [(e["kind"], e["ts_ns"], e["cpu"]) for e in events] == [
        ("A", 1000, 1),
        ("H", 2000, 2),
        ("R", 5000, 3),
    ]
    arrival, handed, read = events
    assert (arrival["seq"], arrival["len"], arrival["ifindex"], arrival["flags"]) == (1000, 10, 1, 0x18)
    assert (arrival["sw_timestamp"], arrival["pid"], arrival["fd"]) == (77, 0, -1)
    assert handed["seq"] == 1010
    assert (read["pid"], read["tid"], read["comm"], read["fd"], read["call_ns"]) == (7, 8, "a", 4, 4000)
    assert (read["seq"], read["len"], read["netns"]) == (1000, 10, 0xF0000063)
    for e in events:
        assert (e["laddr"], e["raddr"], e["lport"], e["rport"]) == ("127.0.0.1", "127.0.0.2", 8080, 1000)


def test_packet_of_more_bytes_than_the_read_keeps_its_own(tmp_path):
    events, _ = load(tmp_path, READ | {"p_range": ((2**32 - 4 + 20) % 2**32 << 32) | 20, "seq": 2**32 - 4})
    arrival, handed, _ = events
    assert (arrival["seq"], arrival["len"], handed["seq"]) == (2**32 - 4, 20, 16)


def test_number_beyond_63_bits_is_written_as_a_negative_one(tmp_path):
    reach = ((0xF0000000 << 32) | 10) - (1 << 64)
    events, _ = load(tmp_path, READ | {"p_range": reach, "seq": 0xF0000000 - 10})
    assert (events[0]["seq"], events[0]["len"]) == (0xF0000000 - 10, 10)


def test_datagram_has_the_addresses_of_its_packet(tmp_path):
    events, _ = load(tmp_path, DATAGRAM)
    arrival, handed, read = events
    assert (arrival["raddr"], arrival["rport"], arrival["seq"], arrival["len"]) == ("127.0.0.3", 2000, 0, 10)
    assert (handed["raddr"], handed["rport"], handed["seq"]) == (read["raddr"], 0, 0)


def test_send_becomes_hand_to_driver_and_send_of_its_thread(tmp_path):
    events, _ = load(tmp_path, SEND)
    assert [(e["kind"], e["ts_ns"], e["cpu"], e["tid"]) for e in events] == [
        ("X", 1000, 1, 8),
        ("S", 5000, 3, 8),
    ]


def test_stamps_that_are_not_known_make_no_event(tmp_path):
    events, _ = load(tmp_path, READ | {"p_ts": 0})
    assert [(e["kind"], e["seq"]) for e in events] == [("H", 1010), ("R", 1000)]
    events, _ = load(tmp_path, READ | {"p_ts": 0, "h_ts": 0})
    assert [e["kind"] for e in events] == ["R"]


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        ({"p_ts": 5001}, "message lines with impossible timestamps"),
        ({"h_ts": 5001}, "message lines with impossible timestamps"),
        ({"kind": "O"}, "message lines with impossible timestamps"),
        ({"cores": "xyz"}, "foreign lines among the events"),
        ({"ts": "12x"}, "event lines with impossible numbers"),
        ({"cores": "11112222333344445"}, "event lines with impossible numbers"),
    ],
)
def test_line_that_cannot_be_is_rejected_and_counted(tmp_path, wrong, cause):
    events, lost = load(tmp_path, READ | wrong, READ | {"ts": 9000})
    assert [e["ts_ns"] for e in events if e["kind"] == "R"] == [9000]
    assert lost[cause] == 1


def test_packet_that_waited_long_for_its_read_is_in_order(tmp_path):
    # Twelve seconds in the socket: in file order, the packet would be out of order.
    lines = [
        READ | {"ts": 20 * S + n, "p_ts": 20 * S + n - 10, "h_ts": 20 * S + n - 5, "cores": "0"}
        for n in range(0, 900, 9)
    ]
    lines[50] = lines[50] | {"p_ts": 8 * S, "h_ts": 8 * S + 1}
    events, lost = load(tmp_path, *lines)
    assert len(events) == 300
    assert "events far out of order" not in lost
    # The read itself is still compared with other reads of its core.
    events, lost = load(tmp_path, *lines[:50], lines[50] | {"ts": 200 * S}, *lines[51:])
    assert lost["events far out of order"] == 1


def test_what_filters_left_out_is_told(tmp_path):
    header = "#nsight-events 2 clock=monotonic min_latency_us=1000 one_of=10\n"
    _, lost = load(tmp_path, READ, "@n[fast]: 41", "@n[unsampled]: 42", "@n[evicted]: 43", header=header)
    assert [lost[f"probe count: {key}"] for key in ("fast", "unsampled", "evicted")] == [41, 42, 43]
