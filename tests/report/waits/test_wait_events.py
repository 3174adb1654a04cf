# SPDX-License-Identifier: GPL-2.0-only
"""Threads that wait for events: woken for another request, or by a thread that hands on what came, they wait for no lock and no client."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nsight_report
import numpy as np
import pytest
from evaluation.requests.client import END_S, RECORD
from machinery.made_up.tables import table
from machinery.testbed import ports
from nsight_record import clock, collect
from nsight_report.losses import Ledger
from nsight_report.tables.data_frames import cause_names
from nsight_report.tables.messages import Messages
from nsight_report.timeline.recording import Waits
from nsight_report.waits import Activity
from nsight_report.waits.reasons import Explainer, is_explained
from waits_by_hand import activity, chains, intervals, on, ran, told, waited

from conftest import skip_or_fail

Row = dict[str, Any]
TIMER = {"context": "hardirq", "symbol": "local_timer"}
OTHERS = "events: waited for events, while other requests were served"


def of_one_process(made: Activity) -> Activity:
    rows = [{**row, "pid": 10, "comm": "server"} for row in made.thread_states.to_pylist()]
    return Activity(table("thread_states", rows), made.contexts, made.waits)


def parked(place: str, pid: int = 10) -> Activity:
    """Thread 10 waits in futex until 20 wakes it, which waited in ``place`` for a timer from 150 to 480."""
    states = [ran(10, 0, 100), ran(20, 100, 150, 1), ran(20, 480, 600, 1)]
    contexts = [
        on(1, 100, 150, "thread", "worker", 20),
        on(1, 150, 480, "idle"),
        on(1, 480, 600, "thread", "worker", 20),
    ]
    made = activity(
        states, contexts, [waited(10, 100, 500, "futex", by=20), waited(20, 150, 480, place, **TIMER)]
    )
    rows = [{**row, "pid": 10 if row["tid"] == 10 else pid} for row in made.thread_states.to_pylist()]
    return Activity(table("thread_states", rows), made.contexts, made.waits)


def test_a_thread_that_comes_from_epoll_hands_over_and_releases_no_lock() -> None:
    asked = intervals((10, 100, 500))
    assert told(chains(asked, parked("epoll_wait"))[0])[0] == (0, 10, 100, 500, "hand-over", "futex")
    # In these, a thread that holds a lock may wait; and what another process does says nothing about this one's locks.
    for of in (parked("clock_nanosleep"), parked("poll"), parked("epoll_wait", pid=20)):
        assert told(chains(asked, of)[0])[0] == (0, 10, 100, 500, "lock", "futex")


def test_parked_threads_hand_over_to_each_other() -> None:
    """10 is woken by 20, which is woken by 30, which waits in epoll for a timer."""
    states = [ran(tid, 0, 100, cpu) for cpu, tid in enumerate((10, 20, 30))]
    waits = [
        waited(10, 100, 500, "futex", by=20),
        waited(20, 100, 490, "futex", by=30),
        waited(30, 100, 480, "epoll_pwait", **TIMER),
    ]
    of = of_one_process(activity(states, [on(1, 0, 600, "idle")], waits))
    found = told(chains(intervals((10, 100, 500)), of)[0])
    assert {(0, "hand-over", "futex"), (1, "hand-over", "futex"), (2, "timer", "epoll_pwait")} <= {
        (depth, kind, name) for depth, _, _, _, kind, name in found
    }


def served(last: Row, *other: tuple[int, int], sent: int = 600, reply: int = 0) -> list[str]:
    """Request 7 of thread 10 is read at 90 and answered at ``sent``; the thread waits twice: for a client's packet, and for ``last``.

    ``other``: (read, answered) of other requests of the thread; ``reply``: when it read a reply to a request of its own.
    """
    first = waited(10, 100, 300, "epoll_wait", by=20, context="softirq", symbol="NET_RX", from_thread=True)
    # The client is thread 20 of another process.
    of = activity(
        [ran(10, 0, 100), ran(10, 300, 320), ran(10, 500, 700)], [on(0, 0, 700, "idle")], [first, last]
    )
    requests = [(7, 90, sent), *((8 + i, *one) for i, one in enumerate(other))]
    rows = [
        {"request_id": i, "role": "server", "tid": 10, "reply_tid": 10, "first_ns": read - 5, "read_ns": read, "last_send_ns": send,
         "last_ns": send + 5}
        for i, read, send in requests
    ]  # fmt: skip
    if reply:
        # Whose it was is not known.
        rows.append({
            "request_id": 20, "role": "client", "tid": 10, "reply_tid": 10, "first_ns": 95, "read_ns": reply, "last_ns": reply,
            "parent_request_id": -1,
        })  # fmt: skip
    asked = Waits(
        np.array([10, 10]), np.array([100, 320]), np.array([300, 500]), np.array([7, 7]), np.zeros(2, bool)
    )
    r = Explainer(of, Messages(table("requests", rows), "requests"), Ledger("waits"))(asked)
    return [r.texts[t] for t in r.text.tolist()]


EXPIRES = waited(10, 320, 500, "epoll_wait", **TIMER)
SLEPT = "sleep: waited in epoll_wait until a timer expired"
BY_CLIENT = "process: waited in epoll_wait for worker (socket), which is not in the recording"


def test_a_wait_that_ended_for_another_request_has_the_reason_of_the_last_one() -> None:
    assert served(EXPIRES, (310, 315)) == [SLEPT, SLEPT]
    # It read nothing, so the event may have been for this request.
    assert served(EXPIRES) == [BY_CLIENT, SLEPT]
    # What it read after its next wait, or after the reply, is no sign of what woke it.
    assert served(EXPIRES, (650, 660)) == [BY_CLIENT, SLEPT]


def test_if_the_last_event_was_for_another_request_the_reason_is_not_known() -> None:
    packet = waited(10, 320, 500, "epoll_wait", by=20, context="softirq", symbol="NET_RX", from_thread=True)
    assert served(packet, (310, 315), (510, 520)) == [OTHERS, OTHERS]
    assert not is_explained(OTHERS)
    # The reply may be what this one waited for.
    assert served(packet, (310, 315), (510, 520), reply=530) == [BY_CLIENT, BY_CLIENT]
    # The request was answered before the other one was read.
    assert served(packet, (310, 315), (610, 620)) == [BY_CLIENT, BY_CLIENT]


GO = """
package main

