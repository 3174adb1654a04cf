# SPDX-License-Identifier: GPL-2.0-only
"""How many messages were ahead of a message at each queue, on tables small enough to count by hand."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from machinery.made_up.scene import Scene
from machinery.made_up.tables import TID, message, state, syscall, table
from nsight_report import queuing
from nsight_report.anomalies import Recording
from nsight_report.queuing import queues
from nsight_report.queuing.depth import Served, ahead, once
from nsight_report.queuing.occurrences import find as occurrences
from nsight_report.tables.intervals import IntervalTable

KERNEL = "[kernel.kallsyms]"


def call(i: int, symbol: str, cpu: int, start: int, end: int, **over: object) -> dict[str, object]:
    """A kernel call at the top level of its core."""
    row = syscall(TID, start, end, symbol, cpu)
    return row | {"call_id": i, "kind": "function", "dso": KERNEL, "depth": 0} | over


def compared(roles: list[str]) -> pa.Table:
    return table(
        "compared",
        [
            {"message_id": i, "role": role, "latency_ns": 1000, "baseline_latency_ns": 1000, "noise_ns": 0}
            for i, role in enumerate(roles)
            if role
        ],
    )


def depths(
    scene: Scene, calls: list[dict[str, object]], roles: list[str]
) -> dict[tuple[str, int], dict[str, object]]:
    """Rows of ``queuing`` by queue and message."""
    messages, _, contexts, states = scene.tables()
    recorded = Recording(messages, table("calls", calls), contexts, states)
    found, _ = queuing.find(recorded, compared(roles))
    return {(r["queue"], r["message_id"]): r for r in found.to_pylist()}


def burst() -> Scene:
    """Three messages of three connections reach the NIC at 0, 100 and 200; the driver takes them from 1000 on.

    Each takes 100 ns in the driver's function (its arrival 20 in, the hand-off 80 in). The thread reads them one
    after the other: 100 ns for the read, 300 until the next.
    """
    scene = Scene()
    for i in range(3):
        arrival, read = 1020 + 100 * i, 1500 + 400 * i
        scene.messages.append(
            message(i, 100 * i, arrival + 60, read, arrival_ns=arrival, arrival_last_ns=arrival,
                    call_ns=read - 100, conn_id=i)
        )  # fmt: skip
    scene.states.append(state(0, 3000, "running"))
    scene.contexts += [
        {"cpu": c, "start_ns": 0, "end_ns": 3000, "kind": "thread", "symbol": "server", "pid": TID, "tid": TID,
         "comm": "server", "call_id": -1, "others": ""}
        for c in (0, 1)
    ]  # fmt: skip
    return scene


def burst_calls() -> list[dict[str, object]]:
    rows = [
        call(i, "__netif_receive_skb_core.constprop.0", 0, 1000 + 100 * i, 1100 + 100 * i) for i in range(3)
    ]
    # The system call continues for 10 ns after the timestamp of the read.
    rows += [call(3 + i, "sock_recvmsg", 1, 1410 + 400 * i, 1490 + 400 * i) for i in range(3)]
    rows.append(syscall(TID, 2700, 2900, "epoll_wait") | {"call_id": 6})
    return rows


def test_packets_served_while_a_message_waits_are_ahead_of_it():
    found = depths(burst(), burst_calls(), ["baseline", "baseline", "slow"])
    # The third came at 200 and arrived at 1220: before it, two packets of 100 ns were taken from the ring.
    assert [found["Driver", i]["depth"] for i in range(3)] == [0, 1, 2]
    last = found["Driver", 2]
    assert (last["function"], last["matched"], last["ahead_ns"]) == ("__netif_receive_skb_core", 1.0, 200)
    # The medians of 0 and 100, and of 0 and 1, are 50 and, rounded to even, 0.
    assert (last["baseline_ns"], last["deviation_ns"], last["baseline_depth"]) == (50, 150, 0)


def test_messages_of_one_packet_are_not_ahead_of_each_other_before_the_socket() -> None:
    """The first two came in one packet of one connection; the third, in a separate packet, waits for it."""
    scene = burst()
    scene.messages[1] |= {
        name: scene.messages[0][name] for name in ("arrival_ns", "arrival_last_ns", "handoff_ns", "conn_id")
    }
    found = depths(scene, [], ["slow", "slow", "baseline"])
    of = {key: (row["depth"], row["ahead_ns"]) for key, row in found.items()}
    # From 1020 to 1080 the core handles both.
    assert [of["Protocol", i] for i in range(2)] == [(0, 0), (0, 0)]
    assert [of["Driver", i] for i in range(3)] == [(0, 0), (0, 0), (2, 60)]
    assert of["Socket", 1][0] == 1


def test_messages_that_the_thread_reads_first_are_ahead_at_the_application():
    found = depths(burst(), burst_calls(), ["baseline", "baseline", "slow"])
    assert [found["App receive", i]["depth"] for i in range(3)] == [0, 1, 2]
    assert found["App receive", 2]["ahead_ns"] == 2 * 80
    # Of other connections: they are ahead at the thread, not at the socket. The thread worked on them from 1400 to 2200.
    assert [found["Thread", i]["depth"] for i in range(3)] == [0, 1, 2]
    assert [found["Socket", i]["depth"] for i in range(3)] == [0, 0, 0]
    assert found["Thread", 2]["ahead_ns"] == 800


def test_messages_of_the_same_connection_are_ahead_at_the_socket():
    scene = burst()
    for row in scene.messages:
        row["conn_id"] = 7
    found = depths(scene, burst_calls(), ["baseline", "baseline", "slow"])
    assert [found["Socket", i]["depth"] for i in range(3)] == [0, 1, 2]
    assert found["Socket", 2]["ahead_ns"] == 800
    assert [found["Thread", i]["depth"] for i in range(3)] == [0, 0, 0]


def test_a_message_that_was_read_before_but_is_still_worked_on_is_ahead():
    scene = burst()
    # The third comes when the second was already read (at 1900) and the thread works on it, until 2200.
    scene.messages[2] |= {"first_ns": 2000, "arrival_ns": 2020, "arrival_last_ns": 2020, "handoff_ns": 2080}
    found = depths(scene, burst_calls(), ["baseline", "baseline", "slow"])
    assert found["Thread", 2]["depth"] == 1
    assert found["Thread", 2]["ahead_ns"] == 2200 - 2080


def test_without_functions_messages_are_counted():
    calls = [c for c in burst_calls() if c["kind"] == "syscall"]
    calls += [syscall(TID, 1400 + 400 * i, 1500 + 400 * i, "recvmsg") | {"call_id": 10 + i} for i in range(3)]
    found = depths(burst(), calls, ["baseline", "baseline", "slow"])
    assert found["Driver", 2]["function"] == "messages"
    assert [found["Driver", i]["depth"] for i in range(3)] == [0, 1, 2]
    # From each arrival to its hand-off, 60 ns; the second's tile ends where the third's begins.
    assert found["Driver", 2]["ahead_ns"] == 120
    assert (found["App receive", 2]["function"], found["App receive", 2]["depth"]) == ("recvmsg", 2)


def test_a_function_that_is_not_called_once_for_each_message_stands_for_no_queue():
    rows = [c for c in burst_calls() if c["symbol"] != "sock_recvmsg"]
    rows.append(call(9, "sock_recvmsg", 1, 1000, 2600))
    rows += [
        call(10 + i, "sock_recvmsg", 1, 1410 + 400 * i, 1490 + 400 * i, depth=1, parent_id=9)
        for i in range(3)
    ]
    found = depths(burst(), rows, ["baseline", "baseline", "slow"])
    # One call for all three matches each of them once, but is ahead of none; the calls within it are part of it.
    assert [found["App receive", i]["depth"] for i in range(3)] == [0, 0, 0]
    twice = burst_calls() + [
        call(20 + i, "sock_recvmsg", 1, 1492 + 400 * i, 1498 + 400 * i) for i in range(3)
    ]
    assert ("App receive", 0) not in depths(burst(), twice, ["baseline", "baseline", "slow"])


def test_the_request_function_is_the_longest_that_is_called_once_for_each_message():
    rows = burst_calls()
    for i in range(3):
        read = 1500 + 400 * i
        user = {"dso": "/usr/bin/server"}
        rows.append(call(30 + 3 * i, "[unknown]", 1, read + 10, read + 210, start_addr=0x1000, **user))
        rows.append(call(31 + 3 * i, "parse", 1, read + 20, read + 60, depth=1, parent_id=30 + 3 * i, **user))
        rows += [
            call(
                60 + 3 * i + j,
                "[unknown]",
                1,
                read + 100 + 20 * j,
                read + 110 + 20 * j,
                start_addr=0x2000,
                **user,
            )
            for j in range(3)
        ]
    found = depths(burst(), rows, ["baseline", "baseline", "slow"])
    assert found["App request", 2]["function"] == "[unknown] 0x1000"
    assert found["App request", 2]["depth"] == 2
    # The first ends at 1710 (begun at 1510), the second at 2110, before the read at 2200.
    assert found["App request", 2]["ahead_ns"] == 400


def test_packets_of_a_message_that_is_sent_are_not_ahead_of_it():
    scene = burst()
    scene.messages = [
        message(0, 0, 0, 900, direction="tx", first_ns=100, call_ns=100, driver_ns=800, app_ns=900, n_arrivals=3,
                handoff_ns=None, arrival_ns=None, arrival_last_ns=None, nic_ns=None)
    ]  # fmt: skip
    # A packet of another message at 150, its own three at 300, 500 and 780; the driver's timestamp is in the last one.
    rows = [call(i, "dev_hard_start_xmit", 0, t, t + 50) for i, t in enumerate((150, 300, 500, 780))]
    found = depths(scene, rows, ["slow"])
    assert (found["Transmit", 0]["depth"], found["Transmit", 0]["function"]) == (1, "dev_hard_start_xmit")


def test_sent_messages_without_functions_are_in_no_queue_that_is_seen():
    scene = burst()
    scene.messages += [
        message(3 + i, 0, 0, 900, direction="tx", first_ns=100 + i, last_ns=800 + i, call_ns=100 + i, driver_ns=800 + i, app_ns=900 + i,
                handoff_ns=None, arrival_ns=None, arrival_last_ns=None, nic_ns=None)
        for i in range(2)
    ]  # fmt: skip
    assert depths(scene, [], ["", "", "", "baseline", "slow"]) == {}


def test_what_began_before_counts_in_part():
    a = np.array
    served = Served.build(a([1, 1, 2]), a([0, 10, 0]), a([8, 18, 100]))
    # Entered at 5 and left at 20: the first has 3 ns left, the second all of its 8; nothing of core 2.
    depth, ns = ahead(served, a([1]), a([5]), a([20]), True)
    assert (depth.tolist(), ns.tolist()) == ([2], [11])
    # Only what begins in the time: the second, with 4 ns before 14.
    depth, ns = ahead(served, a([1]), a([5]), a([14]), False)
    assert (depth.tolist(), ns.tolist()) == ([1], [4])
    assert once(served, a([1, 1]), a([5, 9]), a([5, 9])) == 0.5


def test_calls_are_found_in_a_table_of_several_batches():
    rows = table("calls", [call(i, "ip_rcv" if i % 3 else "other", 0, 10 * i, 10 * i + 5) for i in range(9)])
    pieces = pa.concat_tables([rows.slice(0, 4), rows.slice(4)])
    found = occurrences(pieces, lambda s: s == "ip_rcv", lambda name: name[2] == KERNEL)
    assert found.start.tolist() == [10, 20, 40, 50, 70, 80]
    assert found.names == [("function", "ip_rcv", KERNEL)]


def test_a_line_of_the_queues_file_that_cannot_be_used_is_named(tmp_path):
    path = tmp_path / "queues.csv"
    path.write_text("# comment\nDriver,ip_rcv,kernel\nNowhere,x,kernel\n")
    with pytest.raises(queues.BadInput, match=r"queues\.csv:3"):
        queues.read(path)


def test_every_queue_has_functions_and_a_place_in_the_order():
    named = {c.queue for c in queues.read()}
    assert named == {q.name for q in queues.QUEUES}
    assert named | {queues.SOCKET[0], queues.THREAD[0]} == set(queues.ORDER)


@pytest.mark.parametrize("has_functions", [True, False])
def test_states_of_threads_are_read_once_for_all_queues(has_functions: bool) -> None:
    """A recording has millions of them; without functions, only queues that a system call represents are looked at."""
    messages, _, contexts, states = burst().tables()
    stored = IntervalTable(states, "tid")
    calls = [row for row in burst_calls() if has_functions or row["kind"] == "syscall"]
    if not has_functions:
        calls += [syscall(TID, 1400 + 400 * i, 1500 + 400 * i, "recvmsg") for i in range(3)]
    recorded = Recording(messages, table("calls", calls), contexts, stored)
    found, _ = queuing.find(recorded, compared(["baseline", "baseline", "slow"]))
    rows = {(r["queue"], r["message_id"]): r["depth"] for r in found.to_pylist()}
    assert [rows["App receive", i] for i in range(3)] == [0, 1, 2]
    # Once for what threads entered, and once for the cores on which they were.
    assert stored.n_read <= 2 * stored.num_rows
