# SPDX-License-Identifier: GPL-2.0-only
"""Nesting of contexts where nothing is missing."""

from event_arrays import (
    CLIENT,
    ETH0,
    LOCAL_TIMER,
    SERVER,
    T0,
    build,
    counted,
    ends,
    enter,
    event,
    intervals,
    leave,
    nesting,
    record,
    switch,
    wake,
)

BLOCKING_READ = (
    switch(0, 0, 10, names=(0, SERVER)),
    enter(100, 10, 0, arg=7),
    switch(150, 10, 0),
    switch(400, 0, 10, names=(0, SERVER)),
    leave(430, 10, 0),
    switch(500, 10, 0),
)


def test_self_time_is_duration_less_children() -> None:
    calls, _, _, _ = build(
        switch(0, 0, 10, names=(0, SERVER)),
        enter(100, 10, 1, arg=5),
        event(120, "softirq_entry", 10, a=3),
        event(130, "vector_entry", 10, a=236, c=LOCAL_TIMER),
        event(135, "vector_exit", 10, a=236, c=LOCAL_TIMER),
        event(160, "softirq_exit", 10, a=3),
        leave(200, 10, 1),
        switch(250, 10, 0),
    )
    assert nesting(calls) == [
        (0, 0, "idle", "idle", 0, 0, 0),
        (0, 0, "thread", "server", 0, 250, 150),  # 250 - 100 in write
        (0, 1, "syscall", "write", 100, 200, 60),  # 100 - 40 in NET_RX
        (0, 2, "softirq", "NET_RX", 120, 160, 35),  # 40 - 5 in the timer
        (0, 3, "hardirq", "local_timer", 130, 135, 5),
        (0, 0, "idle", "idle", 250, 250, 0),
    ]
    assert calls["parent_id"].to_pylist() == [-1, -1, 1, 2, 3, -1]
    assert calls["arg"].to_pylist()[2] == 5


def test_a_core_that_was_away_ran_nothing_since_it_last_changed() -> None:
    _, contexts, _, _ = build(
        switch(0, 0, 10, names=(0, SERVER)),
        event(20, "softirq_entry", 10, a=3),
        event(60, "steal", -1, a=25, b=1),
        event(60, "softirq_exit", 10, a=3),
        event(80, "steal", -1, a=500, b=1),  # part of it was before the known part of the core
        event(85, "steal", -1, a=3, b=0),  # some time since the last check
        switch(90, 10, 0),
    )
    assert intervals(contexts) == [
        ("server", 0, 20), ("NET_RX", 20, 35), ("steal", 35, 60), ("steal", 60, 80), ("server", 80, 90)
    ]  # fmt: skip


def test_steal_after_the_last_event_is_within_what_it_interrupted() -> None:
    """The thread has the core from 0 to 60; the host took 50 of that, so 10 remain for the thread."""
    calls_, contexts, _, _ = build(switch(0, 0, 10, names=(0, SERVER)), event(60, "steal", -1, a=50, b=1))
    assert [row[4:] for row in nesting(calls_)][-2:] == [(0, 60, 10), (10, 60, 50)]
    assert intervals(contexts) == [("server", 0, 10), ("steal", 10, 60)]


def test_thread_that_was_woken_while_the_core_was_gone_did_not_run_before_it_came_back() -> None:
    """Woken at 30, while the host had the core (10 to 50); the first sign that it ran is that it leaves the core at 70."""
    calls_, contexts, _, _ = build(
        switch(0, 10, 0, names=(CLIENT, 0)),
        wake(30, 10, by=20, target=0, cpu=1),
        event(50, "steal", -1, a=40, b=1),
        switch(70, 10, 0),
    )
    assert all(row[6] >= 0 for row in nesting(calls_))
    assert all(start < end for _, start, end in intervals(contexts))


