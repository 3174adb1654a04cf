# SPDX-License-Identifier: GPL-2.0-only
"""Wait chains from a few hand-made rows."""

import pytest
from machinery.made_up.tables import table
from nsight_report.manifest import Manifest
from nsight_report.timeline.recording import host_beside
from nsight_report.waits.kinds import kind_of
from waits_by_hand import activity, chains, intervals, on, ran, told, waited

#: Thread 10 waits for a lock from 100 to 500. Thread 20 holds it: it runs to 200, fsyncs to 400 on the disk, and runs to 500.
STATES = [ran(10, 0, 100), ran(10, 500, 600), ran(20, 0, 200, 1), ran(20, 400, 600, 1)]
CONTEXTS = [
    on(0, 0, 100, "thread", "server", 10),
    on(0, 100, 500, "idle"),
    on(0, 500, 600, "thread", "server", 10),
    on(1, 0, 200, "thread", "worker", 20),
    on(1, 200, 400, "idle"),
    on(1, 400, 450, "syscall", "fsync", 20),
    on(1, 450, 600, "thread", "worker", 20),
]
LOCK = waited(10, 100, 500, "futex", by=20, arg=0x7000)
FSYNC = waited(
    20, 200, 400, "fsync", by=40, state="blocked", context="softirq", symbol="BLOCK", device=254 << 20, operation="write",
    nbytes=4096,
)  # fmt: skip


def test_lock_is_explained_by_what_its_holder_did_meanwhile():
    """The thread runs 100 ns before the wait and 50 after it; in the 400 between, the holder runs 100 + 50 + 50 and fsyncs 200."""
    pieces, lost = chains(intervals((10, 0, 550)), activity(STATES, CONTEXTS, [LOCK, FSYNC]))
    assert told(pieces) == [
        (0, 10, 0, 100, "running", ""),
        (0, 10, 100, 500, "lock", "futex"),
        (0, 10, 500, 550, "running", ""),
        (1, 20, 100, 200, "running", ""),
        (1, 20, 200, 400, "disk", "fsync"),
        (1, 20, 400, 450, "running", "fsync"),
        (1, 20, 450, 500, "running", ""),
    ]
    assert pieces["parent_id"].to_pylist() == [-1, -1, -1, 1, 1, 1, 1]
    assert pieces["is_leaf"].to_pylist() == [True, False, True, True, True, True, True]
    wait, disk = pieces.to_pylist()[1], pieces.to_pylist()[4]
    assert (wait["other_tid"], wait["other_comm"], wait["arg"], wait["sure"]) == (
        20,
        "worker",
        0x7000,
        "measured",
    )
    assert (disk["device"], disk["operation"], disk["nbytes"], disk["other_comm"]) == (
        "254:0",
        "write",
        4096,
        "BLOCK",
    )
    assert lost == {}


def test_chain_is_cut_to_the_interval_that_is_asked_about():
    """From 300 to 420: the wait is 120, of which the holder fsyncs 100 and runs 20."""
    pieces, _ = chains(intervals((10, 300, 420)), activity(STATES, CONTEXTS, [LOCK, FSYNC]))
    assert told(pieces) == [
        (0, 10, 300, 420, "lock", "futex"),
        (1, 20, 300, 400, "disk", "fsync"),
        (1, 20, 400, 420, "running", "fsync"),
    ]


def test_intervals_may_overlap_and_each_has_its_own_pieces():
    asked = intervals((10, 100, 500), (10, 400, 500), (20, 0, 100))
    pieces, _ = chains(asked, activity(STATES, CONTEXTS, [LOCK, FSYNC]))
    leaves = [r for r in pieces.to_pylist() if r["is_leaf"]]
    sums = [sum(r["end_ns"] - r["start_ns"] for r in leaves if r["interval_id"] == i) for i in range(3)]
    assert sums == [400, 100, 100]


def test_deeper_than_asked_the_waker_is_named_and_no_more():
    """Thread 20's wait is for thread 30; with depth 1, what thread 30 does is not examined."""
    for_flusher = waited(20, 200, 400, "fsync", by=30, state="blocked")
    states = [*STATES, ran(30, 0, 600, 1)]
    pieces, lost = chains(intervals((10, 100, 500)), activity(states, CONTEXTS, [LOCK, for_flusher]), depth=1)
    (deepest,) = [r for r in pieces.to_pylist() if r["kind"] == "kernel"]
    assert (deepest["depth"], deepest["other_comm"], deepest["is_leaf"]) == (1, "flusher", True)
    assert lost == {"wait_chain_cut": 1}
    pieces, lost = chains(intervals((10, 100, 500)), activity(states, CONTEXTS, [LOCK, for_flusher]))
    assert max(pieces["depth"].to_pylist()) == 2
    assert lost == {}


