# SPDX-License-Identifier: GPL-2.0-only
"""What nsight-rawdata makes of every record type. An event is (ts, kind, cpu, pid, tid, a, b, c)."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machinery.made_up import record_files as rf
from nsight_report.capture import perf_data, raw_records

Events = list[tuple[Any, ...]]


def events(tmp_path: Path, machine: bytes = b"", **cores: bytes) -> Events:
    """The events of these records; each core has one complete file."""
    return made(tmp_path, machine, **cores)[0]


def made(tmp_path: Path, machine: bytes = b"", **cores: bytes) -> Any:
    files = {name: rf.whole(int(name.removeprefix("cpu")), content) for name, content in cores.items()}
    records = rf.write(tmp_path, rf.whole(rf.NO_CPU, machine), **files)
    return rf.decode(records, tmp_path / "out")


def short(events: Events) -> list[tuple[int, str]]:
    """Only times and kinds."""
    return [(event[0], event[1]) for event in events]


# Core 0 runs thread 7 of process 6 from 1000 on.
TASKS = rf.task(1, 7, 6, b"server") + rf.task(1, 8, 8, b"client")
RUNS = rf.switch(1000, 0, 7, state=0)


def test_header_and_tests_agree_on_types() -> None:
    assert rf.TYPES[:3] == ("NONE", "PAD", "SWITCH") and rf.TYPES[-1] == "DROP_V6"
    assert "NSR_MESSAGE = 0x80" in rf.HEADER


def test_switch_names_both_threads_and_keeps_the_state(tmp_path: Path) -> None:
    found, _, info = made(tmp_path, TASKS, cpu3=RUNS + rf.switch(2000, 7, 8, state=0x102))
    number = info["strings"].index
    assert found == [
        (0, "comm", 65535, 6, 7, 7, 0, number("server")),
        (0, "comm", 65535, 8, 8, 8, 0, number("client")),
        (1000, "sched_switch", 3, 0, 0, 7, 0, number("swapper/3") | number("server") << 32),
        (2000, "sched_switch", 3, 6, 7, 8, 0x102, number("server") | number("client") << 32),
    ]


def test_switch_that_no_tracepoint_showed_has_its_place_and_is_counted(tmp_path: Path) -> None:
    """It is written by the next switch of its core (record.h: NSR_UNTRACED, 0x200), after records with later times."""
    content = RUNS + rf.waking(2500, 7, 8, 0) + rf.switch(2000, 7, 8, state=0x201) + rf.switch(3000, 8, 0)
    found, _, info = made(tmp_path, TASKS, cpu0=content)
    switches = [(event[0], event[4], event[5], event[6]) for event in found if event[1] == "sched_switch"]
    assert switches == [(1000, 0, 7, 0), (2000, 7, 8, 1), (3000, 8, 0, 1)]
    assert info["losses"]["switches_untraced"] == 1


@pytest.mark.parametrize("told", [2003, 2500], ids=["late", "very-late"])
def test_switch_that_no_tracepoint_showed_comes_before_what_the_core_did_then(
    tmp_path: Path, told: int
) -> None:
    """The scheduler's time is some microseconds late. The thread that left had made the first wake-up, but not the idling."""
    content = (
        RUNS + rf.waking(1500, 8, 7, 0) + rf.pair("IDLE", 2000, 2600, 1)
        + rf.switch(told, 7, 0, state=0x201) + rf.switch(3000, 0, 8)
    )  # fmt: skip
    found, _, _ = made(tmp_path, TASKS, cpu0=content)
    assert [event[:2] for event in found if event[0] > 1000] == [
        (1500, "sched_waking"), (1999, "sched_switch"), (2000, "cpu_idle"), (2600, "cpu_idle"), (3000, "sched_switch"),
    ]  # fmt: skip


def test_wake_up_that_no_tracepoint_showed_has_no_waker_and_moves_with_its_switch(tmp_path: Path) -> None:
    """Its time is the scheduler's, too. It says nothing about the thread that runs on its core."""
    content = (
        RUNS + rf.pair("SOFTIRQ", 2000, 2100, 3)
        + rf.waking(1800, 8, 0, 0, untraced=True) + rf.switch(2400, 7, 8, state=0x201)
        + rf.waking(2700, 7, 0, 0, untraced=True) + rf.switch(3000, 8, 7)
    )  # fmt: skip
    found, _, info = made(tmp_path, TASKS, cpu0=content)
    assert [event[:3] + event[4:6] for event in found if event[0] > 1000] == [
        (1399, "sched_waking", 0, -1, 8), (1999, "sched_switch", 0, 7, 8), (2000, "softirq_entry", 0, 8, 3),
        (2100, "softirq_exit", 0, 8, 3), (2700, "sched_waking", 0, -1, 7), (3000, "sched_switch", 0, 8, 7),
    ]  # fmt: skip
    assert (info["losses"]["switches_untraced"], info["losses"]["wake_ups_untraced"]) == (1, 2)


