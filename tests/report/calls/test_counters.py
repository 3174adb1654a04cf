# SPDX-License-Identifier: GPL-2.0-only
"""What performance counters counted between two readings, and the share of each message and role."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from machinery.made_up.scene import Scene
from machinery.made_up.tables import TID, table
from nsight_report.anomalies import Recording, find
from nsight_report.calls import counters
from nsight_report.capture.perf_data import CODE, EVENT
from nsight_report.counters import Counted, of_messages
from nsight_report.losses import Ledger
from nsight_report.tables.data_frames import to_pandas
from report.anomalies.test_causes import SLOWEST, SOFTIRQ, slow

NAMES = ("instructions", "", "cache-misses")


def rows(*events: tuple[str, int, int, int, int], lost: int = 0) -> list[tuple[object, ...]]:
    """Rows made from events (kind, cpu, ts, a, b); ``lost``: number of readings rejected because records were lost."""
    array = np.zeros(len(events), EVENT)
    for event, (kind, cpu, ts, a, b) in zip(array, events, strict=True):
        event["kind"], event["cpu"], event["ts"], event["a"], event["b"] = CODE[kind], cpu, ts, a, b
    ledger = Ledger("calls")
    found = counters.table(SimpleNamespace(events=array), NAMES, ledger)
    assert sum(row["count"] for row in ledger.table().to_pylist()) == lost
    return [tuple(row.values()) for row in found.to_pylist()]


def test_a_reading_counts_from_the_one_before_on_its_core():
    assert rows(
        ("counter", 0, 100, 0, 1 << 50),  # start of counting unknown
        ("counter", 1, 150, 0, 1 << 50),
        ("counter", 0, 200, 0, 70),
        ("counter", 0, 200, 1, 5),  # a counter that does not exist
        ("counter", 0, 200, 2, 3),
        ("sched_switch", 0, 200, 7, 0),
        ("counter", 1, 260, 0, 0),
        ("counter", 1, 260, 2, 8),
        ("counter", 0, 290, 0, -4),
        ("counter", 0, 290, 7, 4),  # a counter number that cannot exist
    ) == [
        (0, 100, 200, "cache-misses", 3),
        (0, 100, 200, "instructions", 70),
        (
            0,
            200,
            290,
            "instructions",
            -4,
        ),  # a reading that was interrupted: the next one counts that much more
        (1, 150, 260, "cache-misses", 8),
    ]


def test_what_was_counted_while_records_were_lost_is_not_known():
    assert rows(
        ("counter", 0, 100, 0, 1), ("lost", 0, 150, 9, 0), ("counter", 0, 200, 0, 70), ("counter", 0, 300, 0, 80),
        lost=1,
    ) == [(0, 200, 300, "instructions", 80)]  # fmt: skip


def test_messages_have_their_share_of_what_their_core_counted():
    """40 usual messages read for 400 ns on a second core, one reads for 1,600: per ns 2 instructions and 1/10 of a miss there."""
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 2200, SOFTIRQ,
         [(0, 600, "idle", "idle", 0, "swapper"), (600, 2200, "syscall", "read", TID, "server"),
          (2200, 20_000, "idle", "idle", 0, "swapper")],
         [(0, 600, "sleeping"), (600, 2200, "running"), (2200, 20_000, "sleeping")])  # fmt: skip
    end = t + 20_000
    spans = [
        {"cpu": 1, "start_ns": a, "end_ns": a + 1000, "counter": name, "count": count}
        for a in range(0, end, 1000)
        for name, count in (("cache-misses", 100), ("instructions", 2000))
    ]
    compared, _, _, counts = find(Recording(*scene.tables(), counters=table("counters", spans)), SLOWEST)
    found = {one.name: one[1:] for one in of_messages(to_pandas(counts), to_pandas(compared))}
    assert found == {
        "cache-misses per message": pytest.approx((160, 40)),
        "cache-misses per 1,000 instructions": pytest.approx((50, 50)),
        "instructions per message": pytest.approx((3200, 800)),
    }


def test_a_counter_that_counted_nothing_of_a_message_is_0_there():
    compared = pd.DataFrame(
        {"message_id": [1, 2, 3, 4], "role": ["slow", "baseline", "baseline", "baseline"]}
    )
    counts = pd.DataFrame({
        "message_id": [1, 1, 2, 2, 3, 3, 4], "role": ["slow"] * 2 + ["baseline"] * 5,
        "counter": ["cycles", "instructions"] * 3 + ["page-faults"], "count": [100.0, 50.0, 10.0, 20.0, 10.0, 20.0, 3.0],
    })  # fmt: skip
    assert of_messages(counts, compared) == [
        Counted("cycles per message", 100, 10),
        Counted("instructions per message", 50, 20),
        # Without any cycles the message has no ratio.
        Counted("instructions per cycle", 0.5, 2),
        Counted("page-faults per message", 0, 0),
        Counted("page-faults per 1,000 instructions", 0, 0),
    ]
    assert of_messages(counts[:0], compared) == []


def test_where_nothing_was_counted_there_is_no_figure():
    """Message 3 was on a core without counters; message 1 has no cycles, and the baseline messages have no instructions."""
    compared = pd.DataFrame({"message_id": [1, 2, 3], "role": ["slow", "baseline", "baseline"]})
    counts = pd.DataFrame({
        "message_id": [1, 2, 2], "role": ["slow", "baseline", "baseline"],
        "counter": ["instructions", "cycles", "cache-misses"], "count": [50.0, 30.0, 2.0],
    })  # fmt: skip
    assert of_messages(counts, compared) == [
        Counted("cache-misses per message", 0, 2),
        Counted("cache-misses per 1,000 instructions", 0, None),
        Counted("cycles per message", 0, 30),
        Counted("instructions per message", 50, 0),
        Counted("instructions per cycle", None, 0),
    ]
