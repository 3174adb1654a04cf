# SPDX-License-Identifier: GPL-2.0-only
"""What requests waited for, in texts that are equal for requests that waited for the same thing."""

from __future__ import annotations

from typing import Any

import numpy as np
from machinery.made_up.tables import table
from nsight_report.losses import Ledger
from nsight_report.tables.messages import Messages
from nsight_report.timeline.recording import Waits
from nsight_report.waits import Activity
from nsight_report.waits.reasons import Explainer, is_explained
from waits_by_hand import activity, on, ran, waited

PEER = {"role": "client", "raddr": "10.0.0.9", "rport": 5432}


def asked(tid: int, start: int, end: int, unread: bool = False, request: int = 7) -> Waits:
    return Waits(np.array([tid]), np.array([start]), np.array([end]), np.array([request]), np.array([unread]))


def explainer(of: Activity, sent: list[dict[str, Any]] | None = None) -> Explainer:
    return Explainer(of, Messages(table("requests", sent or []), "requests"), Ledger("waits"))


def told(of: Activity, waits: Waits, sent: list[dict[str, Any]] | None = None) -> list[tuple[int, int, str]]:
    """(start, end, text)"""
    r = explainer(of, sent)(waits)
    return [
        (s, e, r.texts[t]) for s, e, t in zip(r.start.tolist(), r.end.tolist(), r.text.tolist(), strict=True)
    ]


def woken(by: dict[str, Any], names: tuple[str, str], pids: tuple[int, int]) -> Activity:
    """Thread 10 waits from 100 to 500 and is woken by thread 20, which sleeps voluntarily from 150 to 480."""
    states = [
        {**ran(10, 0, 100), "pid": pids[0], "comm": names[0]},
        {**ran(20, 100, 150, 1), "pid": pids[1], "comm": names[1]},
        {**ran(20, 480, 600, 1), "pid": pids[1], "comm": names[1]},
    ]
    contexts = [
        on(1, 100, 150, "thread", "worker", 20),
        on(1, 150, 480, "idle"),
        on(1, 480, 600, "thread", "worker", 20),
    ]
    sleep = waited(20, 150, 480, "clock_nanosleep", by=-1, context="hardirq", symbol="local_timer")
    made = activity(states, contexts, [{**waited(10, 100, 500, by.pop("place"), by=20), **by}, sleep])
    comm, pid = dict(zip((10, 20), names, strict=True)), dict(zip((10, 20), pids, strict=True))
    rows = [{**r, "pid": pid[r["tid"]], "comm": comm[r["tid"]]} for r in made.thread_states.to_pylist()]
    return Activity(table("thread_states", rows), made.contexts, made.waits)


def test_lock_is_told_with_its_holder_and_what_that_did_and_no_ns_twice() -> None:
    """Of the 400 ns the holder runs 50 + 20 and sleeps 330; threads are named without their numbers."""
    of = woken({"place": "futex", "waker_comm": "worker"}, ("server", "worker"), (10, 10))
    assert told(of, asked(10, 100, 500)) == [
        (100, 150, "lock: waited in futex for worker (lock), which ran"),
        (150, 480, "lock: waited in futex for worker (lock), which slept in clock_nanosleep"),
        (480, 500, "lock: waited in futex for worker (lock), which ran"),
    ]
    assert explainer(of).chains(np.array([10]), np.array([100]), np.array([500])) == [
        "waited in futex for worker[20] (lock), which slept in clock_nanosleep"
    ]


def test_who_worked_on_the_request_in_the_same_process_is_no_reason_and_what_it_did_is() -> None:
    of = woken({"place": "read", "waker_comm": "worker"}, ("server", "worker"), (10, 10))
    kinds = [text.partition(":")[0] for _, _, text in told(of, asked(10, 100, 500))]
    assert kinds == ["own thread", "sleep", "own thread"]


def test_another_process_of_the_same_program_holds_a_latch_and_of_another_is_another_process() -> None:
    for names, kind in ((("postgres", "postgres"), "latch"), (("nginx", "postgres"), "process")):
        of = woken({"place": "epoll_wait", "waker_comm": names[1]}, names, (10, 20))
        assert {text.partition(":")[0] for _, _, text in told(of, asked(10, 100, 500))} == {kind}


def test_reply_to_a_request_that_was_sent_meanwhile_names_whom_it_was_sent_to() -> None:
    """Sent at 120: what it waited for before that is not for this reply. A sent request of another request does not count."""
    packet = waited(10, 100, 500, "recvfrom", context="softirq", symbol="NET_RX")
    of = activity([ran(10, 0, 100), ran(10, 500, 600)], [on(0, 0, 600, "idle")], [packet])
    sent = [{**PEER, "request_id": 9, "parent_request_id": 7, "first_ns": 90, "last_ns": 520}]
    assert told(of, asked(10, 100, 500), sent) == [
        (100, 500, "backend: reply of 10.0.0.9:5432: waited in recvfrom for a packet")
    ]
    for other in ({"parent_request_id": 8}, {"first_ns": 501}, {"last_ns": 100}):
        assert told(of, asked(10, 100, 500), [{**sent[0], **other}]) == [
            (100, 500, "packet: waited in recvfrom for a packet")
        ]


def test_wait_for_events_while_the_request_is_unread_is_left_to_the_wake_up() -> None:
    """Whatever woke it, the delay lies in what happened after the wake-up, unless it waited for something else."""
    for place, n in (("epoll_wait", 0), ("recvfrom", 0), ("futex", 3)):
        of = woken({"place": place, "waker_comm": "worker"}, ("server", "worker"), (10, 10))
        assert len(told(of, asked(10, 100, 500, unread=True))) == n


def test_kernel_threads_of_one_kind_are_one() -> None:
    """Two workers of a pool end waits: their thread names differ, but the text is the same."""
    waits = [
        waited(10, 100, 200, "fsync", by=30, state="blocked", waker_comm="kworker/u8:1"),
        waited(10, 200, 300, "fsync", by=40, state="blocked", waker_comm="kworker/u8:2"),
    ]
    of = activity([ran(10, 0, 100)], [on(0, 0, 600, "idle")], waits)
    assert {text for _, _, text in told(of, asked(10, 100, 300))} == {
        "kernel: waited in fsync for kworker (inside of the kernel), which is not in the recording"
    }


def test_only_what_this_module_says_counts_as_explained() -> None:
    assert is_explained("latch: waited in epoll_wait for postgres (hand-over), which ran")
    assert not is_explained("retransmission: dropped here, SOCKET_RCVBUFF")
    assert not is_explained("in the queue discipline")


def test_of_requests_sent_side_by_side_the_one_whose_reply_ended_the_wait_is_named() -> None:
    """The first is still open when the second, sent later, has been answered; then the second's reply is the one in between."""
    packet = waited(10, 100, 500, "recvfrom", context="softirq", symbol="NET_RX")
    of = activity([ran(10, 0, 100), ran(10, 500, 600)], [on(0, 0, 600, "idle")], [packet])
    long = {**PEER, "request_id": 9, "parent_request_id": 7, "first_ns": 50, "last_ns": 520}
    for beside, port in (
        ({"first_ns": 60, "last_ns": 70}, 5432),
        ({"first_ns": 60, "last_ns": 510}, 6379),
        ({"first_ns": 60, "last_ns": 530}, 5432),
    ):
        sent = [long, {**long, "request_id": 11, "rport": 6379, **beside}]
        assert told(of, asked(10, 100, 500), sent) == [
            (100, 500, f"backend: reply of 10.0.0.9:{port}: waited in recvfrom for a packet")
        ]
