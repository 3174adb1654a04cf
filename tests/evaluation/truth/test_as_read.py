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
    # Its log says which ports pass the rules, not when: their softirq also delays other messages.
    assert ends["nftables rules"] == ends["hog on the application core"] == {""}
