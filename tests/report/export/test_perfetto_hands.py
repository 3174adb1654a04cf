# SPDX-License-Identifier: GPL-2.0-only
"""Which threads had requests in hand, as events of a Perfetto trace."""

from __future__ import annotations

from machinery.made_up.tables import table
from nsight_report.export.perfetto_wire import BEGIN, END, INSTANT
from nsight_report.export.perfetto_work import hands
from nsight_report.tables.data_frames import to_pandas

ROWS = [
    (7, 10, "reader", 100, 180, "read", "measured"),
    (7, 20, "worker", 180, 300, "queued", "inferred"),
    (7, 20, "worker", 300, 500, "lock", "measured"),
    (9, 10, "reader", 400, 600, "read", "measured"),
    (9, 30, "\x1b[1m", 600, 700, "memory", "shared"),
]
COLUMNS = ("request_id", "tid", "comm", "start_ns", "end_ns", "how", "sure")
WORK = to_pandas(table("request_work", [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]))
#: Thread 30 was asleep, and on none of the cores that are drawn.
EVENTS = list(hands(WORK, {7: 70, 9: 90}, {10: 1010, 20: 1020}))


def test_slices_tile_the_service_within_the_requests_track():
    got = [(p.track_event.track_uuid, p.timestamp, p.track_event.type) for p in EVENTS]
    slices = [(track, at, kind) for track, at, kind in got if kind != INSTANT]
    assert slices == [
        (track, at, kind)
        for track, begin, end in (
            (70, 100, 180), (70, 180, 300), (70, 300, 500), (90, 400, 600), (90, 600, 700),
        )
        for at, kind in ((begin, BEGIN), (end, END))
    ]  # fmt: skip
    names = [p.track_event.name for p in EVENTS if p.track_event.type == BEGIN]
    assert names[0] == "reader[10]: read it"
    assert names[1] == "worker[20]: had another request"
    assert "\x1b" not in "".join(names)


def test_a_flow_leads_from_thread_to_thread():
    told = [p for p in EVENTS if p.track_event.type == INSTANT]
    of = [(p.track_event.track_uuid, p.timestamp, list(p.track_event.flow_ids)) for p in told]
    first, second = of[0][2][0], told[3].track_event.terminating_flow_ids[0]
    assert of == [(1010, 100, [first]), (1020, 180, [first]), (1020, 300, []), (1010, 400, [])]
    assert list(told[2].track_event.terminating_flow_ids) == [first] != [second]
    # Flow numbers of timestamps are message numbers plus one.
    assert min(first, second) > 1 << 32
