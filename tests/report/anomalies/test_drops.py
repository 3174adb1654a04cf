# SPDX-License-Identifier: GPL-2.0-only
"""Packets that the kernel dropped: in a table, in the report, and as the reason for a retransmission."""

from __future__ import annotations

import ipaddress
import struct
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from machinery.made_up.scene import Scene
from machinery.made_up.tables import TID
from machinery.made_up.tables import table as made
from nsight_report import drops
from nsight_report.anomalies import Recording, find
from nsight_report.attribution import attribute
from nsight_report.capture.perf_data import CODE, EVENT, Decoded
from nsight_report.export.terminal import described
from nsight_report.tables.messages import Messages
from report.anomalies.test_causes import IDLE, SLOWEST, slow

TCP, UDP = 6, 17


IPV4 = 1


def dropped(*rows: tuple[int, int, int, int, int], ends: tuple[str, str] = ("", "")) -> pa.Table:
    """Rows of ts, reason, protocol, source port and destination port, among other events; ``ends``: addresses of all of them."""
    n = 4 if ends[0] else 2
    events = np.zeros(n * len(rows), EVENT)
    events["ts"] = np.repeat([row[0] for row in rows], n)
    events["kind"] = CODE["sched_switch"]
    for at, (_, reason, proto, sport, dport) in zip(range(0, len(events), n), rows, strict=True):
        packed = np.uint64(reason | proto << 16 | sport << 32 | dport << 48)
        event = events[at : at + 1]
        event["kind"], event["a"], event["c"], event["cpu"] = CODE["net_drop"], packed.astype(np.int64), 66, 1
        for further, (kind, end) in enumerate(zip(("source", "destination"), ends, strict=True), at + 1):
            if end:
                events[further : further + 1]["kind"] = CODE[f"net_drop_{kind}"]
                high, low, family = loaded(end)
                event = events[further : further + 1]
                event["a"], event["b"], event["c"] = high, low, family
    return drops.table(Decoded(events, [], "monotonic", {}), {"6": "SOCKET_RCVBUFF", "77": "QDISC_DROP"})


def loaded(address: str) -> tuple[int, int, int]:
    """High and low word of an address as a little-endian machine loads them, and whether it is IPv4."""
    packed = ipaddress.ip_address(address).packed
    if len(packed) == 4:
        return 0, int.from_bytes(packed, "little"), IPV4
    high, low = struct.unpack("<qq", packed)
    return high, low, 0


def test_drops_have_the_names_of_the_recorded_kernel() -> None:
    # A destination port above 32767 makes the packed number negative.
    rows = dropped((5, 6, UDP, 40_000, 53), (9, 12, TCP, 80, 50_000)).to_pylist()
    unknown = {"saddr": "", "daddr": "", "nbytes": 66}
    assert rows == [
        {"ts_ns": 5, "cpu": 1, "reason": "SOCKET_RCVBUFF", "proto": UDP, "sport": 40_000, "dport": 53, **unknown},
        {"ts_ns": 9, "cpu": 1, "reason": "reason 12", "proto": TCP, "sport": 80, "dport": 50_000, **unknown},
    ]  # fmt: skip
    assert len(drops.table(Decoded(np.zeros(0, EVENT), [], "monotonic", {}), {})) == 0


@pytest.mark.parametrize("ends", [("10.0.0.2", "10.0.0.1"), ("fd00::2", "fe80::ff:1")])
def test_drops_have_the_addresses_of_their_records(ends: tuple[str, str]) -> None:
    rows = dropped((5, 6, UDP, 40_000, 53), (9, 12, TCP, 80, 50_000), ends=ends).to_pylist()
    assert [(row["sport"], row["saddr"], row["daddr"]) for row in rows] == [(40_000, *ends), (80, *ends)]