def test_contexts_are_the_innermost_frames_in_time_order() -> None:
    _, contexts, _, _ = build(
        switch(0, 0, 10, names=(0, SERVER)),
        event(20, "softirq_entry", 10, a=3),
        event(30, "irq_handler_entry", 10, a=41, c=ETH0),
        event(40, "irq_handler_exit", 10, a=41),
        event(60, "softirq_exit", 10, a=3),
        switch(90, 10, 0),
        event(100, "cpu_idle", 0, a=1),
    )
    assert intervals(contexts) == [
        ("server", 0, 20),
        ("NET_RX", 20, 30),
        ("eth0", 30, 40),
        ("NET_RX", 40, 60),
        ("server", 60, 90),
        ("idle", 90, 100),
    ]
    assert contexts["comm"].to_pylist() == ["server"] * 5 + ["swapper"]
    assert contexts["tid"].to_pylist() == [10] * 5 + [0]


def test_blocked_syscall_is_cut_at_the_switch_and_continues() -> None:
    calls, _, _, losses = build(*BLOCKING_READ)
    reads = [c for c in calls.to_pylist() if c["symbol"] == "read"]
    assert [(c["start_ns"] - T0, c["dur_ns"], c["start_known"], c["end_known"], c["arg"]) for c in reads] == [
        (100, 50, "measured", "inferred", 7),
        (400, 30, "inferred", "measured", 7),
    ]
    assert counted(losses)["system call cut at a context switch"] == 1


def test_thread_keeps_its_syscall_on_another_core() -> None:
    calls, _, _, _ = build(
        switch(0, 0, 10),
        enter(100, 10, 0, arg=7),
        switch(150, 10, 0),
        switch(400, 0, 10, cpu=1),
        leave(430, 10, 0, cpu=1),
    )
    reads = [c for c in calls.to_pylist() if c["symbol"] == "read"]
    assert [(c["cpu"], c["start_ns"] - T0, c["dur_ns"]) for c in reads] == [(0, 100, 50), (1, 400, 30)]


def test_sleeper_in_a_syscall_from_before_the_recording_is_found() -> None:
    # The thread's first system call event is an exit: it was in the call from the start.
    calls, _, _, losses = build(
        switch(0, 0, 10, names=(0, SERVER)),
        leave(50, 10, 232),
        switch(80, 10, 0),
    )
    assert nesting(calls)[1:3] == [
        (0, 0, "thread", "server", 0, 80, 30),
        (0, 1, "syscall", "epoll_wait", 0, 50, 50),
    ]
    assert ends(calls)[2] == ("epoll_wait", "missing", "measured")
    assert counted(losses)["system call without enter"] == 1


def test_new_thread_returns_from_its_parents_clone_without_a_loss() -> None:
    calls, _, _, losses = build(
        event(0, "sched_process_fork", 10, a=11, b=10, c=CLIENT),
        switch(100, 10, 11, state=0, names=(SERVER, CLIENT)),
        leave(120, 11, 56),
        switch(200, 11, 10),
    )
    assert ("clone", "inferred", "measured") in ends(calls)
    assert "system call without enter" not in counted(losses)


def test_exec_by_another_thread_moves_the_syscall_to_the_leader() -> None:
    calls, _, _, losses = build(
        switch(0, 0, 11),
        enter(100, 11, 59),
        event(150, "sched_process_exec", 10, a=10, b=11),
        leave(200, 10, 59),
        switch(300, 10, 0),
    )
    # seen first as thread 11, then as 10: execve continues under the leader's number until 200
    execve = [c for c in nesting(calls) if c[3] == "execve"]
    assert [(c[4], c[5]) for c in execve] == [(100, 150), (150, 200)]
    assert "system call without enter" not in counted(losses)


def test_signal_return_ends_its_syscall_without_a_number() -> None:
    calls, _, _, losses = build(switch(0, 0, 10), enter(10, 10, 15), leave(20, 10, -1), switch(30, 10, 0))
    assert ("syscall 15", "measured", "measured") in ends(calls)
    assert "system call without enter" not in counted(losses)