def test_wake_ups_and_migration(tmp_path: Path) -> None:
    found, _, info = made(
        tmp_path,
        TASKS,
        cpu0=RUNS + rf.waking(1100, 8, 7, 5) + rf.waking(1200, 8, 7, 2, new=True) + rf.migrate(1300, 8, 2, 5),
    )
    client = info["strings"].index("client")
    assert found[3:] == [
        (1100, "sched_waking", 0, 6, 7, 8, 5, client),
        (1200, "sched_wakeup_new", 0, 6, 7, 8, 2, client),
        (1300, "sched_migrate_task", 0, 6, 7, 8, 2, 5),
    ]


def test_a_softirq_says_whose_packets_it_received_that_were_left_out(tmp_path: Path) -> None:
    """The record of the port's reader comes later, on another core; without one the port is shown. Each count is of one softirq."""
    softirqs = [rf.pair("SOFTIRQ", 1000 * n, 1000 * n + 500, 3) for n in range(1, 6)]
    content = RUNS + b"".join([
        rf.others(1400, 6379, 6, 12) + softirqs[0], rf.others(2400, 53, 17, 3) + softirqs[1], softirqs[2],
        rf.others(4400, 0, 0, 7) + softirqs[3], rf.others(4600, 6379, 17, 1), softirqs[4],
    ])  # fmt: skip
    readers = RUNS + rf.reader(9000, 6379, 6, b"redis-server")
    found, _, info = made(tmp_path, TASKS, cpu0=content, cpu1=readers)
    ends = [event[6:] for event in found if event[1] == "softirq_exit"]
    names = [(packets, info["strings"][name]) for packets, name in ends]
    # A count recorded before a softirq began is not its count: that record was lost, or the count belongs to a lost softirq.
    assert names == [(12, "redis-server"), (3, "port 53"), (0, ""), (7, "left out"), (0, "")]


def test_the_host_had_the_core_in_the_longest_time_without_any_record_since_it_was_last_looked_at(
    tmp_path: Path,
) -> None:
    """The scheduler checks at the switch at 90,000; the core was away until the end of the softirq at 50,000."""
    content = RUNS + b"".join([
        rf.pair("SOFTIRQ", 10_000, 50_000, 3), rf.pair("VECTOR", 50_000, 51_000, 0),
        rf.steal(90_000, 35_000, 0), rf.switch(90_000, 7, 8),
        rf.steal(95_000, 60_000, 0),  # in several pieces: no single one is as long
    ])  # fmt: skip
    found, _, info = made(tmp_path, TASKS + rf.steal(99_000, 7, 0), cpu0=content)
    assert info["losses"]["steal_without_place"] == 60_000
    kinds = ("steal", "softirq_exit", "sched_switch")
    assert [(event[0], event[1], event[5], event[6]) for event in found[3:] if event[1] in kinds] == [
        (50_000, "steal", 35_000, 1), (50_000, "softirq_exit", 3, 0),
        (90_000, "sched_switch", 8, 1), (95_000, "steal", 60_000, 0), (99_000, "steal", 7, 2),
    ]  # fmt: skip


def test_the_host_had_a_running_core_somewhere_in_a_long_time_without_any_record(tmp_path: Path) -> None:
    """Each thread runs without a record until the interrupt: for 40 us, then for 41 us. Of an idle core, the end is known."""
    content = RUNS + b"".join([
        rf.switch(10_000, 7, 8), rf.pair("VECTOR", 50_000, 51_000, 0), rf.steal(60_000, 20_000, 0), rf.switch(60_000, 8, 7),
        rf.pair("VECTOR", 104_000, 105_000, 0), rf.steal(110_000, 20_000, 0), rf.switch(110_000, 7, 0),
        rf.pair("VECTOR", 900_000, 901_000, 0), rf.pair("IDLE", 111_000, 902_000, 1),
        rf.steal(903_000, 20_000, 0), rf.switch(903_000, 0, 7),
    ])  # fmt: skip
    found, _, info = made(tmp_path, TASKS, cpu0=content)
    steals = [(event[0], event[5], event[6]) for event in found if event[1] == "steal"]
    assert steals == [(50_000, 20_000, 1), (110_000, 20_000, 0), (900_000, 20_000, 1)]
    assert info["losses"]["steal_without_place"] == 20_000