def test_a_message_is_sent_again_for_the_packet_that_was_dropped_between_its_copies() -> None:
    messages = pd.DataFrame(
        {
            "proto": [TCP] * 4,
            "laddr": ["10.0.0.1"] * 4,
            "raddr": ["10.0.0.2"] * 4,
            "lport": [80] * 4,
            "rport": [1000, 1000, 1001, 1000],
            "first_ns": [100, 500, 100, 900],
            "arrival_last_ns": [300, 600, 300, 950],
            "copy_lost": [True, True, True, False],
        }
    )
    table = dropped(
        (150, 6, TCP, 1000, 80), (200, 77, TCP, 1000, 80), (250, 6, TCP, 80, 1000), (920, 6, TCP, 1000, 80)
    )
    # The second message's copy was lost elsewhere, the third is another connection, the fourth arrived once.
    every = Messages(made("messages", messages))
    found, n_unclear = drops.reasons(messages, table.to_pandas(), every)
    assert (found.tolist(), n_unclear) == (["QDISC_DROP", "", "", ""], 0)


def sent_again() -> tuple[Scene, int]:
    """A scene whose last message was sent again and so came late, and the time at which that message began."""
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 8500, 9000,
         [(0, 8200, "idle", "idle", *IDLE), (8200, 8800, "softirq", "NET_RX", 7, "client")],
         [(0, 8600, "idle", "idle", *IDLE), (8600, 9500, "syscall", "read", TID, "server")],
         [(0, 8600, "sleeping"), (8600, 9500, "running")])  # fmt: skip
    scene.messages[-1]["copy_lost"] = True
    return scene, t


@pytest.mark.parametrize(
    ("other", "n_unclear"),
    [
        ({"raddr": "10.0.0.3"}, 1),
        ({"laddr": "10.0.0.9"}, 1),
        ({"netns": 2}, 1),
        ({"conn_id": 9}, 0),  # the same endpoints again, later
        ({"raddr": "10.0.0.3", "rport": 40_001}, 0),
        ({"raddr": "10.0.0.3", "proto": UDP}, 0),
    ],
)
def test_a_dropped_packet_that_may_be_of_another_connection_is_counted_and_no_cause(
    other: dict[str, object], n_unclear: int
) -> None:
    """Its ports match message 40, which was sent again, and the message of another peer."""
    scene, t = sent_again()
    scene.messages[-1]["rport"] = 50_000
    scene.messages[0] |= {"rport": 50_000, **other}
    table = dropped((t + 10, 6, TCP, 50_000, 11211))
    _, found, losses, _ = find(Recording(*scene.tables(), drops=table), SLOWEST)
    subject = "retransmission" if n_unclear else "retransmission: dropped here, SOCKET_RCVBUFF"
    assert subject in found["subject"].to_pylist()
    counted = {row["cause"]: row["count"] for row in losses.to_pylist()}
    assert counted.get("dropped packet that may belong to several connections", 0) == n_unclear


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        (("10.0.0.2", "10.0.0.1"), "SOCKET_RCVBUFF"),
        (("10.0.0.3", "10.0.0.1"), ""),
        (("10.0.0.2", "10.0.0.9"), ""),
        (("10.0.0.1", "10.0.0.2"), ""),
    ],
)
def test_addresses_tell_whose_the_dropped_packet_was(ends: tuple[str, str], reason: str) -> None:
    """Another peer has the same ports: by these alone it is unclear whose packet was dropped."""
    scene, t = sent_again()
    scene.messages[-1] |= {"rport": 50_000, "raddr": "10.0.0.2", "laddr": "10.0.0.1"}
    scene.messages[0] |= {"rport": 50_000, "raddr": "10.0.0.3", "laddr": "10.0.0.1"}
    table = dropped((t + 10, 6, TCP, 50_000, 11211), ends=ends)
    _, found, losses, _ = find(Recording(*scene.tables(), drops=table), SLOWEST)
    subject = f"retransmission: dropped here, {reason}" if reason else "retransmission"
    assert subject in found["subject"].to_pylist()
    assert not [row for row in losses.to_pylist() if "several connections" in row["cause"]]


