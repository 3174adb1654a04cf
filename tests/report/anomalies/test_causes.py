# SPDX-License-Identifier: GPL-2.0-only
"""Each injected cause is reported with its ns; without an injected cause none is reported."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from machinery.made_up.scene import Scene
from machinery.made_up.tables import PID, TID, context, message, syscall
from nsight_report.anomalies import Host, Recording, Selection, Slice, deviation, find
from nsight_report.attribution import attribute
from nsight_report.attribution.categories import ADVICE, read_advice
from nsight_report.attribution.causes import PLACES
from nsight_report.timeline.labelled import HOL, OWN, THREAD, Exposure

SLOWEST = Selection(slow=Slice.parse("1500ns-"), granularity_ns=50)


def diagnose(scene: Scene, options: Selection = SLOWEST, host: Host | None = None):
    tables = scene.tables()
    compared, found, losses, _ = find(Recording(*tables, host=host), options)
    anomalies, coverage, causes, _ = attribute(found, compared, options)
    result = SimpleNamespace(anomalies=anomalies, coverage=coverage, losses=losses)
    return result, {r["cause"]: r for r in causes.to_pylist()}


def slow(scene: Scene, t: int, handoff: int, read: int, core0, core1, threads) -> None:
    scene.messages.append(message(len(scene.messages), t, t + handoff, t + read))
    scene.cores(t, core0, core1)
    scene.threads(t, threads)


SOFTIRQ = [(0, 800, "softirq", "NET_RX", 7, "client"), (800, 20_000, "idle", "idle", 0, "swapper")]
IDLE = (0, "swapper")


def hog_on_application_core(waits):
    """Woken at 600, but the hog runs until 5600: 5000 ns more than usual. ``waits``: the thread's state until then."""
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 5600, "thread", "hog", 50, "hog"), (5600, 6500, "syscall", "read", TID, "server"),
          (6500, 20_000, "idle", "idle", *IDLE)],
         [(0, 600, "sleeping"), (600, 5600, waits), (5600, 6500, "running"), (6500, 20_000, "sleeping")])  # fmt: skip
    return diagnose(scene)


def test_hog_on_application_core_gets_exactly_its_time():
    result, causes = hog_on_application_core("runnable")
    assert causes["hog (A)"]["total_deviation_ns"] == 5000
    assert causes["hog (A)"]["n_messages"] == 1
    assert list(causes) == ["hog (A)"]
    assert result.coverage["coverage"].to_pylist() == [1.0]


def test_evidence_is_the_whole_turn_of_a_thread_and_not_a_piece_between_its_system_calls():
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 2000, "thread", "hog", 50, "hog"), (2000, 2600, "syscall", "futex", 50, "hog"),
          (2600, 3000, "softirq", "TIMER", 50, "hog"), (3000, 4000, "thread", "hog", 50, "hog"),
          (4000, 4200, "thread", "other", 60, "other"), (4200, 5600, "thread", "hog", 50, "hog"),
          (5600, 6500, "syscall", "read", TID, "server"), (6500, 20_000, "idle", "idle", *IDLE)],
         [(0, 600, "sleeping"), (600, 5600, "runnable"), (5600, 6500, "running"), (6500, 20_000, "sleeping")])  # fmt: skip
    result, causes = diagnose(scene)
    assert causes["hog (A)"]["total_deviation_ns"] == 4800
    hog = next(row for row in result.anomalies.to_pylist() if row["subject"] == "hog")
    assert (hog["start_ns"], hog["end_ns"]) == (t + 600, t + 4000)


def test_advice_for_a_thread_of_the_application_is_not_to_pin_it_apart(tmp_path):
    """A child that redis forked has the same name, but none of its messages."""
    scene = Scene()
    t = scene.quiet(40)
    for pid, name in ((300, "server"), (50, "hog")):
        slow(scene, t, 500, 6000, SOFTIRQ,
             [(0, 5600, "thread", name, pid, name), (5600, 6500, "syscall", "read", TID, "server")],
             [(0, 600, "sleeping"), (600, 5600, "runnable"), (5600, 6500, "running")])  # fmt: skip
        t += 30_000
    options = replace(SLOWEST, slow=Slice.parse("p95-100"))
    compared, found, *_ = find(Recording(*scene.tables()), options)

    def advice(options: Selection) -> dict[str, str]:
        causes = attribute(found, compared, options, frozenset({"server"}))[2].to_pylist()
        return {row["cause"]: row["advice"] for row in causes}

    told = advice(options)
    assert list(told) == ["hog (A)", "server (A)"] or list(told) == ["server (A)", "hog (A)"]
    assert told["hog (A)"].startswith("CPU contention with this program")
    assert told["server (A)"].startswith("Another thread of the application")
    mine = tmp_path / "mine.csv"
    mine.write_text("thread,ser*,{name},It is ours.\n")
    assert advice(replace(options, categories=mine))["server (A)"] == "It is ours."