def test_the_host_cannot_have_had_the_core_before_the_last_switch(tmp_path: Path) -> None:
    """The scheduler checks at each switch, so a long idle time before that says nothing."""
    content = RUNS + b"".join([
        rf.switch(2_000, 7, 0), rf.switch(900_000, 0, 7), rf.pair("SOFTIRQ", 935_000, 936_000, 3),
        rf.steal(940_000, 34_000, 0), rf.switch(940_000, 7, 8),
    ])  # fmt: skip
    found = events(tmp_path, TASKS, cpu0=content)
    assert [(event[0], event[5], event[6]) for event in found if event[1] == "steal"] == [
        (935_000, 34_000, 1)
    ]


def test_wait_for_quota_is_of_the_thread_that_the_switch_gives_the_core(tmp_path: Path) -> None:
    content = RUNS + rf.quota(5_000, 8, 3_000) + rf.switch(5_000, 7, 8)
    found = [event for event in events(tmp_path, TASKS, cpu0=content) if event[0] == 5_000]
    assert [(event[1], event[5], event[6]) for event in found] == [
        ("cpu_quota", 8, 3_000),
        ("sched_switch", 8, 1),
    ]


def test_work_for_memory_is_of_the_thread_that_did_it(tmp_path: Path) -> None:
    content = RUNS + rf.memory(1100, 1900, 7, 0) + rf.memory(2000, 2500, 8, 2)
    found, _, info = made(tmp_path, TASKS, cpu0=content + rf.memory(2000, 2600, 8, 3))
    assert found[3:] == [
        (1900, "memory_work", 0, 6, 7, 0, 800, 0),
        # No switch recorded that it ran.
        (2500, "memory_work", 0, 8, 8, 2, 500, 0),
    ]
    assert info["losses"]["malformed"] == 1


def test_each_counter_is_told_that_grew_and_the_first_one_always(tmp_path: Path) -> None:
    content = RUNS + rf.counters(1100, 0, 70, 0, 0, 5) + rf.counters(1200, 9, -1)
    assert events(tmp_path, TASKS, cpu0=content)[3:] == [
        (1100, "counter", 0, 6, 7, 0, 0, 0),
        (1100, "counter", 0, 6, 7, 1, 70, 0),
        (1100, "counter", 0, 6, 7, 4, 5, 0),
        (1200, "counter", 0, 6, 7, 0, 9, 0),
        (1200, "counter", 0, 6, 7, 1, -1, 0),
    ]


def test_pairs_begin_before_their_record(tmp_path: Path) -> None:
    content = RUNS + b"".join([
        rf.pair("SOFTIRQ", 1100, 1200, 3), rf.pair("IRQ", 1300, 1400, 40), rf.pair("VECTOR", 1500, 1600, 1),
    ])  # fmt: skip
    found, _, info = made(tmp_path, TASKS, cpu0=content)
    irq, vector = info["strings"].index("irq 40"), info["strings"].index("reschedule")
    assert found[3:] == [
        (1100, "softirq_entry", 0, 6, 7, 3, 0, 0),
        (1200, "softirq_exit", 0, 6, 7, 3, 0, 0),
        (1300, "irq_handler_entry", 0, 6, 7, 40, 0, irq),
        (1400, "irq_handler_exit", 0, 6, 7, 40, 0, 0),
        # 0xfd: RESCHEDULE_VECTOR of x86
        (1500, "vector_entry", 0, 6, 7, 0xFD, 0, vector),
        (1600, "vector_exit", 0, 6, 7, 0xFD, 0, vector),
    ]


@pytest.mark.parametrize(
    ("number", "name"),
    list(enumerate(["local_timer", "reschedule", "call_function", "call_function_single"])),
)
def test_vectors_have_the_names_of_the_tracepoints(tmp_path: Path, number: int, name: str) -> None:
    found, _, info = made(tmp_path, cpu0=rf.pair("VECTOR", 1500, 1600, number))
    assert [info["strings"][event[7]] for event in found] == [name, name]


