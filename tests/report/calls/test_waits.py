# SPDX-License-Identifier: GPL-2.0-only
"""Waits of threads: in which call, what woke the thread, and in which context that happened."""

from event_arrays import (
    CLIENT,
    HOG,
    LOCAL_TIMER,
    SERVER,
    STRINGS,
    T0,
    D,
    S,
    T,
    array,
    enter,
    event,
    leave,
    switch,
    wake,
)
from nsight_report import calls
from nsight_report.calls import waits
from nsight_report.capture.perf_data import Decoded
from nsight_report.waits.kinds import Verdict, kind_of

SYSCALLS = {0: "read", 1: "write", 74: "fsync", 202: "futex"}
DISK = 254 << 20


def build(*events):
    """Rows of ``waits``, with times as written in this file."""
    every = array(*events)
    made = calls.build(Decoded(every, STRINGS, "monotonic", {}), SYSCALLS)
    table = waits.build(every, *made[:3], {str(n): name for n, name in SYSCALLS.items()})
    rows = table.to_pylist()
    for row in rows:
        row["start_ns"] -= T0
        row["end_ns"] -= T0
    return rows


def only(rows, tid):
    (row,) = [row for row in rows if row["tid"] == tid]
    return row


def began(cpu=0):
    """Thread 10 runs on core 0, and 20 on core 1."""
    return [
        switch(0, 0, 10, cpu=0, names=(0, SERVER)),
        switch(0, 0, 20, cpu=1, names=(0, CLIENT)),
    ]


def test_thread_that_wakes_another_is_its_waker_and_the_system_call_is_what_that_was_in():
    row = only(
        build(
            *began(),
            enter(90, 10, 202, 0x7000),
            switch(100, 10, 0, S, names=(SERVER, 0)),
            wake(300, 10, by=20, target=0, cpu=1),
            switch(310, 0, 10, names=(0, SERVER)),
            leave(320, 10, 202),
            event(400, "page_fault_user", 20, cpu=1),
        ),
        10,
    )
    assert (row["start_ns"], row["end_ns"], row["state"], row["cpu"]) == (100, 300, "sleeping", 0)
    assert (row["place"], row["arg"]) == ("futex", 0x7000)
    assert (row["waker_tid"], row["waker_comm"], row["waker_cpu"], row["context"]) == (
        20,
        "client",
        1,
        "thread",
    )
    assert (row["device"], row["operation"], row["from_thread"]) == (-1, "", False)


def test_wait_mode_tells_the_call_with_the_switch_and_its_end_with_the_next_one():
    """As nsight-rawdata writes it: the call begins at the switch away and ends at the switch back; the second wait is in no call."""
    rows = build(
        *began(),
        enter(100, 10, 0, 5),
        switch(100, 10, 0, S),
        wake(200, 10, by=20, target=0, cpu=1),
        switch(210, 0, 10),
        leave(210, 10, 0),
        switch(300, 10, 0, S),
        wake(350, 10, by=20, target=0, cpu=1),
        switch(360, 0, 10),
        event(400, "page_fault_user", 20, cpu=1),
    )
    assert [(r["place"], r["arg"]) for r in rows if r["tid"] == 10] == [("read", 5), ("", 0)]


def test_a_wait_within_reclaim_is_in_that_and_not_in_the_call_that_led_to_it():
    rows = build(
        *began(),
        enter(90, 10, 0, 5),
        switch(100, 10, 0, D),
        wake(200, 10, by=20, target=0, cpu=1),
        switch(210, 0, 10),
        event(250, "memory_work", 10, a=0, b=155),
        switch(300, 10, 0, D),
        wake(350, 10, by=20, target=0, cpu=1),
        switch(360, 0, 10),
        event(400, "page_fault_user", 20, cpu=1),
    )
    assert [(r["place"], r["arg"]) for r in rows if r["tid"] == 10] == [("memory reclaim", 0), ("read", 5)]
    assert kind_of("blocked", "memory reclaim", "thread", "client", False, False, False) == Verdict(
        "reclaim", "measured", True
    )
    # Throttled: this wait is not sleep of the thread.
    assert kind_of("blocked", "memory reclaim", "softirq", "TIMER", False, False, False) == Verdict(
        "reclaim", "measured", False
    )


def test_thread_underneath_an_interrupt_is_no_waker():
    """The timer interrupts thread 20 and wakes 10, as the context shows."""
    row = only(
        build(
            *began(),
            enter(90, 10, 0),
            switch(100, 10, 0, S),
            event(290, "vector_entry", 20, 1, a=0xEC, c=LOCAL_TIMER),
            wake(300, 10, by=20, target=0, cpu=1),
            event(310, "vector_exit", 20, 1, a=0xEC, c=LOCAL_TIMER),
            switch(320, 0, 10),
            event(400, "page_fault_user", 20, cpu=1),
        ),
        10,
    )
    assert (row["waker_tid"], row["context"], row["symbol"]) == (20, "hardirq", "local_timer")


def softirq(start, end, vector, tid=20, cpu=1):
    return [
        event(start, "softirq_entry", tid, cpu, a=vector),
        event(end, "softirq_exit", tid, cpu, a=vector),
    ]


def woken_in_softirq(*before, vector=3):
    return only(
        build(
            *began(),
            switch(100, 10, 0, S),
            *before,
            *softirq(10_290, 10_310, vector),
            wake(10_300, 10, by=20, target=0, cpu=1),
            switch(10_320, 0, 10),
            event(10_400, "page_fault_user", 20, cpu=1),
        ),
        10,
    )


