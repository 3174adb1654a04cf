# SPDX-License-Identifier: GPL-2.0-only
"""Requests from arrival to reply: what each ns of their phases was spent on, compared with usual requests."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from machinery.made_up.scene import Scene
from machinery.made_up.tables import TID, Row, context, message, state, table
from nsight_report.anomalies import Recording, Selection, Slice, find
from nsight_report.attribution import attribute
from nsight_report.losses import Ledger
from nsight_report.requests.lifetimes import Lifetimes
from nsight_report.tables.messages import Messages
from nsight_report.waits import Activity
from nsight_report.waits.reasons import Explainer

US, MS = 1_000, 1_000_000
HOLDER = TID + 1
USUAL = 40


class Served(Scene):
    """Requests 1 ms apart: arrival at t, hand-off 1 us later, read at 2 us, reply sent at 10 us and at the driver at 11 us.

    ``one`` adds another one that takes longer; ``waits`` records what its thread waited for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Row] = []
        self.waits: list[Row] = []
        for i in range(USUAL):
            self.one(i * MS, 10 * US, 11 * US)

    def one(self, t: int, send: int, driver: int, ran: list[tuple[int, int, str]] | None = None) -> None:
        """``ran``: what the thread did on core 1 during service, and its state; by default it runs."""
        i = len(self.messages)
        self.messages += [
            message(i, t, t + US, t + 2 * US, conn_id=1),
            message(
                i + 1, t + send, t + send, t + send, conn_id=1, direction="tx", first_ns=t + send, last_ns=t + driver, nic_ns=None,
                arrival_ns=None, arrival_last_ns=None, handoff_ns=None, call_ns=t + send, app_ns=t + send + 500, driver_ns=t + driver,
                recv_cpu=1, byte_start=1_000_000 + i, byte_end=1_000_001 + i,
            ),
        ]  # fmt: skip
        phases = dict(
            zip(
                ("receive", "queue", "service", "transmit"),
                (US, US, send - 2 * US, driver - send),
                strict=True,
            )
        )
        self.requests.append({
            "request_id": i, "last_message_id": i, "reply_message_id": i + 1, "last_reply_message_id": i + 1, "conn_id": 1,
            "role": "server", "certain": True, "pid": TID, "tid": TID, "reply_tid": TID, "comm": "server", "lport": 11211, "rport": 40001,
            "first_ns": t, "last_ns": t + driver, "latency_ns": driver, "read_ns": t + 2 * US,
            **{f"{name}_dur_ns": ns for name, ns in phases.items()},
        })  # fmt: skip
        end = max(driver + US, 50 * US)
        self.contexts.append(context(0, t, t + end, "softirq", "NET_RX", 7, "client"))
        for low, high, how in [
            (0, US, "sleeping"),
            *(ran or [(US, send + US, "running")]),
            (send + US, end, "sleeping"),
        ]:
            self.states.append(state(t + low, t + high, how))
            on = ("thread", "", TID, "server") if how == "running" else ("idle", "idle", 0, "swapper")
            self.contexts.append(context(1, t + low, t + high, *on))

    def waited(self, start: int, end: int, **over: Any) -> None:
        """A wait of the thread, by default for a lock of HOLDER, which sleeps meanwhile."""
        self.waits.append({
            "tid": TID, "start_ns": start, "end_ns": end, "state": "sleeping", "place": "futex", "cpu": 1, "waker_tid": HOLDER,
            "waker_comm": "holder", "waker_cpu": 2, "context": "thread", "device": -1, **over,
        })  # fmt: skip

    def diagnosed(self, slow: str = "12us-") -> tuple[list[Row], dict[str, int], list[Row]]:
        """(anomalies, total deviation by cause, coverage)"""
        messages, calls, contexts, states = self.tables()
        every = Messages(messages)
        requests = Messages(table("requests", self.requests), "requests")
        explain = Explainer(Activity(states, contexts, table("waits", self.waits)), requests, Ledger("waits"))
        of = Recording(
            messages, calls, contexts, states, diagnosed=Lifetimes(requests, every, "server"), explain=explain
        )
        options = Selection(slow=Slice.parse(slow), granularity_ns=50, direction="request")
        compared, found, *_ = find(of, options)
        kept, coverage, causes, _ = attribute(found, compared, options)
        return kept.to_pylist(), _totals(causes), coverage.to_pylist()


def _totals(causes: pa.Table) -> dict[str, int]:
    return {r["cause"]: r["total_deviation_ns"] for r in causes.to_pylist()}


