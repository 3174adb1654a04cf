# SPDX-License-Identifier: GPL-2.0-only
"""The witness of steal time: gaps of a thread that reads the clock, against what a recording says."""

from __future__ import annotations

import numpy as np

from evaluation.truth.host import EDGE, LEFT, RUNNING, Judged, judge


def test_what_the_host_had_is_a_gap_without_a_switch_less_the_interrupts() -> None:
    us = 1000
    witness = us * np.array([
        (0, 0, 0),
        (1000, 2000, 0),  # 200 of it a handler: the host had 800
        (3000, 5000, 0),  # another thread had the core: not judged
        (6000, 6500, 0),  # not named
        (7000, 7050, 0),  # too short
        (10_000, 10_000, 0),
    ])  # fmt: skip
    witness[:, 2] = [EDGE, RUNNING, LEFT, RUNNING, RUNNING, EDGE]
    absent = us * np.array([(1500, 2200), (4000, 4500), (9000, 9300)])
    interrupts = us * np.array([(1100, 1300), (3200, 3300)])
    # Judged: 10000 - 2000 of the other thread - 200 of the handler - 50. Named: 500 right; 200 + 300 while the witness ran.
    expected = (7750, 1300, 1000, 500, 500, 800, 50)
    assert judge(witness, absent, interrupts) == Judged(*(us * n for n in expected))


def test_without_gaps_there_is_nothing_to_miss() -> None:
    none = np.zeros((0, 2), np.int64)
    witness = np.array([(0, 0, EDGE), (50, 50, EDGE)])
    assert judge(witness, none, none) == Judged(50, 0, 0, 0, 0, 0, 0)
