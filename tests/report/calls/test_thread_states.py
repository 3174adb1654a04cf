# SPDX-License-Identifier: GPL-2.0-only
"""Thread states from switches, wake-ups and migrations."""

import numpy as np
import pytest
from event_arrays import (
    CLIENT,
    DEAD,
    PREEMPTED,
    SERVER,
    D,
    R,
    S,
    T,
    build,
    counted,
    event,
    states,
    switch,
    wake,
)
from nsight_report.calls.thread_states import STATES, decode_prev_state

LAST = event(1000, "page_fault_user", 99, cpu=3)  # the end of the recording, on a separate core


def rows(table, tid):  # type: ignore[no-untyped-def]
    return [r for r in table.to_pylist() if r["tid"] == tid]


@pytest.mark.parametrize(
    ("bits", "name"),
    [
        (0, "runnable"),
        (0x100, "runnable"),  # R+
        (1, "sleeping"),
        (2, "blocked"),
        (4, "stopped"),
        (8, "stopped"),
        (0x10, "dead"),
        (0x20, "dead"),
        (0x40, "sleeping"),
        (0x80, "sleeping"),
        (0x101, "runnable"),  # preempted while about to sleep
    ],
)
def test_prev_state_is_decoded(bits: int, name: str) -> None:
    assert STATES[decode_prev_state(np.array([bits]))[0]] == name


def test_sleeper_waits_for_a_core_from_its_wake_up_on() -> None:
    _, _, table, _ = build(
        switch(0, 0, 10, names=(0, SERVER)),
        switch(100, 10, 0, state=S),
        event(250, "page_fault_user", 20, cpu=1),
        wake(300, 10, by=20, target=0, cpu=1),
        switch(340, 0, 10, names=(0, SERVER)),
        switch(400, 10, 0, state=D),
        LAST,
    )
    assert states(table, 10) == [
        ("running", 0, 0, 100),
        ("sleeping", 0, 100, 300),
        ("runnable", 0, 300, 340),
        ("running", 0, 340, 400),
        ("blocked", 0, 400, 1000),
    ]
    waiting = rows(table, 10)[2]
    assert (waiting["waker_tid"], waiting["preempted"]) == (20, False)
    assert {r["comm"] for r in rows(table, 10)} == {"server"}


@pytest.mark.parametrize("state", [R, PREEMPTED])
def test_preempted_thread_is_runnable_without_a_wake_up(state: int) -> None:
    _, _, table, losses = build(switch(0, 0, 10), switch(100, 10, 11, state=state), switch(160, 11, 10), LAST)
    assert states(table, 10)[:2] == [("running", 0, 0, 100), ("runnable", 0, 100, 160)]
    waiting = rows(table, 10)[1]
    assert (waiting["preempted"], waiting["waker_tid"]) == (True, -1)
    assert "missing sched_waking event" not in counted(losses)


@pytest.mark.parametrize(
    ("ns", "throttled", "runnable"),
    [(40, [("throttled", 0, 100, 140)], [("runnable", 0, 140, 160)]), (90, [("throttled", 0, 100, 160)], [])],
)
def test_ready_thread_first_waits_for_quota_and_then_for_its_core(
    ns: int, throttled: list, runnable: list
) -> None:
    """Thread 10 is preempted at 100 and runs again at 160; thread 11's wait is not part of that."""
    _, _, table, _ = build(
        switch(0, 0, 10),
        switch(100, 10, 11, state=PREEMPTED),
        event(160, "cpu_quota", 11, a=10, b=ns),
        switch(160, 11, 10, state=PREEMPTED),
        switch(200, 10, 11),
        LAST,
    )
    assert states(table, 10)[1:-1] == [*throttled, *runnable, ("running", 0, 160, 200)]
    assert [r["preempted"] for r in rows(table, 10)[1:-2]] == [True] * len(throttled + runnable)
    assert [s[0] for s in states(table, 11)][:3] == ["unknown", "running", "runnable"]


def test_a_wait_for_quota_is_told_later_where_the_switch_that_ended_it_was_not_seen() -> None:
    """Thread 10 was last seen when it was preempted, then in a system call; it leaves the core at 200."""
    _, _, table, losses = build(
        switch(0, 0, 10),
        switch(100, 10, 11, state=PREEMPTED),
        event(160, "sys_enter", 10, a=1),
        event(200, "cpu_quota", 10, a=10, b=40),
        switch(200, 10, 11),
        LAST,
    )
    found = states(table, 10)
    assert ("throttled", 0, 100, 140) in found
    assert ("running", 0, 160, 200) in found
    assert counted(losses)["wait for CPU quota put at the beginning of its wait"] == 1