def test_circle_is_cut_and_counted():
    """Damaged times: thread 20 waits from 200 to 400 for 10, which waits for 20 all that time."""
    circle = waited(20, 200, 400, "futex", by=10)
    pieces, lost = chains(intervals((10, 100, 500)), activity(STATES, CONTEXTS, [LOCK, circle]))
    assert told(pieces)[2] == (1, 20, 200, 400, "lock", "futex")
    assert pieces["is_leaf"].to_pylist() == [False, True, True, True, True]
    assert lost == {"wait_chain_circular": 1}


def test_more_pieces_than_may_be_are_not_followed_further():
    pieces, lost = chains(intervals((10, 0, 550)), activity(STATES, CONTEXTS, [LOCK, FSYNC]), most=3)
    assert len(pieces) == 3
    assert lost == {"wait_chain_cut": 1}


def test_ready_thread_waits_for_who_has_its_core():
    """Ready from 100 to 300 on core 0: an interrupt has the core for 20, thread 40 for 120, the host for 40, idle for 20."""
    contexts = [
        on(0, 100, 120, "hardirq", "local_timer", 40),
        on(0, 120, 200, "thread", "hog", 40),
        on(0, 200, 240, "syscall", "write", 40),
        on(0, 240, 280, "absent", "steal", 40),
        on(0, 280, 300, "idle"),
    ]
    pieces, _ = chains(intervals((10, 100, 300)), activity([ran(10, 100, 300, 0, "runnable")], contexts, []))
    assert told(pieces) == [
        (0, 10, 100, 120, "run queue", "local_timer"),
        (0, 10, 120, 240, "run queue", "hog"),  # whatever system call that thread is in
        (0, 10, 240, 280, "steal", ""),
        (0, 10, 280, 300, "wake-up", ""),
    ]
    assert pieces["other_tid"].to_pylist() == [-1, 40, -1, -1]
    assert pieces["doing"].to_pylist() == ["runnable", "runnable", "absent", "runnable"]


def test_ready_thread_beside_an_idle_core_has_used_up_its_quota_if_its_process_was_throttled():
    """60 us idle are more than the 50 us of a wake-up; behind the hog it may be throttled, too. Thread 20's process was not throttled."""
    contexts = [on(0, 0, 60_000, "idle"), on(0, 60_000, 70_000, "thread", "hog", 40)]
    states = [ran(10, 0, 70_000, 0, "runnable"), ran(20, 0, 70_000, 0, "runnable")]
    pieces, _ = chains(
        intervals((10, 0, 70_000), (20, 0, 70_000)), activity(states, contexts, [], throttled=(10,))
    )
    assert pieces["kind"].to_pylist() == ["CPU quota", "run queue", "wake-up", "run queue"]
    assert pieces["sure"].to_pylist() == ["inferred", "inferred", "measured", "measured"]


@pytest.mark.parametrize(("state", "inferred"), [("throttled", ()), ("runnable", (10,))])
def test_quotas_are_inferred_only_where_the_scheduler_did_not_tell(state: str, inferred: tuple[int, ...]):
    told = Manifest("tracepoints", False, {"throttled": [{"pids": [10]}]})
    assert host_beside(table("thread_states", [ran(20, 0, 9, 0, state)]), told).throttled == inferred


def test_thread_without_quota_waits_for_that_whoever_has_its_core():
    contexts = [on(0, 0, 500, "thread", "hog", 40), on(0, 500, 600, "idle")]
    states = [ran(10, 0, 450, 0, "throttled"), ran(10, 450, 600, 0, "runnable")]
    pieces, _ = chains(intervals((10, 100, 600)), activity(states, contexts, []))
    assert told(pieces) == [
        (0, 10, 100, 450, "CPU quota", ""),
        (0, 10, 450, 500, "run queue", "hog"),
        (0, 10, 500, 600, "wake-up", ""),
    ]
    assert set(pieces["doing"].to_pylist()) == {"runnable"}
    assert set(pieces["sure"].to_pylist()) == {"measured"}


def test_running_thread_is_interrupted_or_loses_its_core_to_the_host():
    contexts = [
        on(0, 0, 40, "syscall", "write", 10),
        on(0, 40, 60, "softirq", "NET_RX", 10),
        on(0, 60, 90, "absent", "steal", 10),
    ]
    pieces, lost = chains(intervals((10, 0, 100)), activity([ran(10, 0, 100)], contexts, []))
    assert told(pieces) == [
        (0, 10, 0, 40, "running", "write"),
        (0, 10, 40, 60, "interrupt", "NET_RX"),
        (0, 10, 60, 90, "steal", ""),
        (0, 10, 90, 100, "running", "untraced"),
    ]
    assert lost == {}  # it ran; what it ran is unknown