def test_interrupts_are_named_by_the_list_beside_the_records(tmp_path: Path) -> None:
    content = rf.whole(
        0, b"".join(rf.pair("IRQ", 10 * n, 10 * n + 1, number) for n, number in enumerate((40, 41, 42, 0), 1))
    )
    records = rf.write(tmp_path, cpu0=content)
    # a name may have spaces; a line without a number, or with a number that no interrupt has, is ignored
    (records / "irqs.tsv").write_bytes(b"40\tvirtio0 in\nx\ty\n\tw\n99999999\tz\n41\teth0")
    found, _, info = rf.decode(records, tmp_path / "out")
    assert [info["strings"][event[7]] for event in found[::2]] == [
        "virtio0 in",
        "eth0",
        "irq 42",
        "irq 0",
    ]


def test_idle_is_entered_with_its_state_and_left_with_minus_one(tmp_path: Path) -> None:
    found = events(tmp_path, cpu2=rf.switch(900, 7, 0) + rf.pair("IDLE", 1000, 5000, 2))
    assert found[1:] == [
        (1000, "cpu_idle", 2, 0, 0, 2, 2, 0),
        (5000, "cpu_idle", 2, 0, 0, -1, 2, 0),
    ]


def test_system_call_has_number_argument_and_result(tmp_path: Path) -> None:
    # -100 is AT_FDCWD; 48 bits of the argument are recorded
    content = RUNS + rf.syscall(1100, 1200, 7, 257, -100, -2) + rf.syscall(1300, 1400, 7, -1, 0x7F00DEADBEEF)
    assert events(tmp_path, TASKS, cpu0=content)[3:] == [
        (1100, "sys_enter", 0, 6, 7, 257, -100, 0),
        (1200, "sys_exit", 0, 6, 7, 257, -2, 0),
        (1300, "sys_enter", 0, 6, 7, -1, 0x7F00DEADBEEF, 0),
        (1400, "sys_exit", 0, 6, 7, -1, 0, 0),
    ]


def test_faults(tmp_path: Path) -> None:
    content = RUNS + rf.fault(1100, 0x7F0000001000, 7, True) + rf.fault(1200, 0xFFFF888000001000, 2, False)
    assert events(tmp_path, TASKS, cpu0=content)[3:] == [
        (1100, "page_fault_user", 0, 6, 7, 0x7F0000001000, 0, 7),
        (1200, "page_fault_kernel", 0, 6, 7, 0xFFFF888000001000 - (1 << 64), 0, 2),
    ]


def test_life_of_a_thread(tmp_path: Path) -> None:
    content = RUNS + b"".join([
        rf.task(1100, 9, 9, b"server", rf.NEW, parent=7),
        rf.switch(1200, 7, 9),
        rf.task(1300, 9, 9, b"hog", rf.EXEC, parent=10),
        rf.task(1400, 9, 9, b"hog/0", rf.RENAMED),
        rf.exit_(1500, 9, 9),
        rf.switch(1600, 9, 0, state=0x10),
    ])  # fmt: skip
    found, _, info = made(tmp_path, TASKS, cpu0=content)
    server, hog, renamed = (info["strings"].index(name) for name in ("server", "hog", "hog/0"))
    idle = info["strings"].index("swapper/0")
    assert found[3:] == [
        (1100, "sched_process_fork", 0, 6, 7, 9, 7, server),
        (1100, "fork", 0, 9, 7, 9, 7, 6),
        (1200, "sched_switch", 0, 6, 7, 9, 1, server | server << 32),
        (1300, "comm", 0, 9, 9, 9, 1, hog),
        (1300, "sched_process_exec", 0, 9, 9, 9, 10, hog),
        (1400, "comm", 0, 9, 9, 9, 0, renamed),
        (1500, "sched_process_exit", 0, 9, 9, 9, 0, renamed),
        (1600, "sched_switch", 0, 9, 9, 0, 0x10, renamed | idle << 32),
    ]


def test_thread_has_the_name_that_was_told_last_and_before_that_the_first(tmp_path: Path) -> None:
    content = b"".join([
        rf.switch(1000, 0, 9),
        rf.task(1100, 9, 5, b"early", rf.RENAMED),
        rf.switch(1200, 9, 0),
        rf.switch(1300, 0, 9),
        rf.switch(1400, 9, 0),
    ])  # fmt: skip
    found, _, info = made(tmp_path, rf.task(1250, 9, 4, b"late"), cpu0=content)
    early, late = info["strings"].index("early"), info["strings"].index("late")
    switches = [event for event in found if event[1] == "sched_switch"]
    assert [event[7] >> 32 for event in switches[::2]] == [early, late]
    assert [(event[3], event[7] & 0xFFFF) for event in switches[1::2]] == [(5, early), (4, late)]


