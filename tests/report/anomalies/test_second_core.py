# SPDX-License-Identifier: GPL-2.0-only
"""A message that a second core hands off is delayed by that core, or by the thread that had locked the socket."""

from __future__ import annotations

import pytest
from machinery.made_up.scene import Scene
from machinery.made_up.tables import TID, message
from nsight_report.anomalies import Recording, Selection, Slice, find
from nsight_report.attribution import attribute

IDLE = (0, "swapper")
#: Core 0 sees the packet at 400 in its softirq, and does nothing for it from 800 on.
CORE0 = [(0, 800, "softirq", "NET_RX", 7, "client"), (800, 20_000, "idle", "idle", *IDLE)]
READS = (5600, 6500, "syscall", "read", TID, "server")


def causes(core1: list[tuple], threads: list[tuple], *others: dict[str, object]) -> dict[str, int]:
    """Causes of one message that core 1 hands off at 5,500: 5,000 ns later than 40 usual ones."""
    scene = Scene()
    t = scene.quiet(40)
    steered = {"arrival_ns": t + 400, "arrival_last_ns": t + 400, "handoff_cpu": 1}
    scene.messages.append(message(40, t, t + 5500, t + 6000, **steered))
    for at, other in enumerate(others, 41):
        moved = {name: t + int(ns) for name, ns in other.items() if name.endswith("_ns")}
        scene.messages.append(message(at, t + 300, t + 5000, t + 6000, **{**other, **moved}))
    scene.cores(t, CORE0, core1)
    scene.threads(t, threads)
    options = Selection(slow=Slice.parse("id:40"), app="server", granularity_ns=50)
    compared, found, *_ = find(Recording(*scene.tables()), options)
    return {r["cause"]: r["total_deviation_ns"] for r in attribute(found, compared, options)[2].to_pylist()}


WAKES = [(0, 5600, "sleeping"), (5600, 6500, "running")]


def test_who_kept_the_second_core_from_its_softirq_is_the_cause() -> None:
    core1 = [(0, 5300, "thread", "hog", 50, "hog"), (5300, 5600, "softirq", "NET_RX", 50, "hog"), READS]
    # The hog: from 800, the end of the first core's softirq, to 5,300.
    # Two softirqs instead of one took 500 more.
    assert causes(core1, WAKES) == {"hog (R)": 4500, "Receive processing (R)": 500}


@pytest.mark.parametrize("arrives", [0, 1])
def test_packets_of_others_that_the_second_core_received_are_interference(arrives: int) -> None:
    core1 = [(0, 700, "idle", "idle", *IDLE), (700, 5600, "softirq", "NET_RX", 0, "swapper"), READS]
    other = {"comm": "other", "pid": 300, "tid": 300, "conn_id": 9, "arrival_ns": 350, "arrival_last_ns": 350,
             "recv_cpu": arrives, "handoff_cpu": 1}  # fmt: skip
    # The second core works on the other message until 5,000, then 500 ns on ours; the first core took 800 ns.
    assert causes(core1, WAKES, other) == {"other receive (R)": 5000 - 800, "Receive processing (R)": 800}


@pytest.mark.parametrize("n_usual, others", [(19, 4200), (20, 100)])
def test_a_message_behind_packets_that_were_not_recorded_does_not_own_the_second_core(
    n_usual: int, others: int
) -> None:
    """Both waited in its queue. The core usually takes 100 ns for one: 20 that were handed off at once show it, 19 do not."""
    core1 = [(0, 700, "idle", "idle", *IDLE), (700, 5600, "softirq", "NET_RX", 0, "swapper"), READS]
    other = {"comm": "other", "pid": 300, "tid": 300, "conn_id": 9, "recv_cpu": 0, "handoff_cpu": 1}
    usual = [
        other | {"arrival_ns": at, "arrival_last_ns": at, "handoff_ns": at + 100}
        for at in range(10_000, 10_000 + 200 * (n_usual - 2), 200)
    ]
    ahead = other | {"arrival_ns": 350, "arrival_last_ns": 350}
    assert causes(core1, WAKES, ahead, *usual) == {
        "other receive (R)": others,
        "Receive processing (R)": 5000 - others,
    }


def test_a_packet_in_the_backlog_of_a_locked_socket_waits_for_its_application() -> None:
    core1 = [
        (0, 600, "thread", "server", TID, "server"),
        (600, 5600, "syscall", "sendto", TID, "server"),
        READS,
    ]
    found = causes(core1, [(0, 6500, "running")])
    assert found == {"Application processing (A)": 5500 - 800, "Receive processing (R)": 800 - 500}


def test_who_preempts_the_thread_that_locked_the_socket_is_the_cause() -> None:
    core1 = [(0, 1000, "syscall", "sendto", TID, "server"), (1000, 5000, "thread", "hog", 50, "hog"),
             (5000, 5600, "syscall", "sendto", TID, "server"), READS]  # fmt: skip
    threads = [(0, 1000, "running"), (1000, 5000, "runnable"), (5000, 6500, "running")]
    assert causes(core1, threads)["hog (A)"] == 4000