def test_time_without_a_record_is_unknown_and_counted():
    """Thread 10 is known from 100 to 200; thread 77 never existed."""
    asked = intervals((10, 50, 250), (77, 0, 10))
    contexts = [on(0, 100, 200, "thread", "server", 10)]
    pieces, lost = chains(asked, activity([ran(10, 100, 200)], contexts, []))
    assert [(r[2], r[3], r[4]) for r in told(pieces)] == [
        (50, 100, "unknown"), (100, 200, "running"), (200, 250, "unknown"), (0, 10, "unknown"),
    ]  # fmt: skip
    assert lost == {"wait_thread_unknown": 3}


def test_wait_that_nothing_ended_is_counted():
    pieces, lost = chains(intervals((10, 0, 100)), activity([], [], [waited(10, 0, 100, "read")]))
    assert told(pieces) == [(0, 10, 0, 100, "unknown", "read")]
    assert lost == {"wait_without_waker": 1}


def test_empty_intervals_have_no_pieces_and_those_that_end_before_they_begin_are_counted():
    pieces, lost = chains(intervals((10, 100, 100), (10, 100, 90)), activity(STATES, CONTEXTS, [LOCK, FSYNC]))
    assert len(pieces) == 0
    assert lost == {"wait_interval_empty": 1}


def test_two_waits_that_look_alike_are_two():
    waits = [waited(10, 0, 50, "read", by=20), waited(10, 50, 100, "read", by=20)]
    pieces, _ = chains(intervals((10, 0, 100)), activity([ran(20, 0, 100, 1)], CONTEXTS, waits))
    assert [r for r in told(pieces) if r[0] == 0] == [
        (0, 10, 0, 50, "hand-over", "read"), (0, 10, 50, 100, "hand-over", "read"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "kind", "sure", "by_thread"),
    [
        (("sleeping", "futex", "syscall", "", False, False, False), "lock", "measured", True),
        (("sleeping", "read", "thread", "", False, False, False), "hand-over", "measured", True),
        (("sleeping", "recvmsg", "thread", "", False, False, False), "socket", "measured", True),
        (("blocked", "write", "thread", "", False, False, False), "kernel", "measured", True),
        (("blocked", "page fault", "thread", "", False, False, False), "page fault", "measured", True),
        (("sleeping", "wait4", "thread", "", False, False, False), "child", "measured", True),
        (("sleeping", "pause", "thread", "", False, False, False), "signal", "measured", True),
        (("stopped", "read", "thread", "", False, False, False), "stopped", "measured", True),
        (("blocked", "page fault", "thread", "", False, False, True), "reclaim", "inferred", True),
        (("sleeping", "", "thread", "", False, False, False), "hand-over", "inferred", True),
        (
            ("blocked", "page fault", "hardirq", "virtio0-req.0", False, True, False),
            "disk",
            "measured",
            False,
        ),
        (("blocked", "read", "softirq", "BLOCK", False, False, False), "disk", "inferred", False),
        (
            ("sleeping", "clock_nanosleep", "hardirq", "local_timer", False, False, False),
            "timer",
            "measured",
            False,
        ),
        (
            ("sleeping", "epoll_wait", "hardirq", "local_timer", False, False, False),
            "timer",
            "inferred",
            False,
        ),
        (("sleeping", "recvfrom", "softirq", "NET_RX", False, False, False), "packet", "measured", False),
        (("sleeping", "recvfrom", "softirq", "NET_RX", True, False, False), "socket", "inferred", True),
        (("sleeping", "", "softirq", "RCU", False, False, False), "kernel", "inferred", False),
        (("sleeping", "read", "hardirq", "eth0", False, False, False), "device", "measured", False),
        (("sleeping", "read", "hardirq", "reschedule", False, False, False), "device", "inferred", False),
        (("sleeping", "read", "idle", "", False, False, False), "unknown", "missing", False),
        (("sleeping", "read", "", "", False, False, False), "unknown", "missing", False),
    ],
)
def test_kind_follows_from_the_place_and_the_context_of_the_wake_up(row, kind, sure, by_thread):
    assert tuple(kind_of(*row)) == (kind, sure, by_thread)


def test_softirq_that_a_thread_raised_by_sending_is_explained_by_that_thread():
    """Over loopback the sender runs underneath the softirq: thread 20 ran from 0 to 300, then woke 10 from its softirq."""
    wait = waited(10, 0, 300, "recvfrom", by=20, context="softirq", symbol="NET_RX", from_thread=True)
    contexts = [on(1, 0, 290, "thread", "worker", 20), on(1, 290, 300, "softirq", "NET_RX", 20)]
    pieces, _ = chains(intervals((10, 0, 300)), activity([ran(20, 0, 300, 1)], contexts, [wait]))
    assert told(pieces) == [
        (0, 10, 0, 300, "socket", "recvfrom"),
        (1, 20, 0, 290, "running", ""),
        (1, 20, 290, 300, "interrupt", "NET_RX"),
    ]
    assert pieces["sure"].to_pylist()[0] == "inferred"