def test_devices_and_machine(tmp_path: Path) -> None:
    content = RUNS + b"".join([
        rf.block_io(1100, 1150, 1, 5, 4096, 0x800001, 77),
        rf.drop(1200, 6, 4026531840, 66, 0xFFFFFFFF81234567, 40000, 11211, 17),
        rf.retransmit(1300, 11211, 40000, 0xFEDCBA98, 0xFFFF888000000040),
    ])  # fmt: skip
    machine = TASKS + rf.steal(1400, 5000, 1) + rf.frequency(1500, 3_400_000, 1)
    assert events(tmp_path, machine, cpu0=content)[3:] == [
        (1150, "block_io", 0, 6, 7, 0x800001, 50, 4096 | 1 << 32 | 5 << 40),
        (
            1200,
            "net_drop",
            0,
            6,
            7,
            6 | 17 << 16 | 40000 << 32 | 11211 << 48,
            0xFFFFFFFF81234567 - (1 << 64),
            66,
        ),
        (1300, "tcp_retransmit", 0, 6, 7, 0xFEDCBA98, 11211 | 40000 << 16, 0xFFFF888000000040 - (1 << 64)),
        (1400, "steal", 1, -1, -1, 5000, 2, 0),
        (1500, "cpu_frequency", 1, -1, -1, 3_400_000, 0, 0),
    ]


def test_addresses_of_a_drop_follow_it(tmp_path: Path) -> None:
    v6 = bytes(range(16)) + bytes(range(100, 116))
    content = RUNS + b"".join([
        rf.drop(1200, 6, 1, 66, 0, 9, 53, 17, bytes([10, 0, 0, 2, 10, 0, 0, 1])),
        rf.drop(1300, 6, 1, 66, 0, 9, 53, 17, v6),
    ])  # fmt: skip
    kinds = ("net_drop", "net_drop_source", "net_drop_destination")
    packed = 6 | 17 << 16 | 9 << 32 | 53 << 48
    of_v6 = struct.unpack("<4q", v6)
    assert events(tmp_path, TASKS, cpu0=content)[3:] == [
        (ts, kind, 0, 6, 7, *values)
        for ts, rows in (
            (1200, [(packed, 0, 66), (0, 0x0200000A, 1), (0, 0x0100000A, 1)]),
            (1300, [(packed, 0, 66), (*of_v6[:2], 0), (*of_v6[2:], 0)]),
        )
        for kind, values in zip(kinds, rows, strict=True)
    ]


def test_nesting_takes_no_notice_of_devices_and_machine(tmp_path: Path) -> None:
    from nsight_report import calls

    content = RUNS + rf.switch(2000, 7, 0) + rf.block_io(2100, 2150, 1, 0, 4096, 8, 77)
    # the core is idle from 2000 on; no record of its own activity shows for how long
    machine = TASKS + rf.frequency(900, 1, 1) + rf.steal(1400, 100, 0)
    records = rf.write(tmp_path, rf.whole(rf.NO_CPU, machine), cpu0=rf.whole(0, content))
    decoded, _ = raw_records.activity(records)
    contexts = calls.build(decoded)[1].to_pylist()
    assert [(c["cpu"], c["start_ns"], c["end_ns"], c["symbol"]) for c in contexts] == [
        (0, 1000, 2000, "server")
    ]


# -- who ran ------------------------------------------------------------------------------


def test_records_without_a_thread_are_of_the_one_that_the_core_ran(tmp_path: Path) -> None:
    content = (
        rf.pair("SOFTIRQ", 500, 600, 1)  # the first switch shows who ran before it
        + rf.switch(1000, 8, 7)
        + rf.pair("SOFTIRQ", 1100, 1200, 1)
        + rf.switch(2000, 7, 0)
        + rf.pair("SOFTIRQ", 2100, 2200, 1)
    )
    found = events(tmp_path, TASKS, cpu0=content)
    assert [event[3:5] for event in found if event[1] == "softirq_entry"] == [(8, 8), (6, 7), (0, 0)]


def test_core_of_which_nothing_is_known_has_no_thread(tmp_path: Path) -> None:
    found = events(tmp_path, TASKS, cpu0=RUNS, cpu1=rf.pair("SOFTIRQ", 500, 600, 1))
    assert [event[3:5] for event in found if event[2] == 1] == [(-1, -1), (-1, -1)]


def test_core_without_switches_runs_the_thread_that_it_names(tmp_path: Path) -> None:
    content = rf.pair("SOFTIRQ", 500, 600, 1) + rf.syscall(700, 800, 7, 0)
    assert [event[4] for event in events(tmp_path, TASKS, cpu0=content)[2:]] == [7, 7, 7, 7]