def test_a_worker_of_the_same_process_is_no_program_to_pin_apart_whatever_it_is_called():
    """Thread 100 reads; thread 105 of the same process works on earlier messages, on the same core."""
    for pid, advice in ((PID, "Another thread of the application"), (50, "CPU contention with this program")):
        scene = Scene()
        t = scene.quiet(40)
        slow(scene, t, 500, 6000, SOFTIRQ,
             [(0, 5600, "thread", "worker-3", 105, "worker-3"), (5600, 6500, "syscall", "read", TID, "server")],
             [(0, 600, "sleeping"), (600, 5600, "runnable"), (5600, 6500, "running")])  # fmt: skip
        next(c for c in scene.contexts if c["tid"] == 105)["pid"] = pid
        result, causes = diagnose(scene)
        assert {c: r["total_deviation_ns"] for c, r in causes.items()} == {"worker-3 (A)": 5000}
        assert causes["worker-3 (A)"]["advice"].startswith(advice)
        (row,) = result.anomalies.to_pylist()
        assert row["anomaly"] == "context"


def test_a_message_whose_clocks_are_bad_hides_no_other():
    scene = Scene()
    t = scene.quiet(40)
    for _ in range(2):
        slow(scene, t, 500, 6000, SOFTIRQ,
             [(0, 5600, "thread", "hog", 50, "hog"), (5600, 6500, "syscall", "read", TID, "server")],
             [(0, 600, "sleeping"), (600, 5600, "runnable"), (5600, 6500, "running")])  # fmt: skip
        t += 30_000
    bad = scene.messages[40]["first_ns"]

    def noise(first: np.ndarray, last: np.ndarray) -> np.ndarray:
        return np.where(first == bad, 9000, 50)  # more than the delay of 5000

    compared, found, *_ = find(Recording(*scene.tables(), noise=noise), SLOWEST)
    anomalies, coverage, causes, losses = attribute(found, compared, SLOWEST)
    assert anomalies["message_id"].to_pylist() == [41]
    assert coverage["noise_ns"].to_pylist() == [9000, 50]
    assert [(r["cause"], r["total_deviation_ns"], r["share"]) for r in causes.to_pylist()] == [
        ("hog (A)", 5000, 1.0)
    ]
    counted = {row["cause"]: row["count"] for row in losses.to_pylist()}
    assert counted["slow messages within measurement noise"] == 1
    compared = compared.set_column(
        compared.schema.get_field_index("noise_ns"), "noise_ns", pa.array([9000] * len(compared))
    )
    assert attribute(found, compared, SLOWEST)[0].num_rows == 0


def test_a_message_is_known_no_better_than_what_it_is_compared_with():
    usual, scene = Scene(), Scene()
    usual.quiet(40)
    t = scene.quiet(40)
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 5600, "thread", "hog", 50, "hog"), (5600, 6500, "syscall", "read", TID, "server")],
         [(0, 600, "sleeping"), (600, 5600, "runnable"), (5600, 6500, "running")])  # fmt: skip
    for theirs, named in ((50, [40]), (9000, [])):
        against = Recording(*usual.tables(), noise=lambda first, _last, ns=theirs: np.full(len(first), ns))
        compared, found, *_ = find(Recording(*scene.tables()), SLOWEST, against)
        anomalies, coverage, _, _ = attribute(found, compared, SLOWEST)
        assert anomalies["message_id"].to_pylist() == named
        assert coverage["noise_ns"].to_pylist() == [theirs]


def test_tick_inside_the_hog_counts_as_the_hog():
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 2000, "thread", "hog", 50, "hog"), (2000, 2300, "hardirq", "local_timer", 50, "hog"),
          (2300, 5600, "thread", "hog", 50, "hog"), (5600, 6500, "syscall", "read", TID, "server")],
         [(0, 600, "sleeping"), (600, 5600, "runnable"), (5600, 6500, "running")])  # fmt: skip
    _, causes = diagnose(scene)
    assert {c: r["total_deviation_ns"] for c, r in causes.items()} == {"hog (A)": 5000}


def test_what_only_has_a_place_is_located_and_not_explained():
    scene = Scene()
    t = scene.quiet(40)
    # 2,000 ns behind a hog, and 3,000 more in the application's read.
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 2600, "thread", "hog", 50, "hog"), (2600, 6500, "syscall", "read", TID, "server"),
          (6500, 20_000, "idle", "idle", *IDLE)],
         [(0, 600, "sleeping"), (600, 2600, "runnable"), (2600, 6500, "running"), (6500, 20_000, "sleeping")])  # fmt: skip
    result, causes = diagnose(scene)
    located = {c: (r["total_deviation_ns"], r["located_ns"]) for c, r in causes.items()}
    assert located == {"Application processing (A)": (3000, 3000), "hog (A)": (2000, 0)}
    (row,) = result.coverage.to_pylist()
    assert (row["explained_ns"], row["located_ns"], row["coverage"]) == (2000, 3000, 0.4)
    assert {r["subject"]: r["located"] for r in result.anomalies.to_pylist()} == {"hog": False, "read": True}