import ("fmt"; "net"; "os"; "sync"; "time")

// Every fortieth request sleeps 10 ms, with the mutex; every request takes it.
var mutex sync.Mutex
var n int

func serve(c net.Conn) {
	request, reply := make([]byte, 32), make([]byte, 64)
	reply[3] = 64
	for {
		if k, err := c.Read(request); err != nil || k == 0 { return }
		mutex.Lock()
		n++
		if n % 40 == 0 { time.Sleep(10 * time.Millisecond) }
		mutex.Unlock()
		c.Write(reply)
	}
}

func main() {
	l, err := net.Listen("tcp4", "127.0.0.1:" + os.Args[1])
	if err != nil { panic(err) }
	fmt.Println("ready")
	for { c, _ := l.Accept(); go serve(c) }
}
"""


@pytest.mark.live
def test_a_goroutine_that_sleeps_is_no_lock_and_no_other_process(tmp_path: Path) -> None:
    """Goroutines wait for a mutex whose holder sleeps: the kernel sees a timer of epoll, and parked threads."""
    if os.geteuid():
        skip_or_fail("root", "recording needs root")
    if not collect.find() or not clock.find():
        skip_or_fail("bpf", "nsight-collect or nsight-clock is not built")
    go = shutil.which("go")
    if not go:
        skip_or_fail("testbed", "go is not installed")
    (tmp_path / "main.go").write_text(GO)
    made = [go, "build", "-o", tmp_path / "gosrv", tmp_path / "main.go"]
    subprocess.run(
        made, check=True, capture_output=True, timeout=END_S, env={**os.environ, "GOFLAGS": "-mod=mod"}
    )
    serving = Path(sys.modules["evaluation.requests.client"].__file__ or "").with_name("serving.py")
    with ports.reserved() as (port,):
        server = subprocess.Popen([tmp_path / "gosrv", str(port)], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None and server.stdout.readline() == "ready\n"
            load = [sys.executable, str(serving), "load", str(port), "2", "plain"]
            done = subprocess.run(
                [RECORD, "-q", "-o", tmp_path / "go.nsight", "--port", str(port), "--", *load],
                capture_output=True, text=True, timeout=END_S,
            )  # fmt: skip
        finally:
            server.kill()
            server.wait(END_S)
    assert done.returncode == 0, done.stderr
    c = nsight_report.open(tmp_path / "go.nsight", direction="request", slow="5ms-")
    anomalies = c.anomalies.assign(cause=lambda of: cause_names(of))
    sums = anomalies.groupby("cause")["deviation_ns"].sum() / anomalies["deviation_ns"].sum()
    assert len(c.coverage) >= 20
    assert sums.get("Application sleeps (A)", 0) > 0.5, sums
    assert sums.get("Lock wait (A)", 0) < 0.2, sums
    assert sums.get("Other processes (A)", 0) < 0.1, sums