def test_idle_says_its_deepest_c_state() -> None:
    calls, _, _, _ = build(
        switch(0, 10, 0),
        event(5, "cpu_idle", 0, a=1),
        event(50, "cpu_idle", 0, a=-1),
        event(55, "cpu_idle", 0, a=3),
        event(90, "cpu_idle", 0, a=-1),
        switch(95, 0, 10),
        switch(99, 10, 0),
        event(100, "page_fault_user", 0),
    )
    assert [(c["arg"], c["dur_ns"]) for c in calls.to_pylist() if c["kind"] == "idle"] == [(3, 95), (-1, 1)]


def test_handler_inside_a_vector_nests() -> None:
    calls, _, _, _ = build(
        switch(0, 0, 10),
        event(10, "vector_entry", 10, a=35, c=LOCAL_TIMER),
        event(12, "irq_handler_entry", 10, a=41, c=ETH0),
        event(18, "irq_handler_exit", 10, a=41),
        event(20, "vector_exit", 10, a=35, c=LOCAL_TIMER),
        switch(30, 10, 0),
    )
    assert [(c[1], c[3], c[6]) for c in nesting(calls) if c[2] == "hardirq"] == [
        (1, "local_timer", 4),
        (2, "eth0", 6),
    ]


def test_process_and_name_come_from_records_before_the_recording() -> None:
    calls, contexts, _, _ = build(
        record("comm", None, tid=12, pid=10, a=12, c=SERVER),
        switch(0, 0, 12),
        enter(10, 12, 0),
        switch(50, 12, 0),
    )
    # the sample has pid 12 only because these events are hand-made; the switch-in used the record
    thread = calls.to_pylist()[1]
    assert (thread["symbol"], thread["tid"]) == ("server", 12)
    assert contexts["comm"].to_pylist()[0] == "server"


def test_thread_without_a_name_is_called_by_its_number() -> None:
    calls, contexts, states, _ = build(switch(0, 0, 4242), switch(50, 4242, 0))
    assert calls["symbol"].to_pylist()[1] == "tid 4242"
    assert contexts["comm"].to_pylist()[0] == "tid 4242"
    assert set(states["comm"].to_pylist()) == {"tid 4242"}


def test_switch_records_serve_where_no_tracepoint_was_recorded() -> None:
    # perf record --switch-events: an OUT and an IN record for each switch
    calls, _, _, _ = build(
        event(0, "switch_in", 10, a=0),
        event(100, "switch_out", 10, a=11),
        event(101, "switch_in", 11, a=10),
        event(150, "switch_out", 11, a=0),
        event(151, "switch_in", 0, a=11),
    )
    assert [(c[2], c[3], c[4], c[5]) for c in nesting(calls)] == [
        ("thread", "tid 10", 0, 100),
        ("thread", "tid 11", 100, 150),
        ("idle", "idle", 150, 151),
    ]


def test_thread_and_interrupt_of_one_name_share_one_dictionary_entry() -> None:
    calls, contexts, _, _ = build(
        switch(0, 0, 10, names=(0, ETH0)),
        event(10, "irq_handler_entry", 10, a=41, c=ETH0),
        event(20, "irq_handler_exit", 10, a=41),
        switch(30, 10, 0),
    )
    # pandas refuses categories that are not unique
    assert calls.to_pandas()["symbol"].tolist() == ["idle", "eth0", "eth0", "idle"]
    assert contexts.to_pandas()["kind"].tolist() == ["thread", "hardirq", "thread"]


def test_call_of_no_length_does_not_split_the_interval_around_it() -> None:
    calls, contexts, _, _ = build(
        switch(0, 0, 10, names=(0, SERVER)),
        event(40, "softirq_entry", 10, a=3),
        event(40, "softirq_exit", 10, a=3),
        switch(90, 10, 0),
    )
    assert (0, 1, "softirq", "NET_RX", 40, 40, 0) in nesting(calls)
    assert intervals(contexts) == [("server", 0, 90)]
