# SPDX-License-Identifier: GPL-2.0-only
"""Interrupts in the thread that works on another message: part of that work, or a cause of their own if they are too long for it."""

from __future__ import annotations

import pandas as pd
import pytest
from machinery.made_up.scene import Scene
from machinery.made_up.tables import TID, message, syscall
from nsight_report.anomalies import Recording, Selection, Slice, find
from nsight_report.attribution import attribute
from nsight_report.timeline.exposure import usual_interrupt_ns

US = 1_000
SLOWEST = Selection(slow=Slice.parse("1ms-"), granularity_ns=50)


def causes(softirq_ns: int, count: int) -> dict[str, int]:
    """Causes of a message that waits behind another one of its thread, which meets ``count`` softirqs meanwhile; the 40 usual
    messages meet one of 100 ns each."""
    scene = Scene()
    t = scene.quiet(40)
    for row in [r for r in scene.contexts if r["symbol"] == "read"]:
        end, row["end_ns"] = row["end_ns"], row["start_ns"] + 300
        scene.contexts += [
            {**row, "start_ns": end - 600, "end_ns": end - 500, "kind": "softirq", "symbol": "NET_RX"},
            {**row, "start_ns": end - 500, "end_ns": end},
        ]
    # The thread reads the first message at 1000 and the second one at the end.
    until = 1500 + count * (softirq_ns + US)
    scene.messages.append(message(40, t, t + 500, t + 1000))
    scene.messages.append(message(41, t + 1100, t + 1200, t + until))
    core1 = [(0, 600, "idle", "idle", 0, "swapper"), (600, 1500, "syscall", "read", TID, "server")]
    for n in range(count):
        at = 1500 + n * (softirq_ns + US)
        core1 += [(at, at + softirq_ns, "softirq", "NET_RX", TID, "server")]
        core1 += [(at + softirq_ns, at + softirq_ns + US, "thread", "server", TID, "server")]
    scene.cores(
        t, [(0, 1300, "softirq", "NET_RX", 7, "client"), (1300, until, "idle", "idle", 0, "swapper")], core1
    )
    scene.threads(t, [(0, 600, "sleeping"), (600, until + 100, "running")])
    scene.calls.append(syscall(TID, t + 800, t + 1000, "read"))
    scene.calls.append(syscall(TID, t + until - 200, t + until, "read"))
    compared, found, *_ = find(Recording(*scene.tables(), None), SLOWEST)
    _, _, table, _ = attribute(found, compared, SLOWEST)
    return {r["cause"]: r["total_deviation_ns"] for r in table.to_pylist()}


def test_many_long_softirqs_in_one_slow_message_do_not_become_usual() -> None:
    # 100 of 60 us: more than all that usual messages meet (100 ns), and longer than belongs to the work on a message (50 us).
    found = causes(60 * US, 100)
    assert found["Receive processing (A)"] == 6_000 * US - 100
    assert found["Head-of-line blocking (A)"] == pytest.approx(100 * US, rel=0.05)


def test_short_softirqs_are_part_of_the_work_on_the_message_ahead() -> None:
    found = causes(20 * US, 100)
    assert found["Head-of-line blocking (A)"] == pytest.approx(2_100 * US, rel=0.05)
    assert "Receive processing (A)" not in found


def test_each_message_counts_once_in_the_usual_length_of_an_interrupt() -> None:
    messages = pd.DataFrame({"app_cpu": [1, 1, 1], "first_ns": [0, 100, 200], "last_ns": [50, 150, 290]})
    short = [(1, 10, 15, "softirq", 7), (1, 110, 117, "hardirq", 7)]
    others = [(1, 20, 45, "softirq", 8), (0, 20, 45, "softirq", 7), (1, 120, 140, "thread", 7)]
    flood = [(1, at, at + 9, "softirq", 7) for at in range(200, 290, 10)]
    rows = pd.DataFrame([*short, *others, *flood], columns=["cpu", "start_ns", "end_ns", "kind", "tid"])
    assert usual_interrupt_ns(messages, rows, pd.Series([7]).to_numpy()) == 7  # of 5, 7 and 9
    assert usual_interrupt_ns(messages, rows[:0], pd.Series([7]).to_numpy()) == 0
