# SPDX-License-Identifier: GPL-2.0-only
"""Each injected cause is named, with its ns; nothing injected, nothing named."""

from dataclasses import replace
from types import SimpleNamespace

from anomalies.build import TID, Scene, context, message, syscall
from nsight_report.anomalies import Options, Recorded, Slice, find
from nsight_report.attribution import attribute

SLOWEST = Options(target=Slice.parse("1500ns-"), granularity_ns=50)


def diagnose(scene: Scene, options: Options = SLOWEST):
    tables = scene.tables()
    compared, found, losses = find(Recorded(*tables), options)
    anomalies, coverage, causes, _ = attribute(found, compared, options)
    result = SimpleNamespace(anomalies=anomalies, coverage=coverage, losses=losses)
    return result, {r["cause"]: r for r in causes.to_pylist()}


def slow(scene: Scene, t: int, handoff: int, read: int, core0, core1, threads) -> None:
    scene.messages.append(message(len(scene.messages), t, t + handoff, t + read))
    scene.cores(t, core0, core1)
    scene.threads(t, threads)


SOFTIRQ = [(0, 800, "softirq", "NET_RX", 7, "client"), (800, 20_000, "idle", "idle", 0, "swapper")]
IDLE = (0, "swapper")


def test_hog_on_application_core_gets_exactly_its_time():
    scene = Scene()
    t = scene.quiet(40)
    # Woken at 600 but the hog runs until 5600: 5000 ns more than usual.
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 5600, "thread", "hog", 50, "hog"), (5600, 6500, "syscall", "read", TID, "server"),
          (6500, 20_000, "idle", "idle", *IDLE)],
         [(0, 600, "sleeping"), (600, 5600, "runnable"), (5600, 6500, "running"), (6500, 20_000, "sleeping")])  # fmt: skip
    result, causes = diagnose(scene)
    assert causes["hog (A)"]["total_deviation_ns"] == 5000
    assert causes["hog (A)"]["n_messages"] == 1
    assert list(causes) == ["hog (A)"]
    assert result.coverage["coverage"].to_pylist() == [1.0]


def test_tick_inside_the_hog_counts_as_the_hog():
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 2000, "thread", "hog", 50, "hog"), (2000, 2300, "hardirq", "local_timer", 50, "hog"),
          (2300, 5600, "thread", "hog", 50, "hog"), (5600, 6500, "syscall", "read", TID, "server")],
         [(0, 600, "sleeping"), (600, 5600, "runnable"), (5600, 6500, "running")])  # fmt: skip
    _, causes = diagnose(scene)
    assert {c: r["total_deviation_ns"] for c, r in causes.items()} == {"hog (A)": 5000}


def test_a_hog_that_runs_while_the_thread_is_stopped_is_not_blamed():
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 9000, SOFTIRQ,
         [(0, 8600, "thread", "hog", 50, "hog"), (8600, 9500, "syscall", "read", TID, "server")],
         [(0, 8600, "stopped"), (8600, 9500, "running")])  # fmt: skip
    _, causes = diagnose(scene)
    # 8100 ns stopped; the 100 ns asleep in epoll_wait that are usual did not happen, so 8000 remain.
    assert {c: r["total_deviation_ns"] for c, r in causes.items()} == {"Application stopped (A)": 8000}


def test_ready_message_behind_another_of_its_thread_is_head_of_line_blocking():
    scene = Scene()
    t = scene.quiet(40)
    # Two messages handed off together; the thread works on the first for 3000 ns before it reads the second.
    scene.messages.append(message(40, t, t + 500, t + 1000))
    scene.messages.append(message(41, t + 1, t + 501, t + 4000))
    scene.cores(t, SOFTIRQ, [(0, 600, "idle", "idle", *IDLE), (600, 4500, "thread", "server", TID, "server")])
    scene.threads(t, [(0, 600, "sleeping"), (600, 4500, "running")])
    result, causes = diagnose(scene)
    row = next(r for r in result.anomalies.to_pylist() if r["anomaly"] == "hol")
    assert row["message_id"] == 41
    assert row["other_message_id"] == 40
    # Work on message 40: from its read call (800) to the read call of 41 (3800).
    assert row["observed_ns"] == 3000
    assert next(iter(causes)) == "Head-of-line blocking (A)"


