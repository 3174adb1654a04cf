# SPDX-License-Identifier: GPL-2.0-only
"""Packets that the kernel dropped: in a table, in the report, and as the reason for a retransmission."""

from __future__ import annotations

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


def dropped(*rows: tuple[int, int, int, int, int]) -> pa.Table:
    """Rows of ts, reason, protocol, source port and destination port, among other events."""
    events = np.zeros(2 * len(rows), EVENT)
    events["ts"] = np.repeat([row[0] for row in rows], 2)
    events["kind"][::2], events["kind"][1::2] = CODE["net_drop"], CODE["sched_switch"]
    for event, (_, reason, proto, sport, dport) in zip(events[::2], rows, strict=True):
        packed = np.uint64(reason | proto << 16 | sport << 32 | dport << 48)
        event["a"], event["c"], event["cpu"] = packed.astype(np.int64), 66, 1
    return drops.table(Decoded(events, [], "monotonic", {}), {"6": "SOCKET_RCVBUFF", "77": "QDISC_DROP"})


def test_drops_have_the_names_of_the_recorded_kernel() -> None:
    # A destination port above 32767 makes the packed number negative.
    rows = dropped((5, 6, UDP, 40_000, 53), (9, 12, TCP, 80, 50_000)).to_pylist()
    assert rows == [
        {"ts_ns": 5, "cpu": 1, "reason": "SOCKET_RCVBUFF", "proto": UDP, "sport": 40_000, "dport": 53, "nbytes": 66},
        {"ts_ns": 9, "cpu": 1, "reason": "reason 12", "proto": TCP, "sport": 80, "dport": 50_000, "nbytes": 66},
    ]  # fmt: skip
    assert len(drops.table(Decoded(np.zeros(0, EVENT), [], "monotonic", {}), {})) == 0


def test_a_message_is_sent_again_for_the_packet_that_was_dropped_between_its_copies() -> None:
    messages = pd.DataFrame(
        {
            "proto": [TCP] * 4,
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
    assert found.to_dict("records") == [
        {"direction": "to", "port": 53, "proto": UDP, "reason": "SOCKET_RCVBUFF", "n_packets": 3},
        {"direction": "from", "port": 53, "proto": UDP, "reason": "QDISC_DROP", "n_packets": 1},
    ]
    assert not len(drops.of_messages(dropped().to_pandas(), messages))


def test_names_of_a_hostile_recording_are_made_printable() -> None:
    row = SimpleNamespace(direction="to", port=1, proto=1, reason="\x1b[31mX", n_packets=1)
    assert "\x1b" not in described(row)