@pytest.mark.parametrize(
    ("says", "tid"),
    [
        (rf.pair("IDLE", 1500, 1600, 1), 0),
        (rf.waking(1600, 7, 8, 0), 8),
        (rf.syscall(1500, 1600, 8, 1), 8),
        (rf.exit_(1600, 8, 8), 8),
        (rf.task(1600, 8, 8, b"other", rf.EXEC), 8),
        (rf.task(1600, 9, 9, b"other", rf.NEW, 8), 8),
        (rf.task(1600, 8, 8, b"other", rf.RENAMED), 7),  # another thread may have given it that name
        (rf.syscall(1500, 2600, 8, 1), 7),  # the call may have begun on another core
    ],
    ids=["idle", "wake-up", "call", "exit", "exec", "fork", "rename", "begin of a call"],
)
def test_record_of_another_thread_tells_of_a_switch_that_was_not_traced(
    tmp_path: Path, says: bytes, tid: int
) -> None:
    found = events(tmp_path, TASKS, cpu0=RUNS + says + rf.pair("SOFTIRQ", 2000, 2100, 1))
    assert [event[4] for event in found if event[1].startswith("softirq")] == [tid, tid]


# -- system calls over switches --------------------------------------------------------------


def calls_of(found: Events) -> Events:
    return [event[:3] for event in found if event[1] in ("sys_enter", "sys_exit")]


def test_call_with_several_switches_on_two_cores_is_entered_once_where_it_began(tmp_path: Path) -> None:
    core0 = RUNS + rf.switch_syscall(1200, 7, 0, 1100, 202) + rf.switch(9000, 0, 8)
    core1 = (
        rf.switch(2000, 0, 7, state=0)
        + rf.switch_syscall(2100, 7, 0, 1100, 202)
        + rf.switch(3000, 0, 7, state=0)
        + rf.syscall(1100, 3100, 7, 202)
    )
    for order in ({"cpu0": core0, "cpu1": core1}, {"cpu1": core0, "cpu0": core1}):
        found = events(tmp_path, TASKS, **order)
        began, ended = (0, 1) if order["cpu0"] is core0 else (1, 0)
        assert calls_of(found) == [(1100, "sys_enter", began), (3100, "sys_exit", ended)]


def test_call_of_which_only_its_waits_are_known_lasts_from_switch_to_switch(tmp_path: Path) -> None:
    """Time 0: system calls were not recorded. Each wait is reported as a separate call, on the cores where it was."""
    core0 = RUNS + rf.switch_syscall(1200, 7, 0, 0, 202, argument=5) + rf.switch(9000, 0, 8)
    core1 = (
        rf.switch(2000, 0, 7, state=0) + rf.switch(2500, 7, 0, state=0x100) + rf.switch(2600, 0, 7, state=0)
    )
    found, _, info = made(tmp_path, TASKS, cpu0=core0, cpu1=core1)
    assert calls_of(found) == [(1200, "sys_enter", 0), (2000, "sys_exit", 1)]
    names = [event[1] for event in found]
    assert names.index("sys_enter") < names.index("sched_switch", names.index("sys_enter"))
    assert info["losses"]["enters_missing"] == 0


def test_call_that_does_not_end_is_entered(tmp_path: Path) -> None:
    content = RUNS + rf.switch_syscall(1200, 7, 0, 1100, 202, argument=1 << 63)
    assert events(tmp_path, TASKS, cpu0=content)[3] == (1100, "sys_enter", 0, 6, 7, 202, -1 << 63, 0)


def test_call_whose_switches_are_lost_is_entered_on_the_core_that_ran_its_thread(tmp_path: Path) -> None:
    # core 0 shows that 7 ran there until 1200, but not in which call; only the end, on core 1, shows that
    core0 = RUNS + rf.switch(1200, 7, 0)
    core1 = rf.switch(2000, 0, 7, state=0) + rf.syscall(1100, 2100, 7, 202)
    found, _, info = made(tmp_path, TASKS, cpu0=core0, cpu1=core1)
    assert calls_of(found) == [(1100, "sys_enter", 0), (2100, "sys_exit", 1)]
    assert info["losses"]["enters_missing"] == 0


def test_call_that_began_on_no_known_core_is_counted(tmp_path: Path) -> None:
    # no record shows where 7 was at 500
    content = rf.switch(1000, 0, 7, state=0) + rf.syscall(500, 1100, 7, 202)
    found, _, info = made(tmp_path, TASKS, cpu0=content)
    assert calls_of(found) == [(1100, "sys_exit", 0)]
    assert info["losses"]["enters_missing"] == 1