def test_lock_wait_in_the_service_names_its_holder_and_what_that_did() -> None:
    """It waits for 400 of the 407 us of its service; the holder sleeps for 380 of these and runs for the rest."""
    scene = Served()
    t = USUAL * MS
    scene.one(
        t,
        410 * US,
        411 * US,
        [(US, 5 * US, "running"), (5 * US, 405 * US, "sleeping"), (405 * US, 411 * US, "running")],
    )
    scene.waited(t + 5 * US, t + 405 * US)
    for low, high, how in ((0, 10, "running"), (10, 390, "sleeping"), (390, 420, "running")):
        scene.states.append(
            state(t + low * US, t + high * US, how, 2, HOLDER) | {"comm": "holder", "pid": TID}
        )
        on = ("thread", "", HOLDER, "holder") if how == "running" else ("idle", "idle", 0, "swapper")
        scene.contexts.append(context(2, t + low * US, t + high * US, *on))
    slept = {
        "tid": HOLDER,
        "waker_tid": -1,
        "place": "nanosleep",
        "context": "hardirq",
        "symbol": "local_timer",
    }
    scene.waited(t + 10 * US, t + 390 * US, **slept)
    anomalies, causes, coverage = scene.diagnosed()
    assert causes == {"Lock wait (A)": 400 * US}
    first = max(anomalies, key=lambda a: a["deviation_ns"])
    assert first["deviation_ns"] == 380 * US
    assert first["subject"] == "lock: waited in futex for holder (lock), which slept in nanosleep"
    assert first["path"] == f"waited in futex for holder[{HOLDER}] (lock), which slept in nanosleep"
    assert coverage[0]["deviation_ns"] == coverage[0]["explained_ns"] == 400 * US


def test_running_for_longer_in_the_service_is_the_application_itself() -> None:
    scene = Served()
    scene.one(USUAL * MS, 410 * US, 411 * US)
    _, causes, coverage = scene.diagnosed()
    assert causes == {"Application processing (A)": 400 * US}
    assert (coverage[0]["located_ns"], coverage[0]["explained_ns"]) == (400 * US, 0)


def blocked(first_of_slow: int, conn: int = 2) -> Served:
    """A request of connection 1 comes in two messages, at 0 and 1 us, and is worked on until 400 us. Only then does the thread
    read the message of connection ``conn``, which was handed off at 2 us; it replies at 410 us. ``first_of_slow``: its first byte.
    """
    scene = Served()
    t, n = USUAL * MS, 2 * USUAL
    scene.one(t, 410 * US, 411 * US, [(US, 411 * US, "running")])
    reply = scene.messages.pop()
    scene.messages.pop()
    came = [(0, US, 2 * US, 1), (US, 1500, 2500, 1), (first_of_slow, 2 * US, 400 * US, conn)]
    came.sort()
    for i, (first, handoff, read, of) in enumerate(came):
        scene.messages.append(message(n + i, t + first, t + handoff, t + read, conn_id=of))
    for i, (at, of) in enumerate(((390 * US, 1), (410 * US, conn)), 3):
        stamps = {"first_ns": t + at, "call_ns": t + at, "app_ns": t + at + 500, "driver_ns": t + at + US}
        scene.messages.append({**reply, **stamps, "message_id": n + i, "last_ns": t + at + US, "conn_id": of})
    slow = next(m["message_id"] for m in scene.messages[-5:-2] if m["conn_id"] == conn)
    of_one = [m["message_id"] for m in scene.messages[-5:-2] if m["conn_id"] == 1]
    scene.requests[-1] |= {
        "request_id": of_one[0], "last_message_id": of_one[1], "reply_message_id": n + 3, "last_reply_message_id": n + 3,
        "n_messages": 2, "last_ns": t + 391 * US, "latency_ns": 391 * US, "read_ns": t + 2500, "receive_dur_ns": 1500,
        "queue_dur_ns": US, "service_dur_ns": 390 * US - 2500, "transmit_dur_ns": US,
    }  # fmt: skip
    scene.requests.append(scene.requests[-1] | {
        "request_id": slow, "last_message_id": slow, "reply_message_id": n + 4, "last_reply_message_id": n + 4, "n_messages": 1,
        "conn_id": conn, "first_ns": t + first_of_slow, "last_ns": t + 411 * US, "latency_ns": 411 * US - first_of_slow,
        "read_ns": t + 400 * US, "receive_dur_ns": 2 * US - first_of_slow, "queue_dur_ns": 398 * US, "service_dur_ns": 10 * US,
    })  # fmt: skip
    scene.requests.sort(key=lambda row: row["first_ns"])
    return scene


@pytest.mark.parametrize("first_of_slow", [1200, 500])
def test_second_message_of_another_request_blocks_as_its_first_does(first_of_slow: int) -> None:
    """The number of the waiting request lies after those of the other request's messages, or between them."""
    anomalies, causes, _ = blocked(first_of_slow).diagnosed("405us-")
    (first,) = (a for a in anomalies if a["anomaly"] == "hol")
    assert (first["subject"], causes.pop("Head-of-line blocking (A)")) == ("same thread", 397_800)
    assert sum(causes.values()) <= 2 * US


