# SPDX-License-Identifier: GPL-2.0-only
"""Messages that share a packet or a read call do not block each other there; messages behind them wait."""

from __future__ import annotations

import pytest
from machinery.made_up.scene import Scene
from machinery.made_up.tables import TID, message
from nsight_report.anomalies import Selection, Slice
from report.anomalies.test_causes import IDLE, diagnose
from report.anomalies.test_of_requests import MS, US, USUAL, Served

SLOWEST = Selection(slow=Slice.parse("1500ns-"), app="server", granularity_ns=50)


def two(second: dict[str, int], first: dict[str, int] | None = None) -> dict[tuple[int, str], int]:
    """Deviation by message and cause. 40 is handed off 4,500 ns late and read 1,000 ns later, by a call of 200 ns.

    41 is of the same connection; both have the same times except for those given (ns after the beginning).
    """
    scene = Scene()
    t = scene.quiet(40)
    for i, over in ((40, first or {}), (41, second)):
        at = {"arrival_ns": 400, "arrival_last_ns": 400, "call_ns": 5800, "app_ns": 6000} | over
        stamps = {name: t + ns for name, ns in at.items()}
        scene.messages.append(message(i, t, t + 5000, stamps["app_ns"], conn_id=1, **stamps))
    scene.cores(
        t,
        [(0, 5300, "softirq", "NET_RX", 7, "client"), (5300, 20_000, "idle", "idle", *IDLE)],
        [
            (0, 5100, "idle", "idle", *IDLE),
            (5100, 15_000, "syscall", "read", TID, "server"),
            (15_000, 20_000, "idle", "idle", *IDLE),
        ],
    )
    scene.threads(t, [(0, 5100, "sleeping"), (5100, 15_000, "running"), (15_000, 20_000, "sleeping")])
    rows = diagnose(scene, SLOWEST)[0].anomalies.to_pylist()
    return {(r["message_id"], f"{r['category']} ({r['side']})"): r["deviation_ns"] for r in rows}


def test_messages_of_one_packet_that_one_call_reads_do_not_block_each_other() -> None:
    # Received for 5,000 instead of 500; read for 900 instead of 400 ns since the thread began to run.
    assert two({}) == {
        (m, cause): ns
        for m in (40, 41)
        for cause, ns in (("Receive processing (R)", 4500), ("Application processing (A)", 500))
    }


@pytest.mark.parametrize(
    ("first", "second", "blocked"),
    [
        # From 400 to 600, 41 waits for the packet with the beginning of 40.
        ({"arrival_last_ns": 600}, {"arrival_ns": 600, "arrival_last_ns": 600}, {41: 200}),
        ({}, {"arrival_last_ns": 600}, {}),
    ],
)
def test_a_packet_with_the_end_of_a_message_and_the_begin_of_the_next_is_received_for_both(
    first: dict[str, int], second: dict[str, int], blocked: dict[int, int]
) -> None:
    found = two(second, first)
    assert {m: ns for (m, cause), ns in found.items() if cause == "Head-of-line blocking (R)"} == blocked


def test_a_message_that_a_later_packet_brought_waits_for_the_one_before_it() -> None:
    """The packet of 41 is seen 4,000 ns after that of 40; until then the core received the packet of 40."""
    found = two({"arrival_ns": 4400, "arrival_last_ns": 4400})
    # From 400, the arrival of 40, to 4,400.
    assert found[41, "Head-of-line blocking (R)"] == 4000
    assert (40, "Receive processing (R)") in found


def test_a_message_of_the_same_packet_that_a_later_call_reads_waits_for_the_one_before_it() -> None:
    """40 is read at 6,000; the thread works on it until it turns to 41 at 13,800."""
    found = two({"call_ns": 13_800, "app_ns": 14_000})
    assert found[41, "Head-of-line blocking (A)"] == 13_800 - 5800
    assert not [m for m, cause in found if cause == "Head-of-line blocking (R)"]


def test_a_request_does_not_wait_for_the_one_that_was_read_with_it() -> None:
    """Two requests in one packet are read at once, and their replies leave after 410 us of work."""
    scene = Served()
    t, n = USUAL * MS, 2 * USUAL
    scene.one(t, 410 * US, 411 * US)
    request, reply = scene.messages[-2:]
    scene.messages[-1:] = [
        request | {"message_id": n + 1},
        reply | {"message_id": n + 2},
        reply | {"message_id": n + 3},
    ]
    scene.requests[-1] |= {"reply_message_id": n + 2, "last_reply_message_id": n + 2}
    scene.requests.append(scene.requests[-1] | {
        "request_id": n + 1, "last_message_id": n + 1, "reply_message_id": n + 3, "last_reply_message_id": n + 3,
    })  # fmt: skip
    _, causes, _ = scene.diagnosed()
    assert causes == {"Application processing (A)": 2 * 400 * US}