def test_places_are_categories_with_advice():
    known = read_advice(ADVICE)
    assert set(PLACES) <= set(known)


def test_a_core_that_the_host_took_away_is_the_cause_and_not_who_was_on_it():
    scene = Scene()
    t = scene.quiet(40)
    # The hog has the core for 1,000 ns; in between, the host takes the core away for 4,000.
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 1000, "thread", "hog", 50, "hog"), (1000, 5000, "absent", "steal", 50, "hog"),
          (5000, 5600, "thread", "hog", 50, "hog"), (5600, 6500, "syscall", "read", TID, "server")],
         [(0, 600, "sleeping"), (600, 5600, "runnable"), (5600, 6500, "running")])  # fmt: skip
    _, causes = diagnose(scene)
    assert {c: r["total_deviation_ns"] for c, r in causes.items()} == {
        "Host took the core (A)": 4000,
        "hog (A)": 1000,
    }
    assert "vmstat" in causes["Host took the core (A)"]["advice"]


def test_a_hog_that_runs_while_the_thread_is_stopped_is_not_blamed():
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 9000, SOFTIRQ,
         [(0, 8600, "thread", "hog", 50, "hog"), (8600, 9500, "syscall", "read", TID, "server")],
         [(0, 8600, "stopped"), (8600, 9500, "running")])  # fmt: skip
    _, causes = diagnose(scene)
    # 8100 ns stopped; the usual 100 ns asleep in epoll_wait did not happen, so 8000 remain.
    assert {c: r["total_deviation_ns"] for c, r in causes.items()} == {"Application stopped (A)": 8000}


def test_ready_message_behind_another_of_its_thread_is_head_of_line_blocking():
    scene = Scene()
    t = scene.quiet(40)
    # Two messages are handed off together; the thread works on the first for 3000 ns before it reads the second.
    scene.messages.append(message(40, t, t + 500, t + 1000))
    scene.messages.append(message(41, t + 1, t + 501, t + 4000))
    scene.cores(t, SOFTIRQ, [(0, 600, "idle", "idle", *IDLE), (600, 4500, "thread", "server", TID, "server")])
    scene.threads(t, [(0, 600, "sleeping"), (600, 4500, "running")])
    result, causes = diagnose(scene)
    row = next(r for r in result.anomalies.to_pylist() if r["anomaly"] == "hol")
    assert row["message_id"] == 41
    assert row["other_message_id"] == 40
    # Work on message 40: from its read call (800) to the read call of message 41 (3800).
    assert row["observed_ns"] == 3000
    assert next(iter(causes)) == "Head-of-line blocking (A)"


def test_a_thread_that_left_its_core_where_nothing_was_decoded_is_done_with_its_message():
    scene = Scene()
    t = scene.quiet(40)
    # Message 40 is read at 1000. The wait for the next message is in a gap, so no system call of the thread is seen there.
    scene.messages.append(message(40, t, t + 500, t + 1000))
    scene.cores(
        t,
        [(0, 800, "softirq", "NET_RX", 7, "client"), (800, 9000, "idle", "idle", *IDLE)],
        [
            (0, 600, "idle", "idle", *IDLE),
            (600, 1500, "syscall", "read", TID, "server"),
            (1500, 9000, "gap", "", -1, ""),
        ],
    )
    scene.threads(t, [(0, 600, "sleeping"), (600, 1600, "running"), (1600, 9600, "waiting")])
    t += 9000
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 600, "idle", "idle", *IDLE), (600, 6500, "thread", "server", TID, "server")],
         [(600, 6500, "running")])  # fmt: skip
    result, _ = diagnose(scene)
    # The thread did not work on message 40 from its wake-up at 600 to its read call at 5800.
    assert [(r["kind"], r["subject"]) for r in result.anomalies.to_pylist()] == [("own", "user code")]


def test_a_thread_that_waited_when_its_message_came_was_woken_by_it():
    # With Intel PT nothing records when a thread was woken: from the hand-off on it waits for the core that it later runs on.
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 5600, "thread", "hog", 50, "hog"), (5600, 6500, "syscall", "read", TID, "server")],
         [(0, 5600, "waiting"), (5600, 6500, "running")])  # fmt: skip
    scene.states[-2]["cpu"] = 3  # where it ran before
    _, causes = diagnose(scene)
    # Usually the wake-up comes 100 ns after the hand-off; here the hog takes these 100 ns.
    assert {c: r["total_deviation_ns"] for c, r in causes.items()} == {"hog (A)": 5000}