def test_call_of_a_thread_that_ran_on_no_core_at_its_begin_is_counted(tmp_path: Path) -> None:
    core0 = RUNS + rf.switch(1200, 7, 0)
    core1 = rf.switch(2000, 0, 7, state=0) + rf.syscall(1500, 2100, 7, 202)
    found, _, info = made(tmp_path, TASKS, cpu0=core0, cpu1=core1)
    assert calls_of(found) == [(2100, "sys_exit", 1)]
    assert info["losses"]["enters_missing"] == 1


def test_call_before_the_first_switch_began_on_the_core_that_it_leaves(tmp_path: Path) -> None:
    found = events(tmp_path, TASKS, cpu0=rf.switch_syscall(1000, 7, 0, 400, 202))
    assert calls_of(found) == [(400, "sys_enter", 0)]


def test_longest_duration_is_used_and_counted(tmp_path: Path) -> None:
    end = rf.SATURATED + 5_000_000
    content = RUNS + rf.pair("IDLE", 1_000_000, end, 1)  # 4 ms longer than a record can hold
    files = {"cpu0": rf.header(0) + rf.block(content, end)}
    found, _, info = rf.decode(rf.write(tmp_path, **files), tmp_path / "out")
    assert short(found) == [(1000, "sched_switch"), (5_000_000, "cpu_idle"), (end, "cpu_idle")]
    assert info["losses"]["saturated"] == 1


def test_call_too_long_for_its_record_began_when_a_switch_says(tmp_path: Path) -> None:
    end = rf.SATURATED + 5_000_000
    core0 = (
        RUNS
        + rf.switch_syscall(1200, 7, 0, 1100, 232)
        + rf.switch(3_000_000, 0, 7, state=0)  # it runs at the time that its record would give as the begin
        + rf.switch_syscall(6_000_000, 7, 0, 1100, 232)
        + rf.switch(end - 10, 0, 7, state=0)
        + rf.syscall(1100, end, 7, 232)
    )
    found, _, info = rf.decode(rf.write(tmp_path, cpu0=rf.header(0) + rf.block(core0, end)), tmp_path / "out")
    assert calls_of(found) == [(1100, "sys_enter", 0), (end, "sys_exit", 0)]
    assert info["losses"]["saturated"] == 1


# -- order --------------------------------------------------------------------------------


def test_records_out_of_order_and_those_of_two_cores_come_in_order_of_time(tmp_path: Path) -> None:
    late = b"".join(rf.waking(ts, 8, 7, 0) for ts in (1500, 1400, 1450, 1300))
    found = events(
        tmp_path, TASKS, cpu0=RUNS + late, cpu1=rf.waking(1420, 7, 8, 0) + rf.waking(1100, 7, 8, 0)
    )
    assert [event[0] for event in found[2:]] == [1000, 1100, 1300, 1400, 1420, 1450, 1500]