def test_messages_of_other_connections_between_those_of_a_request_are_not_its_own() -> None:
    """The thread works from 2 us to 400 us on a message of connection 2, whose number lies between the two of the slow request."""
    scene = Served()
    t, n = USUAL * MS, 2 * USUAL
    scene.one(t, 410 * US, 411 * US, [(US, 411 * US, "running")])
    reply = scene.messages.pop() | {"message_id": n + 3}
    scene.messages[-1:] = [
        message(n, t, t + US, t + 1500, conn_id=1),
        message(n + 1, t + 300, t + US, t + 2 * US, conn_id=2),
        message(n + 2, t + 600, t + 1500, t + 400 * US, conn_id=1),
        reply,
    ]
    scene.requests[-1] |= {
        "last_message_id": n + 2, "reply_message_id": n + 3, "last_reply_message_id": n + 3, "n_messages": 2, "read_ns": t + 400 * US,
        "receive_dur_ns": 1500, "queue_dur_ns": 400 * US - 1500, "service_dur_ns": 10 * US,
    }  # fmt: skip
    scene.requests.append(scene.requests[0] | {"request_id": n + 1, "last_message_id": n + 1, "conn_id": 2})
    _, causes, _ = scene.diagnosed()
    assert causes.pop("Head-of-line blocking (A)") == 398_000
    assert sum(causes.values()) <= 2 * US


WRITES = {"join": "alternation", "n_reply_messages": 2, "reply_nbytes": 14_480}


@pytest.mark.parametrize(
    ("symbol", "reply", "cause"),
    [
        ("NET_RX", {"bytes": (14_418, 14_480)}, "Nagle with delayed ACK (T)"),
        # Nothing went ahead of it; more than the initial window of a connection.
        ("NET_RX", {"bytes": (0, 62)}, "TCP window (T)"),
        ("NET_RX", {"bytes": (14_418, 14_481)}, "TCP window (T)"),
        ("NET_TX", {}, "Queue discipline (T)"),
        ("NET_RX", {}, "TCP window (T)"),
        ("", {}, "Transmit queue (T)"),
        ("NET_RX", WRITES, "Nagle with delayed ACK (T)"),
        # One write; more than the initial window of a connection; others in flight; nothing held back by an acknowledgement.
        ("NET_RX", WRITES | {"n_reply_messages": 1}, "TCP window (T)"),
        ("NET_RX", WRITES | {"reply_nbytes": 14_481}, "TCP window (T)"),
        ("NET_RX", WRITES | {"join": "framing:http"}, "TCP window (T)"),
        ("NET_TX", WRITES, "Queue discipline (T)"),
    ],
)
def test_way_to_the_driver_is_told_apart_by_what_gave_the_last_packet_away(
    symbol: str, reply: Row, cause: str
) -> None:
    """The send call returns after 500 ns as usual; the driver gets the last byte 300 us later."""
    scene = Served()
    t = USUAL * MS
    scene.one(t, 10 * US, 311 * US)
    start, end = reply.get("bytes", (1_000_000, 1_000_001))
    scene.messages[-1] |= {"byte_start": start, "byte_end": end}
    scene.requests[-1] |= {name: of for name, of in reply.items() if name != "bytes"}
    scene.contexts = [c for c in scene.contexts if not (c["cpu"] == 1 and c["end_ns"] == t + 312 * US)]
    of = ("softirq", symbol, TID, "server") if symbol else ("idle", "idle", 0, "swapper")
    scene.contexts.append(context(1, t + 11 * US, t + 310 * US, "idle", "idle", 0, "swapper"))
    scene.contexts.append(context(1, t + 310 * US, t + 312 * US, *of))
    _, causes, coverage = scene.diagnosed()
    assert causes == {cause: 300 * US}
    assert coverage[0]["explained_ns" if symbol else "located_ns"] == 300 * US


@pytest.mark.parametrize("symbol", ["NET_RX", ""])
@pytest.mark.parametrize(
    ("in_qdisc", "rest"), [(300_500, {}), (200_000, {"NET_RX": "TCP window (T)", "": "Transmit queue (T)"})]
)
def test_queue_discipline_is_told_by_tcps_own_time_whoever_gave_the_last_packet_away(
    symbol: str, in_qdisc: int, rest: dict[str, str]
) -> None:
    """Whoever sends next takes what is due from the queue: another thread, or an acknowledgement. The driver gets the last
    byte 300.5 us after the call returned, 300 us later than usual."""
    scene = Served()
    t = USUAL * MS
    scene.one(t, 10 * US, 311 * US)
    scene.messages[-1] |= {"qdisc_dur_ns": in_qdisc}
    scene.contexts = [c for c in scene.contexts if not (c["cpu"] == 1 and c["end_ns"] == t + 312 * US)]
    of = ("softirq", symbol, TID, "server") if symbol else ("syscall", "sendto", HOLDER, "holder")
    scene.contexts.append(context(1, t + 11 * US, t + 310 * US, "idle", "idle", 0, "swapper"))
    scene.contexts.append(context(1, t + 310 * US, t + 312 * US, *of))
    _, causes, _ = scene.diagnosed()
    assert causes.pop("Queue discipline (T)") == min(in_qdisc, 300 * US)
    assert list(causes) == ([rest[symbol]] if rest else [])