def test_what_a_thread_waits_for_in_a_gap_is_not_told_by_an_older_system_call():
    scene = Scene()
    t = scene.quiet(40)
    # A send, then a gap in which the thread began to wait for events. It does not wait in the send, which had ended.
    scene.calls.append(syscall(TID, t + 100, t + 200, "sendmsg"))
    scene.cores(t, SOFTIRQ, [(0, 1000, "thread", "server", TID, "server"), (1000, 20_000, "gap", "", -1, "")])
    scene.threads(t, [(0, 2000, "running"), (2000, 25_600, "waiting")])
    t += 20_000
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 5600, "thread", "hog", 50, "hog"), (5600, 6500, "syscall", "read", TID, "server")],
         [(5600, 6500, "running")])  # fmt: skip
    _, causes = diagnose(scene)
    assert {c: r["total_deviation_ns"] for c, r in causes.items()} == {"hog (A)": 5000}


def test_a_thread_that_leaves_its_core_behind_the_hand_off_waits_for_something_else():
    scene = Scene()
    t = scene.quiet(40)
    scene.calls.append(syscall(TID, t + 650, t + 5650, "futex"))
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 600, "idle", "idle", *IDLE), (600, 700, "syscall", "futex", TID, "server"),
          (700, 5600, "thread", "other", 51, "other"), (5600, 6500, "syscall", "read", TID, "server")],
         [(0, 600, "waiting"), (600, 700, "running"), (700, 5600, "waiting"), (5600, 6500, "running")])  # fmt: skip
    _, causes = diagnose(scene)
    assert causes["Lock wait (A)"]["total_deviation_ns"] == 4900
    assert "other (A)" not in causes


def test_a_lost_packet_waits_to_be_sent_again_whatever_the_core_does():
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 8500, 9000,
         [(0, 5000, "thread", "hog", 50, "hog"), (5000, 8200, "idle", "idle", *IDLE), (8200, 8800, "softirq", "NET_RX", 7, "client")],
         [(0, 8600, "idle", "idle", *IDLE), (8600, 9500, "syscall", "read", TID, "server")],
         [(0, 8600, "sleeping"), (8600, 9500, "running")])  # fmt: skip
    scene.messages[-1]["copy_lost"] = True
    _, causes = diagnose(scene)
    # It arrives at 8400. Others take 400 ns from the NIC to the arrival, and their core is in softirq during these.
    assert {c: r["total_deviation_ns"] for c, r in causes.items()} == {"Retransmission (R)": 8000}


def test_hog_between_arrival_at_the_nic_and_softirq_is_on_the_receive_side():
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 4500, 5000,
         [(0, 4000, "thread", "hog", 50, "hog"), (4000, 4800, "softirq", "NET_RX", 50, "hog")],
         [(0, 4600, "idle", "idle", *IDLE), (4600, 5500, "syscall", "read", TID, "server")],
         [(0, 4600, "sleeping"), (4600, 5500, "running")])  # fmt: skip
    _, causes = diagnose(scene)
    assert {c: r["total_deviation_ns"] for c, r in causes.items()} == {"hog (R)": 4000}


def test_woken_thread_on_an_idle_core_is_cpu_idle():
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 5600, "idle", "idle", *IDLE), (5600, 6500, "syscall", "read", TID, "server")],
         [(0, 600, "sleeping"), (600, 5600, "runnable"), (5600, 6500, "running")])  # fmt: skip
    _, causes = diagnose(scene)
    assert {c: r["total_deviation_ns"] for c, r in causes.items()} == {"CPU idle (A)": 5000}


def woken(idle_ns: int, between: list[tuple] = []) -> Scene:  # noqa: B006
    """A message whose thread is ready at 600 and runs after its core was idle for ``idle_ns``; ``between``: what ran before that."""
    scene = Scene()
    t = scene.quiet(40)
    begin = max([600, *(row[1] for row in between)])
    run = begin + idle_ns
    slow(scene, t, 500, run + 400, SOFTIRQ,
         [(0, 600, "idle", "idle", *IDLE), *between, (begin, run, "idle", "idle", *IDLE),
          (run, run + 900, "syscall", "read", TID, "server")],
         [(0, 600, "sleeping"), (600, run, "runnable"), (run, run + 900, "running")])  # fmt: skip
    return scene


DEEP = Host(exit_ns=(2_000, 30_000))


@pytest.mark.parametrize(
    ("idle_ns", "host", "cause"),
    [
        (40_000, DEEP, "C-state exit latency (A)"),
        (60_000, DEEP, "CPU idle (A)"),
        (40_000, Host(exit_ns=(2_000,)), "CPU idle (A)"),
        (60_000, Host(throttled=(PID,)), "CPU quota (A)"),
        (40_000, Host(throttled=(PID,)), "CPU idle (A)"),
        (60_000, Host(throttled=(PID + 1,)), "CPU idle (A)"),
    ],
)
def test_a_ready_thread_on_an_idle_core_waits_for_the_core_to_wake_or_for_its_quota(
    idle_ns: int, host: Host, cause: str
):
    _, causes = diagnose(woken(idle_ns), host=host)
    assert {c: r["total_deviation_ns"] for c, r in causes.items()} == {cause: idle_ns}