def test_waits_for_quota_that_are_put_somewhere_and_nowhere_are_counted() -> None:
    """Nothing is known about thread 30 before it runs."""
    _, _, _, losses = build(
        switch(0, 0, 10),
        switch(100, 10, 11, state=PREEMPTED),
        event(160, "cpu_quota", 11, a=10, b=40),
        switch(160, 11, 10),
        event(200, "cpu_quota", 10, a=30, b=40),
        switch(200, 10, 30),
        LAST,
    )
    found = counted(losses)
    assert found["wait for CPU quota put at the beginning of its wait"] == 1
    assert found["wait for CPU quota in an unknown wait"] == 1


def test_a_sleepers_wait_for_quota_begins_when_it_is_woken() -> None:
    _, _, table, _ = build(
        switch(0, 0, 10),
        switch(100, 10, 0, state=S),
        wake(300, 10, by=20, target=0, cpu=1),
        event(340, "cpu_quota", 0, a=10, b=30),
        switch(340, 0, 10),
        LAST,
    )
    assert states(table, 10)[1:4] == [
        ("sleeping", 0, 100, 300),
        ("throttled", 0, 300, 330),
        ("runnable", 0, 330, 340),
    ]
    assert {r["waker_tid"] for r in rows(table, 10)[2:4]} == {20}


def test_switch_records_tell_who_was_preempted() -> None:
    _, _, table, losses = build(
        event(0, "switch_in", 10, a=0),
        event(100, "switch_out", 10, a=11, c=1),
        event(100, "switch_in", 11, a=10),
        event(160, "switch_out", 11, a=10),
        event(160, "switch_in", 10, a=11),
        LAST,
    )
    assert states(table, 10)[:2] == [("running", 0, 0, 100), ("runnable", 0, 100, 160)]
    # It left voluntarily: nothing shows why, or when it was woken.
    assert states(table, 11)[-1][0] == "waiting"
    assert counted(losses)["wake-ups not recorded"] == 1


def test_migration_moves_a_waiting_thread_to_another_queue() -> None:
    _, _, table, _ = build(
        switch(0, 0, 10),
        switch(100, 10, 11, state=PREEMPTED),
        event(130, "sched_migrate_task", 11, a=10, b=1, c=0),
        switch(180, 0, 10, cpu=1),
        LAST,
    )
    assert states(table, 10)[1:3] == [("runnable", 0, 100, 130), ("runnable", 1, 130, 180)]


def test_core_chosen_at_wake_up_comes_from_the_migration_that_follows() -> None:
    # sched_waking still names the core that the thread last ran on
    _, _, table, _ = build(
        switch(0, 0, 10),
        switch(100, 10, 11, state=S),
        wake(200, 10, by=11, target=0),
        event(201, "sched_migrate_task", 11, a=10, b=1, c=0),
        wake(202, 10, by=11, target=1, kind="sched_wakeup"),
        switch(240, 0, 10, cpu=1),
        event(1000, "page_fault_user", 10, cpu=1),
    )
    assert states(table, 10)[1:5] == [
        ("sleeping", 0, 100, 200),
        ("runnable", 0, 200, 201),
        ("runnable", 1, 201, 240),
        ("running", 1, 240, 1000),
    ]
    assert [r["waker_tid"] for r in rows(table, 10)[2:4]] == [11, 11]


def test_wake_up_that_overtakes_the_switch_is_not_lost() -> None:
    # another core wakes the thread at 99, 1 ns before the thread leaves its core in state S
    _, _, table, losses = build(
        switch(0, 0, 10),
        event(90, "page_fault_user", 20, cpu=1),
        wake(99, 10, by=20, target=0, cpu=1),
        switch(100, 10, 11, state=S),
        switch(150, 11, 10),
        LAST,
    )
    assert states(table, 10)[1] == ("runnable", 0, 100, 150)
    assert "missing sched_waking event" not in counted(losses)


def test_old_wake_up_of_a_running_thread_does_not_count_as_one() -> None:
    far = 100_000  # the thread falls asleep long after that
    _, _, table, losses = build(
        switch(0, 0, 10),
        wake(50, 10, by=10, target=0),
        switch(far, 10, 11, state=S),
        switch(far + 50, 11, 10),
        event(far + 90, "page_fault_user", 10),
    )
    assert states(table, 10)[1] == ("sleeping", 0, far, far + 50)
    assert counted(losses)["missing sched_waking event"] == 1