def test_a_thread_that_left_its_core_where_nothing_was_decoded_is_done_with_its_message():
    scene = Scene()
    t = scene.quiet(40)
    # Message 40 is read at 1000; the wait for the next one is in a gap, and so is no system call of the thread.
    scene.messages.append(message(40, t, t + 500, t + 1000))
    scene.cores(
        t,
        SOFTIRQ,
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
    # From its wake-up at 600 to its read call at 5800 it did not work on message 40.
    assert [(r["kind"], r["subject"]) for r in result.anomalies.to_pylist()] == [("own", "user code")]


def test_a_thread_that_waited_when_its_message_came_was_woken_by_it():
    # Beside Intel PT nothing tells when a thread was woken: from the hand-off on it waits for the core that it runs on.
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 5600, "thread", "hog", 50, "hog"), (5600, 6500, "syscall", "read", TID, "server")],
         [(0, 5600, "waiting"), (5600, 6500, "running")])  # fmt: skip
    scene.states[-2]["cpu"] = 3  # where it ran before
    _, causes = diagnose(scene)
    # Of the 100 ns from the hand-off to the wake-up, which are usual, the hog has as many.
    assert {c: r["total_deviation_ns"] for c, r in causes.items()} == {"hog (A)": 5000}


def test_what_a_thread_waits_for_in_a_gap_is_not_told_by_an_older_system_call():
    scene = Scene()
    t = scene.quiet(40)
    # A send, then a gap in which the thread began to wait for events: not in the send, which is over.
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
    scene.messages[-1]["retransmitted"] = True
    _, causes = diagnose(scene)
    # It arrives at 8400; others take 400 ns from the NIC to there, in which their core is in softirq.
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


def test_waiting_in_the_queue_of_another_core_blames_what_ran_there():
    scene = Scene()
    t = scene.quiet(40)
    # Queued on core 0 behind the hog, then moved to core 1, which was idle all the while.
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
    assert result.losses["cause"].to_pylist() == ["target messages with time nothing was recorded for"]


def test_usual_messages_have_no_cause():
    scene = Scene()
    scene.quiet(200)
    _, causes = diagnose(scene, Options(granularity_ns=50))
    assert causes == {}


def test_causes_never_exceed_the_deviation_of_their_message():
    scene = Scene()
    t = scene.quiet(40)
    # The hog takes 5000, but the thread is awake already and saves the usual 100 ns of sleep.
    slow(scene, t, 500, 5900, SOFTIRQ,
         [(0, 5500, "thread", "hog", 50, "hog"), (5500, 6500, "syscall", "read", TID, "server")],
         [(0, 5500, "runnable"), (5500, 6500, "running")])  # fmt: skip
    result, causes = diagnose(scene)
    row = result.coverage.to_pylist()[0]
    assert row["deviation_ns"] == 4900
    assert row["explained_ns"] == 4900
    assert causes["hog (A)"]["total_deviation_ns"] == 4900


def test_ns_are_exact_after_a_hundred_days_of_uptime_although_stamps_are_missing():
    scene = Scene()
    # Beyond 2**53 ns a float moves by two; a column with a missing stamp must not become one.
    t = scene.quiet(40, start=2**53 + 1)
    # The hog holds the receive core until after the hand-off at t + 5000, which is odd.
    slow(scene, t, 5000, 5500,
         [(0, 5400, "thread", "hog", 50, "hog"), (5400, 20_000, "idle", "idle", *IDLE)],
         [(0, 5100, "idle", "idle", *IDLE), (5100, 6000, "syscall", "read", TID, "server")],
         [(0, 5100, "sleeping"), (5100, 6000, "running")])  # fmt: skip
    scene.messages[3]["handoff_ns"] = None
    result, _ = diagnose(scene)
    row = result.anomalies.to_pylist()[0]
    assert (row["subject"], row["side"], row["start_ns"], row["end_ns"]) == ("hog", "R", t, t + 5000)


def test_a_reference_that_was_thinned_is_counted():
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 5600, "thread", "hog", 50, "hog"), (5600, 6500, "syscall", "read", TID, "server")],
         [(0, 600, "sleeping"), (600, 5600, "runnable"), (5600, 6500, "running")])  # fmt: skip
    options = replace(SLOWEST, reference=Slice.parse("p0-90"), max_reference=10)
    result, causes = diagnose(scene, options)
    assert causes["hog (A)"]["total_deviation_ns"] == 5000
    counted = {row["cause"]: row["count"] for row in result.losses.to_pylist()}
    # p0-90 of 41 messages are 37.
    assert counted["reference messages not looked at"] == 27