def test_who_runs_while_a_process_is_throttled_is_not_to_blame():
    hog = [(600, 100_600, "thread", "hog", 50, "hog")]
    _, causes = diagnose(woken(400_000, hog), host=Host(throttled=(PID,)))
    assert {c: r["total_deviation_ns"] for c, r in causes.items()} == {"CPU quota (A)": 500_000}
    # If the core is never idle meanwhile, nothing points to a quota.
    _, causes = diagnose(woken(0, hog), host=Host(throttled=(PID,)))
    assert list(causes) == ["hog (A)"]


def test_where_the_scheduler_tells_how_long_a_quota_took_the_rest_is_contention():
    """A hog has the core from the wake-up at 600 to 100,600; for 70,000 ns of that the quota kept the thread from running."""
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 101_000, SOFTIRQ,
         [(0, 600, "idle", "idle", *IDLE), (600, 100_600, "thread", "hog", 50, "hog"),
          (100_600, 101_500, "syscall", "read", TID, "server")],
         [(0, 600, "sleeping"), (600, 70_600, "throttled"), (70_600, 100_600, "runnable"),
          (100_600, 101_500, "running")])  # fmt: skip
    _, causes = diagnose(scene)
    assert {c: r["total_deviation_ns"] for c, r in causes.items()} == {
        "CPU quota (A)": 70_000,
        "hog (A)": 30_000,
    }


def test_lock_wait_names_the_system_call_before_the_gap():
    scene = Scene()
    t = scene.quiet(40)
    scene.calls.append(syscall(TID, t + 650, t + 5650, "futex"))
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 600, "idle", "idle", *IDLE), (600, 700, "syscall", "futex", TID, "server"),
          (700, 5600, "idle", "idle", *IDLE), (5600, 6500, "syscall", "read", TID, "server")],
         [(0, 600, "sleeping"), (600, 700, "running"), (700, 5600, "sleeping"), (5600, 6500, "running")])  # fmt: skip
    result, causes = diagnose(scene)
    assert next(iter(causes)) == "Lock wait (A)"
    assert causes["Lock wait (A)"]["total_deviation_ns"] == 4900
    gap = next(r for r in result.anomalies.to_pylist() if r["anomaly"] == "gap")
    assert gap["subject"] == "sleeping in futex"
    assert (gap["start_ns"], gap["end_ns"]) == (t + 700, t + 5600)


#: Application core of a message that is ready at 500: what its thread does until it leaves the core at 700; it returns at 5600.
LEFT = {
    "system call, ended": [(600, 650, "syscall", "recvmsg", TID, "server"), (650, 700, "thread", "server", TID, "server")],
    "fault, open": [(600, 650, "syscall", "recvmsg", TID, "server"), (650, 680, "thread", "server", TID, "server"),
                    (680, 700, "exception", "asm_exc_page_fault", TID, "server")],
    "fault, ended": [(600, 640, "syscall", "recvmsg", TID, "server"),
                     (640, 650, "exception", "asm_exc_page_fault", TID, "server"),
                     (650, 700, "syscall", "recvmsg", TID, "server")],
    "fault within a system call": [(600, 690, "syscall", "recvmsg", TID, "server"),
                                   (690, 700, "exception", "asm_exc_page_fault", TID, "server")],
}  # fmt: skip


def left(scene: Scene, what: list[tuple], state: str = "blocked") -> str:
    """Subject of the gap from 700 to 5600 of a message whose thread did ``what`` before the gap."""
    t = scene.messages[-1]["first_ns"] + 10_000
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 600, "idle", "idle", *IDLE), *what,
          (700, 5600, "idle", "idle", *IDLE), (5600, 6500, "syscall", "read", TID, "server")],
         [(0, 600, "sleeping"), (600, 700, "running"), (700, 5600, state), (5600, 6500, "running")])  # fmt: skip
    result, causes = diagnose(scene)
    assert next(iter(causes)) == (
        "Blocked on I/O or memory (A)" if state == "blocked" else "Application waits (A)"
    )
    return str(next(r for r in result.anomalies.to_pylist() if r["anomaly"] == "gap")["subject"])


@pytest.mark.parametrize(
    ("what", "subject"),
    [
        ("system call, ended", "blocked in user code"),
        ("fault, open", "blocked in asm_exc_page_fault"),
        ("fault, ended", "blocked in recvmsg"),
        ("fault within a system call", "blocked in asm_exc_page_fault"),
    ],
)
def test_with_functions_a_wait_is_named_after_what_the_thread_was_in(what: str, subject: str):
    scene = Scene()
    t = scene.quiet(40)
    scene.calls.append({**syscall(TID, t, t + 100, "main"), "kind": "function"})
    assert left(scene, LEFT[what]) == subject