def test_begins_far_back_come_in_order(tmp_path: Path) -> None:
    # more records between begin and end than a neighbour sort looks at, some with equal times
    inner = b"".join(rf.waking(2000 + n // 3, 8, 7, 0) for n in range(300))
    calls = rf.pair("IRQ", 1950, 2900, 1) + rf.pair("SOFTIRQ", 1950, 2999, 1) + rf.syscall(1900, 3000, 7, 1)
    found = events(tmp_path, TASKS, cpu0=RUNS + inner + calls)
    times = [event[0] for event in found]
    assert times == sorted(times)
    assert short(found[3:6]) == [(1900, "sys_enter"), (1950, "softirq_entry"), (1950, "irq_handler_entry")]
    assert [event[1] for event in found[-3:]] == ["irq_handler_exit", "softirq_exit", "sys_exit"]
    assert len(found) == 3 + 300 + 6


ALL_AT_2000 = [
    rf.pair("IRQ", 1500, 2000, 40),  # the inner of two that end
    rf.pair("SOFTIRQ", 1400, 2000, 3),
    rf.pair("VECTOR", 2000, 2000, 0),  # of length 0
    rf.pair("SOFTIRQ", 2000, 2500, 1),  # the inner of two that begin
    rf.pair("IRQ", 2000, 2600, 41),
]


@pytest.mark.parametrize("turned", [False, True], ids=["as written", "turned round"])
def test_at_one_time_inner_pairs_end_first_and_outer_ones_begin_first(tmp_path: Path, turned: bool) -> None:
    content = RUNS + b"".join(reversed(ALL_AT_2000) if turned else ALL_AT_2000)
    found = events(tmp_path, TASKS, cpu0=content)
    assert [(event[1], event[5]) for event in found if event[0] == 2000] == [
        ("irq_handler_exit", 40),
        ("softirq_exit", 3),
        ("vector_entry", 0xEC),
        ("vector_exit", 0xEC),
        ("irq_handler_entry", 41),
        ("softirq_entry", 1),
    ]


@pytest.mark.parametrize("turned", [False, True], ids=["as written", "turned round"])
def test_at_the_time_of_a_switch_what_ends_comes_before_and_what_begins_after(
    tmp_path: Path, turned: bool
) -> None:
    at = [
        rf.pair("SOFTIRQ", 1900, 2000, 3),
        rf.syscall(1800, 2000, 7, 1),  # of the thread that leaves
        rf.switch(2000, 7, 8),
        rf.syscall(2000, 2400, 8, 0),  # of the one that comes
        rf.pair("IRQ", 2000, 2100, 40),
    ]
    found = events(tmp_path, TASKS, cpu0=RUNS + b"".join(reversed(at) if turned else at))
    assert [(event[1], event[4]) for event in found if event[0] == 2000] == [
        ("softirq_exit", 7),
        ("sys_exit", 7),
        ("sched_switch", 7),
        ("sys_enter", 8),
        ("irq_handler_entry", 8),
    ]


def test_call_that_switches_at_once_is_entered_before(tmp_path: Path) -> None:
    # the clock does not advance after the return to user mode: 8 comes, makes a call and leaves again at 2000
    at = rf.switch(2000, 7, 8) + rf.switch_syscall(2000, 8, 7, 2000, 24)
    found = events(tmp_path, TASKS, cpu0=RUNS + at)
    assert [(event[1], event[4]) for event in found[3:]] == [
        ("sched_switch", 7),
        ("sys_enter", 8),
        ("sched_switch", 8),
    ]


def test_call_that_returns_when_its_thread_comes_back_returns_after(tmp_path: Path) -> None:
    at = rf.syscall(1100, 2000, 7, 24) + rf.switch(2000, 8, 7)
    found = events(tmp_path, TASKS, cpu0=RUNS + rf.switch_syscall(1500, 7, 8, 1100, 24) + at)
    assert short(found[4:]) == [(1500, "sched_switch"), (2000, "sched_switch"), (2000, "sys_exit")]


def test_random_nested_pairs_on_a_coarse_clock_nest(tmp_path: Path) -> None:
    from nsight_report import calls

    rng = np.random.default_rng(5)
    content, clock = [RUNS], 2000

    def pairs(depth: int) -> None:
        """Nested softirqs and interrupts, written in the order of their ends; times often repeat."""
        nonlocal clock
        for _ in range(int(rng.integers(1, 4))):
            begin = clock = clock + int(rng.integers(0, 2))
            if depth < 3 and rng.random() < 0.6:
                pairs(depth + 1)
            clock += int(rng.integers(0, 2))
            name, what = (("SOFTIRQ", 3), ("IRQ", 40), ("VECTOR", 0), ("IRQ", 41))[depth]
            content.append(rf.pair(name, begin, clock, what))
            clock += int(rng.integers(0, 2))

    for _ in range(100):
        pairs(0)
        clock += 1
    records = rf.write(tmp_path, cpu0=rf.whole(0, b"".join(content)))
    decoded, _ = raw_records.activity(records)
    lost = calls.build(decoded)[3].to_pylist()
    assert [row["cause"] for row in lost if "without" in row["cause"]] == []


# -- what the rest of the program expects -------------------------------------------------------


def test_numbers_mirror_the_headers(tmp_path: Path) -> None:
    _, _, info = made(tmp_path, cpu0=RUNS)
    assert tuple(info["kinds"]) == perf_data.KINDS
    assert (info["clock"], info["cut"], info["n_records"]) == ("monotonic", False, 1)
    assert raw_records.STAMP.itemsize == 120


def test_only_what_is_asked_for_is_made(tmp_path: Path) -> None:
    content = RUNS + rf.message("R", 1100, tid=7)
    records = rf.write(tmp_path, cpu0=rf.whole(0, content))
    both = rf.decode(records, tmp_path / "both")
    assert (len(both[0]), len(both[1])) == (1, 1)
    assert rf.decode(records, tmp_path / "a", only="activity")[0] == both[0]
    assert not (tmp_path / "a" / "messages.bin").exists()
    assert (rf.decode(records, tmp_path / "m", only="messages")[1] == both[1]).all()
    assert not (tmp_path / "m" / "perf-events.bin").exists()