def test_softirq_is_raised_by_the_thread_underneath_unless_an_interrupt_ended_right_before():
    """Softirq from 10,290; the interrupts end 290 ns and 9,290 ns before it: one within the limit of 5,000, one beyond."""

    def irq(start):
        return [
            event(start - 100, "irq_handler_entry", 20, 1, a=33, c=STRINGS.index("eth0")),
            event(start, "irq_handler_exit", 20, 1, a=33),
        ]

    assert woken_in_softirq()["from_thread"] is True
    assert woken_in_softirq(*irq(1_000))["from_thread"] is True
    assert woken_in_softirq(*irq(10_000))["from_thread"] is False


def test_a_timer_that_hits_a_sending_thread_brings_no_packet_unless_polls_follow_timers():
    """The timer's interrupt ends 90 ns before the softirq; 1 of 40 polls of this core is behind one, or 3 of 42."""

    def timer(end):
        return [
            event(end - 90, "vector_entry", 20, 1, a=0xEC, c=LOCAL_TIMER),
            event(end, "vector_exit", 20, 1, a=0xEC, c=LOCAL_TIMER),
        ]

    sent = [row for i in range(39) for row in softirq(-3_000 * i, 50 - 3_000 * i, 3)]
    polls = [row for i in (1, 2) for row in (*timer(2_900 * i), *softirq(2_900 * i + 90, 2_900 * i + 150, 3))]
    assert woken_in_softirq(*sent, *timer(10_200))["from_thread"] is True
    assert woken_in_softirq(*polls, *sent, *timer(10_200))["from_thread"] is False
    # Its exit runs what it raised itself, too.
    assert woken_in_softirq(*sent, *timer(10_200), *softirq(10_210, 10_280, 1))["from_thread"] is True


def test_softirq_that_follows_another_was_raised_like_that():
    """NET_RX runs 290 ns after TIMER, which runs right after the interrupt, 6,400 ns earlier: they were raised together."""
    row = woken_in_softirq(
        event(3_500, "vector_entry", 20, 1, a=0xEC, c=LOCAL_TIMER),
        event(3_890, "vector_exit", 20, 1, a=0xEC, c=LOCAL_TIMER),
        *softirq(4_000, 10_000, 1),
    )
    assert (row["symbol"], row["from_thread"]) == ("NET_RX", False)


def disk(ts, ns=90, operation=1, nbytes=4096, cpu=1, tid=20):
    return event(ts, "block_io", tid, cpu, a=DISK, b=ns, c=nbytes | operation << 32)


def test_block_io_completed_in_the_same_interrupt_is_what_ended_the_wait():
    """A flush of 90 ns is recorded before the write of length 0 that it belongs to; the read of an earlier softirq is not the cause."""
    row = woken_in_softirq(disk(9_000, operation=0), disk(10_295, 90, 2, 0), disk(10_296, 0, 1, 0), vector=4)
    assert (row["device"], row["operation"], row["nbytes"], row["io_ns"]) == (DISK, "flush", 0, 90)
    assert woken_in_softirq(disk(9_000), vector=4)["device"] == -1


def test_block_io_ends_no_wait_that_a_thread_ended():
    """The same core completed a request before thread 20 itself woke 10."""
    row = only(
        build(
            *began(),
            switch(100, 10, 0, D),
            *softirq(250, 270, 4),
            disk(260),
            wake(300, 10, by=20, target=0, cpu=1),
            switch(320, 0, 10),
            event(400, "page_fault_user", 20, cpu=1),
        ),
        10,
    )
    assert (row["device"], row["context"]) == (-1, "thread")


def test_blocked_thread_whose_last_record_is_a_page_fault_waits_in_that():
    events = (
        enter(40, 10, 1),
        leave(50, 10, 1),
        event(90, "page_fault_user", 10, a=0x7F00),
        switch(100, 10, 0, D),
        wake(300, 10, by=20, target=0, cpu=1),
        switch(310, 0, 10),
        enter(350, 10, 0, 7),
        switch(380, 10, 0, D),
        event(400, "page_fault_user", 20, cpu=1),
    )
    rows = [r for r in build(*began(), *events) if r["tid"] == 10]
    assert [(r["place"], r["arg"]) for r in rows] == [("page fault", 0x7F00), ("read", 7)]


def test_stopped_thread_and_one_that_nobody_woke():
    """Thread 10 is stopped from 100 to 300; from 400 on it sleeps to the end of the recording."""
    rows = build(
        *began(),
        switch(100, 10, 0, T),
        wake(300, 10, by=20, target=0, cpu=1),
        switch(310, 0, 10),
        switch(400, 10, 30, S, names=(SERVER, HOG)),
        event(900, "page_fault_user", 20, cpu=1),
    )
    mine = [r for r in rows if r["tid"] == 10]
    told = [
        (r["start_ns"], r["end_ns"], r["state"], r["waker_tid"], r["waker_cpu"], r["context"]) for r in mine
    ]
    assert told == [(100, 300, "stopped", 20, 1, "thread"), (400, 900, "sleeping", -1, -1, "")]


def test_of_two_wake_ups_at_one_time_the_first_counts():
    row = only(
        build(
            *began(),
            switch(100, 10, 0, S),
            wake(300, 10, by=20, target=0, cpu=1),
            wake(300, 10, by=0, target=0, cpu=0),
            switch(310, 0, 10),
            event(400, "page_fault_user", 20, cpu=1),
        ),
        10,
    )
    assert row["waker_tid"] == 20