@pytest.mark.parametrize(
    ("end", "known", "subject"),
    [
        (650, "measured", "blocked in user code"),  # the call had returned
        (5650, "measured", "blocked in recvmsg"),  # one record, written at the return, covers the whole call
        (700, "inferred", "blocked in recvmsg"),  # cut by the switch
        (600, "inferred", "blocked in recvmsg"),  # all that is known: the thread left its core in the call
        (600, "measured", "blocked in user code"),  # or: the thread returned to a core in the call
    ],
)
def test_without_functions_a_system_call_that_had_ended_is_not_what_a_thread_waits_in(
    end: int, known: str, subject: str
):
    scene = Scene()
    t = scene.quiet(40)
    scene.calls.append({**syscall(TID, t + 600, t + end, "recvmsg"), "end_known": known})
    assert left(scene, [(600, 700, "thread", "server", TID, "server")]) == subject


def test_what_a_thread_was_in_is_not_claimed_where_its_system_calls_were_not_recorded():
    scene = Scene()
    scene.quiet(40)
    scene.calls.clear()
    assert (
        left(scene, [(600, 700, "thread", "server", TID, "server")], "sleeping")
        == "sleeping in an unknown call"
    )


def test_packets_that_were_not_recorded_are_interference_except_around_messages_that_were():
    scene = Scene()
    t = scene.quiet(40)
    # Core 0 is in softirq from 0 on, 5,000 ns longer than usual; the softirq handles our message from 5,400 to 5,500.
    slow(scene, t, 5500, 6000, [(0, 5800, "softirq", "NET_RX", 7, "client"), (5800, 20_000, "idle", "idle", *IDLE)],
         [(0, 5600, "idle", "idle", *IDLE), (5600, 6500, "syscall", "read", TID, "server")],
         [(0, 5600, "sleeping"), (5600, 6500, "running")])  # fmt: skip
    softirq = next(c for c in scene.contexts if c["cpu"] == 0 and c["start_ns"] == t)
    _, causes = diagnose(scene)
    assert {c: r["total_deviation_ns"] for c, r in causes.items()} == {"Receive processing (R)": 5000}
    softirq["others"] = "redis-server receive"
    _, causes = diagnose(scene)
    # The 100 ns from arrival to hand-off belong to the message; a usual message has 500 ns of softirq.
    assert {c: r["total_deviation_ns"] for c, r in causes.items()} == {"redis-server receive (R)": 5000}
    assert "steer them elsewhere" in causes["redis-server receive (R)"]["advice"]


def test_waiting_in_the_queue_of_another_core_blames_what_ran_there():
    scene = Scene()
    t = scene.quiet(40)
    # Queued on core 0 behind the hog, then moved to core 1, which was idle the whole time.
    scene.messages.append(message(40, t, t + 500, t + 6000))
    scene.contexts += [
        context(0, t, t + 700, "softirq", "NET_RX", 7, "client"),
        context(0, t + 700, t + 10_000, "thread", "hog", 50, "hog"),
        context(1, t, t + 5600, "idle", "idle", 0, "swapper"),
        context(1, t + 5600, t + 6500, "syscall", "read", TID, "server"),
    ]
    scene.threads(t, [(0, 700, "sleeping"), (5600, 6500, "running")])
    scene.states.append(
        {**scene.states[-1], "start_ns": t + 700, "end_ns": t + 5600, "state": "runnable", "cpu": 0}
    )
    _, causes = diagnose(scene)
    assert causes["hog (A)"]["total_deviation_ns"] == 4900
    assert "CPU idle (A)" not in causes


def test_time_without_any_record_stays_unexplained_and_is_counted():
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 600, "idle", "idle", *IDLE), (5600, 6500, "syscall", "read", TID, "server")],
         [(0, 600, "sleeping"), (600, 5600, "runnable"), (5600, 6500, "running")])  # fmt: skip
    result, causes = diagnose(scene)
    assert causes == {}
    assert result.coverage["coverage"].to_pylist() == [0.0]
    assert result.losses["cause"].to_pylist() == ["slow messages with untraced time"]


def test_a_message_with_two_unrecorded_intervals_is_counted_once():
    scene = Scene()
    t = scene.quiet(40)
    # Nothing is known about the receive core, nor about the application core from 300 to 5600.
    slow(scene, t, 500, 6000, [],
         [(0, 300, "idle", "idle", *IDLE), (5600, 6500, "syscall", "read", TID, "server")],
         [(0, 600, "sleeping"), (600, 5600, "runnable"), (5600, 6500, "running")])  # fmt: skip
    result, _ = diagnose(scene)
    assert result.losses["count"].to_pylist() == [1]


