# SPDX-License-Identifier: GPL-2.0-only
"""A report is compared with its run phase by phase, where an injection acts in both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from evaluation.truth.as_read import AsRead, cost_ns, judge, phases
from evaluation.truth.scenarios import FLOOD, SCENARIOS

#: The last message waits from 1,000 to 1,700, is handed off at 1,200, and usually takes 40 (10 to the hand-off).
MESSAGES = pd.DataFrame(
    {"message_id": [1, 2, 3], "first_ns": [0, 100, 1000], "handoff_ns": [10, 110, 1200], "last_ns": [40, 140, 1700]}
)  # fmt: skip
#: The injection acts from 900 to 1,600: 190 ns of cost before the hand-off (it usually takes 10), 400 after it.
FLOODED = np.array([[900, 1600]])


def judged(expected: tuple[str, ...], **blamed: int) -> AsRead:
    """A report of message 3; ``blamed``: ns by phase."""
    rows = [{"message_id": 3, "category": "port 9 receive", "side": k, "deviation_ns": n} for k, n in blamed.items()]  # fmt: skip
    causes: list[dict[str, Any]] = [
        {"cause": f"{r['category']} ({r['side']})", "total_deviation_ns": r["deviation_ns"]} for r in rows
    ]
    causes.sort(key=lambda c: -int(c["total_deviation_ns"]))
    cost = pd.DataFrame(
        {
            end: cost_ns(MESSAGES, FLOODED, None, between)
            for end, between in phases(expected, "intervals").items()
        },
        [1, 2, 3],
    )
    return judge(causes, expected, pd.Series([3]), pd.DataFrame(rows), cost)


def test_each_phase_has_the_cost_that_the_log_shows_in_it() -> None:
    read = judged(FLOOD, R=190, A=400)
    assert (read.first, read.right) == ("port 9 receive (A)", True)
    assert (read.named_ns, read.true_ns, read.hit_ns) == (590, 590, 590)


def test_ns_of_the_other_phase_are_wrong() -> None:
    read = judged(FLOOD, R=400, A=190)
    assert (read.first, read.right) == ("port 9 receive (R)", False)
    assert (read.named_ns, read.true_ns, read.hit_ns) == (590, 590, 190 + 190)


def test_causes_of_one_phase_alone_have_the_whole_cost() -> None:
    read = judged(("port 9 receive (A)",), A=560)
    # 700 less the usual 40 is more than the 600 in which the injection acted.
    assert (read.right, read.true_ns, read.hit_ns) == (True, 600, 560)


def test_a_flood_is_judged_by_phase_and_what_has_no_times_is_not() -> None:
    ends = {s.name: set(phases(s.causes, s.truth)) for s in SCENARIOS}
    assert ends["softirq load behind a bridge"] == {"(R)", "(A)"}
    assert ends["nftables rules"] == {"(R)", "(A)"}
    assert ends["20 requests at once, 1 connection"] == ends["hog on the application core"] == {""}


def test_messages_that_wait_behind_rules_for_other_ports_count_and_those_on_another_core_do_not() -> None:
    """Core 0 receives a packet through the rules from 900 to 1,600. Port 1's message is the packet, port 2's waits for the core, port
    3's is on another one, and port 4's is usual: it takes 10 to its hand-off, and 30 from there."""
    rows = [
        # id, port, first, hand-off, last, core of the arrival, of the hand-off, of the application
        (1, 1, 900, 1610, 1640, 0, 0, 1),
        (2, 2, 1000, 1650, 1680, 0, 0, 1),
        (3, 3, 1000, 1650, 1680, 2, 2, 1),
        (4, 4, 100, 110, 140, 0, 0, 1),
        (5, 5, 1000, 1010, 1700, 2, 2, 0),  # its application waits for core 0
    ]
    columns = [
        "message_id",
        "rport",
        "first_ns",
        "handoff_ns",
        "last_ns",
        "recv_cpu",
        "handoff_cpu",
        "app_cpu",
    ]
    messages = pd.DataFrame(rows, columns=columns).astype({"recv_cpu": "Int32", "handoff_cpu": "Int32"})
    messages.loc[3, "recv_cpu"] = pd.NA
    acted, cores = np.array([[900, 1500], [900, 1600]]), np.array([0, 0])
    cost = {
        end: cost_ns(messages, acted, cores, between).tolist()
        for end, between in phases(FLOOD, "intervals").items()
    }
    # Usual to the hand-off: the median of 10, 10 and 650; after it: of four times 30.
    assert cost == {"(R)": [700, 600, 0, 0, 0], "(A)": [0, 0, 0, 0, 590]}