def test_wake_up_long_before_the_switch_counts_if_no_wake_up_is_missing() -> None:
    """The host took the core away while the thread was falling asleep; the BPF recorder writes every wake-up."""
    far = 100_000
    _, _, table, losses = build(
        switch(0, 0, 10),
        event(40, "page_fault_user", 20, cpu=1),
        wake(50, 10, by=20, target=0, cpu=1),
        switch(far, 10, 11, state=S),
        switch(far + 50, 11, 10),
        event(far + 90, "page_fault_user", 10),
        recorder="bpf",
    )
    assert states(table, 10)[1] == ("runnable", 0, far, far + 50)
    assert "missing sched_waking event" not in counted(losses)


def test_wake_up_by_an_unknown_thread_begins_the_run_queue_latency() -> None:
    _, _, table, losses = build(
        switch(0, 0, 10),
        switch(100, 10, 11, state=S),
        wake(200, 10, by=-1, target=0),
        switch(340, 11, 10),
        LAST,
        recorder="bpf",
    )
    assert states(table, 10)[1:3] == [("sleeping", 0, 100, 200), ("runnable", 0, 200, 340)]
    assert rows(table, 10)[2]["waker_tid"] == -1
    assert not {"missing sched_waking event", "context switch not seen"} & set(counted(losses))


def test_unseen_wake_up_leaves_the_wait_in_the_sleep_and_is_counted() -> None:
    _, _, table, losses = build(switch(0, 0, 10), switch(100, 10, 11, state=S), switch(200, 11, 10), LAST)
    assert states(table, 10)[1] == ("sleeping", 0, 100, 200)
    assert counted(losses)["missing sched_waking event"] == 1


def test_stopped_thread_says_so() -> None:
    _, _, table, _ = build(
        switch(0, 0, 10),
        switch(100, 10, 11, state=T),
        wake(400, 10, by=11, target=0),
        switch(450, 11, 10, state=S),
        LAST,
    )
    assert states(table, 10)[1:3] == [("stopped", 0, 100, 400), ("runnable", 0, 400, 450)]


def test_new_thread_begins_when_it_is_created() -> None:
    _, _, table, _ = build(
        switch(0, 0, 10),
        event(200, "sched_process_fork", 10, a=11, b=10, c=CLIENT),
        wake(210, 11, by=10, target=0, kind="sched_wakeup_new", name=CLIENT),
        switch(300, 10, 11, state=PREEMPTED, names=(SERVER, CLIENT)),
        switch(400, 11, 10, state=DEAD),
        LAST,
    )
    assert states(table, 11) == [
        ("unknown", -1, 200, 210),
        ("runnable", 0, 210, 300),
        ("running", 0, 300, 400),
        ("dead", 0, 400, 1000),
    ]
    assert {r["comm"] for r in rows(table, 11)} == {"client"}


def test_thread_that_never_gets_a_core_is_listed() -> None:
    _, _, table, _ = build(switch(0, 0, 10), wake(100, 12, by=10, target=0, name=CLIENT), LAST)
    assert states(table, 12) == [("unknown", -1, 0, 100), ("runnable", 0, 100, 1000)]
    assert rows(table, 12)[0]["comm"] == "client"


def test_end_of_a_run_inside_a_loss_is_unknown() -> None:
    _, _, table, losses = build(
        switch(0, 0, 10),
        event(100, "page_fault_user", 10),
        event(300, "lost", 11, a=5),
        switch(310, 11, 10),
        LAST,
    )
    assert states(table, 10)[:2] == [("running", 0, 0, 100), ("unknown", 0, 100, 310)]
    assert counted(losses)["unknown off-CPU state"] == 1


def test_a_thread_that_seems_to_be_on_two_cores_is_on_the_one_that_got_it_last() -> None:
    """Two switches were lost: the one at which thread 10 left core 0 before 200, and the one at which it came back."""
    _, _, table, losses = build(
        switch(0, 0, 10),
        switch(200, 0, 10, cpu=1),
        switch(300, 10, 0, state=S, cpu=1),
        switch(400, 10, 0, state=S),
        LAST,
    )
    assert states(table, 10) == [("running", 0, 0, 200), ("running", 1, 200, 300), ("sleeping", 1, 300, 1000)]
    found = counted(losses)
    assert found["thread on two cores at once"] == 1
    assert "unknown off-CPU state" not in found


def test_idle_threads_are_left_out() -> None:
    _, _, table, _ = build(switch(0, 0, 10), switch(100, 10, 0), LAST)
    assert 0 not in table["tid"].to_pylist()