def test_usual_messages_have_no_cause():
    scene = Scene()
    scene.quiet(200)
    _, causes = diagnose(scene, Selection(granularity_ns=50))
    assert causes == {}


def test_what_a_message_would_have_waited_anyway_is_no_part_of_a_cause():
    scene = Scene()
    t = scene.quiet(40)
    # The hog takes 5000, but the thread is already awake, which saves the usual 100 ns of sleep.
    slow(scene, t, 500, 5900, SOFTIRQ,
         [(0, 5500, "thread", "hog", 50, "hog"), (5500, 6500, "syscall", "read", TID, "server")],
         [(0, 5500, "runnable"), (5500, 6500, "running")])  # fmt: skip
    result, causes = diagnose(scene)
    row = result.coverage.to_pylist()[0]
    assert row["deviation_ns"] == 4900
    assert row["explained_ns"] == 4900
    assert causes["hog (A)"]["total_deviation_ns"] == 4900


def usually_behind_a_tenant(scene: Scene, n: int) -> int:
    """As ``quiet``, but another program has the core for 3000 ns before the thread gets it: the message is read at 4000."""
    t = 0
    for _ in range(n):
        slow(scene, t, 500, 4000, [SOFTIRQ[0], (800, 10_000, "idle", "idle", *IDLE)],
             [(0, 600, "idle", "idle", *IDLE), (600, 3600, "thread", "tenant", 60, "tenant"),
              (3600, 4500, "syscall", "read", TID, "server"), (4500, 10_000, "idle", "idle", *IDLE)],
             [(0, 600, "sleeping"), (600, 3600, "runnable"), (3600, 4500, "running"), (4500, 10_000, "sleeping")])  # fmt: skip
        t += 10_000
    return t


def test_a_cause_claims_no_more_than_its_message_was_late():
    # The example of Documentation/diagnosis.md, "When parts do not add up, by hand".
    scene = Scene()
    t = usually_behind_a_tenant(scene, 40)
    # Message 40: the tenant's 3000 as usual, then the hog's 5000; the thread is already awake, which saves 100 ns of sleep.
    slow(scene, t, 500, 8900, [SOFTIRQ[0], (800, 10_000, "idle", "idle", *IDLE)],
         [(0, 500, "idle", "idle", *IDLE), (500, 3500, "thread", "tenant", 60, "tenant"),
          (3500, 8500, "thread", "hog", 50, "hog"), (8500, 9400, "syscall", "read", TID, "server")],
         [(0, 8500, "runnable"), (8500, 9400, "running"), (9400, 10_000, "sleeping")])  # fmt: skip
    # Message 41: the hog's 5000, but the tenant does not run: 3000 less.
    slow(scene, t + 10_000, 500, 6000, SOFTIRQ,
         [(0, 600, "idle", "idle", *IDLE), (600, 5600, "thread", "hog", 50, "hog"),
          (5600, 6500, "syscall", "read", TID, "server")],
         [(0, 600, "sleeping"), (600, 5600, "runnable"), (5600, 6500, "running")])  # fmt: skip
    options = Selection(slow=Slice.parse("4500ns-"), baseline=Slice.parse("p0-90"), granularity_ns=50)
    result, causes = diagnose(scene, options)
    rows = result.coverage.to_pylist()
    assert [(r["deviation_ns"], r["explained_ns"], r["coverage"]) for r in rows] == [
        (4900, 4900, 1.0),
        (2000, 2000, 1.0),
    ]
    found = {
        r["message_id"]: (r["subject"], r["took_ns"], r["deviation_ns"]) for r in result.anomalies.to_pylist()
    }
    assert found == {40: ("hog", 4900, 4900), 41: ("hog", 5000, 2000)}
    assert causes["hog (A)"]["total_deviation_ns"] == 6900
    assert causes["hog (A)"]["share"] == 1.0


def test_a_message_that_was_not_late_has_no_cause():
    scene = Scene()
    t = usually_behind_a_tenant(scene, 40)
    slow(scene, t, 500, 4000, SOFTIRQ,
         [(0, 600, "idle", "idle", *IDLE), (600, 3600, "thread", "hog", 50, "hog"),
          (3600, 4500, "syscall", "read", TID, "server")],
         [(0, 600, "sleeping"), (600, 3600, "runnable"), (3600, 4500, "running")])  # fmt: skip
    options = Selection(slow=Slice.parse("id:40"), baseline=Slice.parse("p0-100"), granularity_ns=50)
    assert diagnose(scene, options)[1] == {}


