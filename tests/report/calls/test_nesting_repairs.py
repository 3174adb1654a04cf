# SPDX-License-Identifier: GPL-2.0-only
"""Repairs of the nesting where enters, exits, switches or whole intervals are missing."""

import pytest
from event_arrays import (
    CLIENT,
    ETH0,
    LOCAL_TIMER,
    SERVER,
    T0,
    array,
    build,
    counted,
    ends,
    enter,
    event,
    intervals,
    leave,
    nesting,
    switch,
    wake,
)
from nsight_report import calls
from nsight_report.capture.perf_data import Decoded
from nsight_report.errors import BadInput


def test_softirq_without_exit_ends_at_the_switch_and_is_marked_missing() -> None:
    calls_, _, _, losses = build(
        switch(0, 0, 10),
        event(20, "softirq_entry", 10, a=3),
        switch(90, 10, 0),
        event(95, "cpu_idle", 0, a=1),
    )
    assert (0, 1, "softirq", "NET_RX", 20, 90, 70) in nesting(calls_)
    assert ("NET_RX", "measured", "missing") in ends(calls_)
    assert counted(losses)["softirq without exit"] == 1


def test_softirq_without_entry_takes_the_time_since_the_last_change() -> None:
    calls_, contexts, _, losses = build(
        switch(0, 0, 10, names=(0, SERVER)), event(60, "softirq_exit", 10, a=3), switch(90, 10, 0)
    )
    assert intervals(contexts) == [("NET_RX", 0, 60), ("server", 60, 90)]
    assert ("NET_RX", "missing", "measured") in ends(calls_)
    assert counted(losses)["softirq without entry"] == 1


def test_second_softirq_entry_ends_the_first() -> None:
    calls_, _, _, losses = build(
        switch(0, 0, 10),
        event(20, "softirq_entry", 10, a=1),
        event(50, "softirq_entry", 10, a=3),
        event(70, "softirq_exit", 10, a=3),
        switch(90, 10, 0),
    )
    softirqs = [c[3:6] for c in nesting(calls_) if c[2] == "softirq"]
    assert softirqs == [("TIMER", 20, 50), ("NET_RX", 50, 70)]
    assert counted(losses)["softirq without exit"] == 1


def test_exit_of_an_outer_interrupt_ends_the_inner_one() -> None:
    calls_, _, _, losses = build(
        switch(0, 0, 10),
        event(20, "softirq_entry", 10, a=3),
        event(30, "irq_handler_entry", 10, a=41, c=ETH0),
        event(70, "softirq_exit", 10, a=3),
        switch(90, 10, 0),
    )
    assert (0, 2, "hardirq", "eth0", 30, 70, 40) in nesting(calls_)
    assert ("eth0", "measured", "missing") in ends(calls_)
    assert ("NET_RX", "measured", "measured") in ends(calls_)
    assert counted(losses)["hard interrupt without exit"] == 1


def test_interrupt_handler_without_entry_is_called_by_its_number() -> None:
    calls_, _, _, losses = build(switch(0, 0, 10), event(30, "irq_handler_exit", 10, a=41), switch(90, 10, 0))
    assert (0, 1, "hardirq", "irq 41", 0, 30, 30) in nesting(calls_)
    assert counted(losses)["hard interrupt without entry"] == 1


def test_enter_after_a_lost_exit_ends_the_call_before() -> None:
    calls_, _, _, losses = build(
        switch(0, 0, 10), enter(10, 10, 0), enter(50, 10, 1), leave(60, 10, 1), switch(90, 10, 0)
    )
    assert ("read", "measured", "missing") in ends(calls_)
    assert [c[3:6] for c in nesting(calls_) if c[2] == "syscall"] == [("read", 10, 50), ("write", 50, 60)]
    assert counted(losses)["system call without exit"] == 1


def test_call_whose_exit_was_lost_does_not_continue_after_the_switch() -> None:
    # read's exit is lost; after the switch the thread enters write, so it was no longer in read
    calls_, _, _, losses = build(
        switch(0, 0, 10),
        enter(10, 10, 0),
        switch(50, 10, 0),
        switch(100, 0, 10),
        enter(150, 10, 1),
        leave(160, 10, 1),
        switch(190, 10, 0),
    )
    assert [c[3:6] for c in nesting(calls_) if c[2] == "syscall"] == [("read", 10, 50), ("write", 150, 160)]
    assert counted(losses)["system call without exit"] == 1


def test_lost_events_become_a_gap() -> None:
    # at 300 perf reports that it lost events since the previous record, at 100
    calls_, contexts, _, losses = build(
        switch(0, 0, 10, names=(0, SERVER)),
        enter(40, 10, 0),
        event(100, "page_fault_user", 10),
        event(300, "lost", 10, a=17),
        event(310, "page_fault_user", 10),
        leave(350, 10, 0),
        switch(400, 10, 0),
    )
    assert intervals(contexts) == [
        ("server", 0, 40),
        ("read", 40, 100),
        ("gap", 100, 300),
        ("read", 300, 350),  # its exit at 350 shows that the thread was in the call
        ("server", 350, 400),
    ]
    # It is unknown who had the core: that is not idle time.
    assert [r["comm"] for r in contexts.to_pylist() if r["kind"] == "gap"] == [""]
    by_symbol = {symbol: (start, end) for symbol, start, end in ends(calls_)[:3]}
    assert by_symbol["read"] == ("measured", "inferred")
    assert counted(losses)["gap: perf lost events"] == 1
    assert "200 ns in total" in next(r["detail"] for r in losses.to_pylist() if r["cause"].startswith("gap"))