def test_the_same_addresses_in_two_namespaces_are_two_connections() -> None:
    scene, t = sent_again()
    scene.messages[-1] |= {"rport": 50_000, "raddr": "10.0.0.2", "laddr": "10.0.0.1"}
    scene.messages[0] |= {"rport": 50_000, "raddr": "10.0.0.2", "laddr": "10.0.0.1", "netns": 2}
    table = dropped((t + 10, 6, TCP, 50_000, 11211), ends=("10.0.0.2", "10.0.0.1"))
    _, found, losses, _ = find(Recording(*scene.tables(), drops=table), SLOWEST)
    assert "retransmission" in found["subject"].to_pylist()
    counted = {row["cause"]: row["count"] for row in losses.to_pylist()}
    assert counted["dropped packet that may belong to several connections"] == 1


def test_a_retransmission_names_the_reason_of_the_drop() -> None:
    scene, t = sent_again()
    last = scene.messages[-1]
    flow = (last["proto"], last["rport"], last["lport"])
    for table, subject in (
        (dropped((t + 10, 6, *flow)), "retransmission: dropped here, SOCKET_RCVBUFF"),
        (dropped((t - 10, 6, *flow)), "retransmission"),
        (None, "retransmission"),
    ):
        compared, found, *_ = find(Recording(*scene.tables(), drops=table), SLOWEST)
        kept, _, causes, _ = attribute(found, compared, SLOWEST)
        assert [row["cause"] for row in causes.to_pylist()] == ["Retransmission (R)"]
        assert kept["subject"].to_pylist() == [subject]


def test_the_report_counts_drops_of_the_ports_of_its_messages_alone() -> None:
    messages = pd.DataFrame({"proto": [UDP, UDP], "lport": [53, 53]})
    rows = [(n, 6, UDP, 9, 53) for n in range(3)] + [
        (7, 77, UDP, 53, 9),
        (8, 6, UDP, 9, 54),
        (9, 6, TCP, 9, 53),
    ]
    found = drops.of_messages(dropped(*rows).to_pandas(), messages)
    unknown = {"n_flows": 1, "most_source": "", "most_destination": ""}
    assert found.to_dict("records") == [
        {"direction": "to", "port": 53, "proto": UDP, "reason": "SOCKET_RCVBUFF", "n_packets": 3, "most_packets": 3, **unknown},
        {"direction": "from", "port": 53, "proto": UDP, "reason": "QDISC_DROP", "n_packets": 1, "most_packets": 1, **unknown},
    ]  # fmt: skip
    assert not len(drops.of_messages(dropped().to_pandas(), messages))


def test_the_report_names_the_connection_that_lost_most() -> None:
    messages = pd.DataFrame({"proto": [UDP], "lport": [53]})
    tables = [
        dropped((1, 6, UDP, 9, 53), (2, 6, UDP, 9, 53), ends=("10.0.0.2", "10.0.0.1")),
        dropped((3, 6, UDP, 9, 53), ends=("10.0.0.3", "10.0.0.1")),
        dropped((4, 77, UDP, 53, 8), ends=("fd00::1", "fd00::2")),
    ]
    found = drops.of_messages(pd.concat([table.to_pandas() for table in tables]), messages)
    assert [described(row) for row in found.itertuples()] == [
        "3 packets to UDP port 53: SOCKET_RCVBUFF (the socket's receive buffer was full); 2 of them from 10.0.0.2:9 to 10.0.0.1:53",
        "1 packet from UDP port 53: QDISC_DROP (the queue of the queueing discipline was full, or it drops by design); "
        "from [fd00::1]:53 to [fd00::2]:8",
    ]


def test_names_of_a_hostile_recording_are_made_printable() -> None:
    row = SimpleNamespace(
        direction="to", port=1, proto=1, reason="\x1b[31mX", n_packets=1, n_flows=1, most_packets=1, most_source="\x1b", most_destination="\x1b"
    )  # fmt: skip
    assert "\x1b" not in described(row)