def test_medians_of_either_or_add_up_to_the_median_latency():
    # As in Documentation/diagnosis.md. Five messages: 20 ns each of own work, and 50 of x, of both, or of y. Latencies 70, 70, 120, 70, 70: median 70, but the
    # medians of the parts are 20, 50 and 50. The sum is 50 too high; x and y have the same spread, so each loses half of that.
    x, y = (1, THREAD, 7), (1, HOL, 8)
    rows = [(i, (1, OWN, 6), 20) for i in range(5)]
    rows += [(i, x, 50) for i in (0, 1, 2)] + [(i, y, 50) for i in (2, 3, 4)]
    side, kind, subject = (np.array([label[i] for _, label, _ in rows]) for i in range(3))
    none = np.zeros(len(rows), np.int64)
    ns = np.array([n for *_, n in rows])
    met = Exposure(np.array([r for r, *_ in rows]), side, kind, subject, none, ns, none, none - 1, ns)
    medians = deviation.baseline_medians(met, 5)
    assert medians.to_dict() == {(1, OWN, 6): 20, x: 50, y: 50}
    assert deviation.adding_up(medians, met, 5).to_dict() == {(1, OWN, 6): 20, x: 25, y: 25}


def test_ns_are_exact_after_a_hundred_days_of_uptime_although_stamps_are_missing():
    scene = Scene()
    # Above 2**53 a float64 is exact only to 2 ns, so a column with a missing timestamp must not become float.
    t = scene.quiet(40, start=2**53 + 1)
    # The hog holds the receive core until after the hand-off at t + 5000, which is an odd number.
    slow(scene, t, 5000, 5500,
         [(0, 5400, "thread", "hog", 50, "hog"), (5400, 20_000, "idle", "idle", *IDLE)],
         [(0, 5100, "idle", "idle", *IDLE), (5100, 6000, "syscall", "read", TID, "server")],
         [(0, 5100, "sleeping"), (5100, 6000, "running")])  # fmt: skip
    scene.messages[3]["handoff_ns"] = None
    result, _ = diagnose(scene)
    row = result.anomalies.to_pylist()[0]
    assert (row["subject"], row["side"], row["start_ns"], row["end_ns"]) == ("hog", "R", t, t + 5000)


def test_a_baseline_that_was_thinned_is_counted():
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 5600, "thread", "hog", 50, "hog"), (5600, 6500, "syscall", "read", TID, "server")],
         [(0, 600, "sleeping"), (600, 5600, "runnable"), (5600, 6500, "running")])  # fmt: skip
    options = replace(SLOWEST, baseline=Slice.parse("p0-90"), max_baseline=10)
    result, causes = diagnose(scene, options)
    assert causes["hog (A)"]["total_deviation_ns"] == 5000
    counted = {row["cause"]: row["count"] for row in result.losses.to_pylist()}
    # p0-90 of 41 messages are 37.
    assert counted["baseline messages not analysed"] == 27


def test_long_softirqs_are_no_part_of_another_messages_processing_though_slow_messages_have_many():
    scene = Scene()
    t = 0
    for _ in range(40):  # as quiet, with a short interrupt while the thread runs
        slow(scene, t, 500, 1000, [SOFTIRQ[0], (800, 10_000, "idle", "idle", *IDLE)],
             [(0, 600, "idle", "idle", *IDLE), (600, 800, "syscall", "read", TID, "server"),
              (800, 850, "hardirq", "local_timer", TID, "server"), (850, 1500, "syscall", "read", TID, "server"),
              (1500, 10_000, "idle", "idle", *IDLE)],
             [(0, 600, "sleeping"), (600, 1500, "running"), (1500, 10_000, "sleeping")])  # fmt: skip
        t += 10_000
    # Message 40 is read after 1000 ns and worked on until 130 us; softirqs take 120 us of that. Message 41 waits for it.
    scene.messages += [message(40, t, t + 500, t + 1000), message(41, t + 2000, t + 2500, t + 130_500)]
    scene.cores(
        t,
        [(0, 3000, "softirq", "NET_RX", 7, "client"), (3000, 200_000, "idle", "idle", *IDLE)],
        [(0, 600, "idle", "idle", *IDLE), (600, 5000, "syscall", "read", TID, "server"),
         (5000, 65_000, "softirq", "NET_RX", TID, "server"), (65_000, 67_000, "thread", "server", TID, "server"),
         (67_000, 127_000, "softirq", "NET_RX", TID, "server"), (127_000, 129_000, "thread", "server", TID, "server"),
         (129_000, 131_000, "syscall", "read", TID, "server")],
    )  # fmt: skip
    scene.threads(t, [(0, 600, "sleeping"), (600, 131_000, "running")])
    _, causes = diagnose(scene)
    assert causes["Receive processing (A)"]["total_deviation_ns"] == 120_000
    assert causes.get("Head-of-line blocking (A)", {"total_deviation_ns": 0})["total_deviation_ns"] < 10_000


def test_who_had_the_last_core_of_a_thread_whose_state_was_lost_is_no_cause():
    result, causes = hog_on_application_core("unknown")
    assert "hog (A)" not in causes
    assert result.coverage["coverage"].to_pylist() == [0.0]