def test_loss_on_one_core_leaves_the_other_alone() -> None:
    _, contexts, _, _ = build(
        switch(0, 0, 10, names=(0, SERVER)),
        switch(0, 0, 11, cpu=1),
        event(200, "lost", 10, a=1),
        switch(300, 10, 0),
        switch(300, 11, 0, cpu=1),
    )
    assert intervals(contexts, cpu=1) == [("tid 11", 0, 300)]
    assert intervals(contexts, cpu=0) == [("gap", 0, 200), ("server", 200, 300)]


def test_unseen_switch_starts_the_thread_at_its_first_sign() -> None:
    calls_, contexts, _, losses = build(
        switch(0, 10, 0), leave(70, 10, 232), switch(90, 10, 0), event(99, "cpu_idle", 0, a=1)
    )
    assert intervals(contexts) == [("idle", 0, 70), ("tid 10", 70, 90), ("idle", 90, 99)]
    assert ("tid 10", "missing", "measured") in ends(calls_)
    assert counted(losses)["context switch not seen"] == 1


def test_unseen_switch_of_a_thread_that_only_leaves_is_put_at_its_wake_up() -> None:
    # Nothing was traced on the idle core 0: the thread ran from about its wake-up at 40 until 90.
    _, contexts, _, _ = build(
        switch(0, 10, 0),
        event(0, "page_fault_user", 20, cpu=1),
        wake(40, 10, by=20, target=0, cpu=1),
        switch(90, 10, 0),
        event(99, "cpu_idle", 0, a=1),
    )
    assert intervals(contexts, cpu=0) == [("idle", 0, 40), ("tid 10", 40, 90), ("idle", 90, 99)]


def test_unseen_switch_was_before_the_interrupts_that_are_open() -> None:
    # The softirq that interrupted thread 20 wakes 30 and so shows that 20 runs; that softirq and the interrupt in it are complete.
    calls_, contexts, _, losses = build(
        switch(0, 0, 10, names=(0, SERVER)),
        enter(5, 10, 0),
        event(40, "softirq_entry", 10, a=4),
        event(50, "irq_handler_entry", 10, a=41, c=ETH0),
        event(55, "irq_handler_exit", 10, a=41),
        wake(60, 30, by=20, target=0),
        event(70, "softirq_exit", 20, a=4),
        switch(90, 20, 0, names=(CLIENT, 0)),
    )
    assert nesting(calls_)[1:-1] == [
        (0, 0, "thread", "server", 0, 40, 5),
        (0, 1, "syscall", "read", 5, 40, 35),
        (0, 0, "thread", "client", 40, 90, 20),
        (0, 1, "softirq", "BLOCK", 40, 70, 25),
        (0, 2, "hardirq", "eth0", 50, 55, 5),
    ]
    assert ("BLOCK", "measured", "measured") in ends(calls_)
    assert calls_["tid"].to_pylist() == [0, 10, 10, 20, 20, 20, 0]
    assert calls_["parent_id"].to_pylist() == [-1, -1, 1, -1, 3, 4, -1]
    assert intervals(contexts) == [
        ("server", 0, 5), ("read", 5, 40), ("BLOCK", 40, 50), ("eth0", 50, 55), ("BLOCK", 55, 70), ("client", 70, 90),
    ]  # fmt: skip
    assert counted(losses)["context switch not seen"] == 1
    assert "softirq without exit" not in counted(losses)


def test_edges_of_the_recording_are_inferred() -> None:
    calls_, _, _, losses = build(
        event(10, "page_fault_user", 10), enter(20, 10, 0), event(50, "page_fault_user", 10)
    )
    assert ends(calls_) == [("tid 10", "inferred", "inferred"), ("read", "measured", "inferred")]
    assert counted(losses)["context open at the end of the recording"] == 2


def test_endless_entries_do_not_grow_the_stack_without_bound() -> None:
    entries = [event(10 + n, "irq_handler_entry", 10, a=n, c=ETH0) for n in range(100)]
    calls_, _, _, losses = build(switch(0, 0, 10), *entries, switch(200, 10, 0))
    assert max(calls_["depth"].to_pylist()) == 31
    assert counted(losses)["contexts nested too deeply"] >= 1
    assert counted(losses)["hard interrupt without exit"] == 100


def test_loss_without_core_is_counted() -> None:
    lost = list(event(5, "lost", 10, a=3))
    lost[2] = 0xFFFF
    _, _, _, losses = build(switch(0, 0, 10), tuple(lost), switch(50, 10, 0))
    assert counted(losses)["perf lost events somewhere"] == 1


def test_times_of_another_clock_are_refused() -> None:
    with pytest.raises(BadInput, match="perf clock"):
        calls.build(Decoded(array(switch(0, 0, 10)), [""], "perf", {}))


def test_file_without_any_core_event_is_refused() -> None:
    with pytest.raises(BadInput, match="threads ran on any core"):
        calls.build(Decoded(array(), [""], "monotonic", {}))


def test_vector_exit_of_another_name_does_not_end_the_open_one() -> None:
    calls_, _, _, _ = build(
        switch(0, 0, 10),
        event(10, "vector_entry", 10, a=236, c=LOCAL_TIMER),
        event(20, "vector_exit", 10, a=253, c=ETH0),
        event(30, "vector_exit", 10, a=236, c=LOCAL_TIMER),
        switch(40, 10, 0),
    )
    timer = next(c for c in calls_.to_pylist() if c["symbol"] == "local_timer")
    assert (timer["start_ns"] - T0, timer["dur_ns"], timer["end_known"]) == (10, 20, "measured")
