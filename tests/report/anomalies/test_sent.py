# SPDX-License-Identifier: GPL-2.0-only
"""Sent messages: what their application receives meanwhile is the application's, and the way to the driver is not sleep."""

from __future__ import annotations

from machinery.made_up.scene import Scene
from machinery.made_up.tables import PID, TID, Row, context, message, syscall
from nsight_report.anomalies import Recording, Selection, Slice, find
from nsight_report.attribution import attribute


def sent(i: int, t: int, returned: int, driver: int, **over: object) -> Row:
    """A reply whose send call was entered at ``t``."""
    row = message(
        i, t, t, t, direction="tx", first_ns=t, last_ns=driver, latency_ns=driver - t, nic_ns=None, arrival_ns=None,
        arrival_last_ns=None, handoff_ns=None, call_ns=t, app_ns=returned, driver_ns=driver, timestamps="sd",
    )  # fmt: skip
    return row | over


def causes(scene: Scene) -> dict[str, int]:
    """Total deviation by cause of the sent messages that took 3 us or longer; others take 1 us."""
    options = Selection(slow=Slice.parse("3us-"), granularity_ns=50, direction="tx")
    compared, found, *_ = find(Recording(*scene.tables()), options)
    _, _, table, _ = attribute(found, compared, options)
    return {r["cause"]: r["total_deviation_ns"] for r in table.to_pylist()}


def replies(scene: Scene, n: int) -> int:
    """``n`` usual ones, 100 us apart: sent and at the driver within 1 us; returns the time after them."""
    for i in range(n):
        t = i * 100_000
        scene.messages.append(sent(len(scene.messages), t, t + 1000, t + 1000))
        scene.cores(
            t,
            [(0, 100_000, "idle", "idle", 0, "swapper")],
            [(0, 1000, "syscall", "sendto", TID, "server"), (1000, 100_000, "idle", "idle", 0, "swapper")],
        )
        scene.threads(t, [(0, 1000, "running"), (1000, 100_000, "sleeping")])
    return n * 100_000


def test_own_receive_processing_beside_a_send_is_no_interference() -> None:
    scene = Scene()
    t = replies(scene, 40)
    # A softirq of 80 us interrupts the send: it receives the next request of the same process.
    scene.messages.append(sent(40, t, t + 81_000, t + 81_000))
    scene.messages.append(
        message(
            41, t + 500, t + 80_500, t + 90_000, arrival_ns=t + 500, arrival_last_ns=t + 80_400, recv_cpu=1
        )
    )
    scene.contexts += [
        context(0, t, t + 100_000, "idle", "idle", 0, "swapper"),
        context(1, t, t + 500, "syscall", "sendto", TID, "server"),
        context(1, t + 500, t + 80_500, "softirq", "NET_RX", TID, "server"),
        context(1, t + 80_500, t + 81_000, "syscall", "sendto", TID, "server"),
        context(1, t + 81_000, t + 100_000, "idle", "idle", 0, "swapper"),
    ]
    scene.threads(t, [(0, 90_000, "running"), (90_000, 100_000, "sleeping")])
    assert causes(scene) == {"Receive processing (A)": 80_000}


def test_another_process_received_beside_a_send_is_interference() -> None:
    scene = Scene()
    t = replies(scene, 40)
    scene.messages.append(sent(40, t, t + 81_000, t + 81_000))
    scene.messages.append(
        message(41, t + 500, t + 80_500, t + 90_000, arrival_ns=t + 500, arrival_last_ns=t + 80_400, recv_cpu=1,
                pid=PID + 1, tid=TID + 1, comm="other", lport=9999)
    )  # fmt: skip
    scene.contexts += [
        context(0, t, t + 100_000, "idle", "idle", 0, "swapper"),
        context(1, t, t + 500, "syscall", "sendto", TID, "server"),
        context(1, t + 500, t + 80_500, "softirq", "NET_RX", TID, "server"),
        context(1, t + 80_500, t + 100_000, "syscall", "sendto", TID, "server"),
    ]
    scene.threads(t, [(0, 100_000, "running")])
    # 79.9 us from its arrival to its hand-off, and 0.1 us of softirq after that.
    assert causes(scene) == {"other receive (A)": 79_900, "Receive processing (A)": 100}


def test_waiting_for_the_congestion_window_while_the_thread_sleeps_is_the_transmit_queue() -> None:
    scene = Scene()
    t = replies(scene, 40)
    # The send returns after 1 us as usual; an ACK opens the window 49 us later. Meanwhile the thread is in epoll_wait.
    scene.messages.append(sent(40, t, t + 1000, t + 50_000))
    scene.calls.append(syscall(TID, t + 1100, t + 100_000, "epoll_wait"))
    scene.cores(
        t,
        [(0, 100_000, "idle", "idle", 0, "swapper")],
        [(0, 1100, "syscall", "sendto", TID, "server"), (1100, 100_000, "idle", "idle", 0, "swapper")],
    )
    scene.threads(t, [(0, 1100, "running"), (1100, 100_000, "sleeping")])
    assert causes(scene) == {"Transmit queue (R)": 49_000}


def test_sends_whose_call_was_not_recorded_have_no_latency_and_no_causes() -> None:
    """Their driver has them before the send returns. Nothing else is known, as in a recording of waits only."""
    scene = Scene()
    for i in range(40):
        t = i * 100_000
        scene.messages.append(sent(i, t, t + 500, t, call_ns=None))
    scene.cores(
        0, [(0, 4_000_000, "idle", "idle", 0, "swapper")], [(0, 4_000_000, "thread", "server", TID, "server")]
    )
    scene.threads(0, [(0, 4_000_000, "running")])
    compared, found, *_ = find(Recording(*scene.tables()), Selection(direction="tx"))
    assert {r["latency_ns"] for r in compared.to_pylist()} == {0}
    assert found.num_rows == 0
