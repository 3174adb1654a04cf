# SPDX-License-Identifier: GPL-2.0-only
"""Head-of-line blocking compared with the fastest messages: the example of Documentation/diagnosis.md, and its edge cases."""

from __future__ import annotations

import pytest
from machinery.made_up.scene import Scene
from machinery.made_up.tables import TID, message, table
from nsight_report import queuing
from nsight_report.anomalies import Recording, Selection, Slice, find
from nsight_report.attribution import attribute

KERNEL = "[kernel.kallsyms]"
OPTIONS = Selection(slow=Slice.parse("1500ns-"), granularity_ns=50)
USUAL = 40


class Server(Scene):
    """A thread that reads for 200 ns (tcp_recvmsg), then parses for ``parse`` ns and sends for ``send`` ns (tcp_sendmsg)."""

    def one(self, t: int, parse: int, send: int, **over: object) -> int:
        """A message whose read call is entered at ``t``; returns when the thread is done with it."""
        row = {"nic": t - 800, "handoff": t - 100} | over
        self.messages.append(
            message(len(self.messages), int(str(row["nic"])), int(str(row["handoff"])), t + 200, call_ns=t,
                    conn_id=len(self.messages))
        )  # fmt: skip
        done = t + 200 + parse + send
        if over:
            self.states[-1]["end_ns"] = self.contexts[-1]["end_ns"] = done
        else:
            self.cores(t, [], [(0, done - t, "thread", "server", TID, "server")])
            self.threads(t, [(0, done - t, "running")])
        for symbol, dso, start, end in (
            ("tcp_recvmsg", KERNEL, t, t + 200),
            ("parse", "/usr/bin/server", t + 200, t + 200 + parse),
            ("tcp_sendmsg", KERNEL, t + 200 + parse, done),
        ):
            self.add("function", symbol, dso, start, end)
        return done

    def wait(self, t: int) -> None:
        """The thread goes to epoll_wait at ``t``."""
        self.add("syscall", "epoll_wait", "", t, t + 10)

    def add(self, kind: str, symbol: str, dso: str, start: int, end: int) -> None:
        self.calls.append(
            {"call_id": len(self.calls), "parent_id": -1, "depth": 0, "kind": kind, "symbol": symbol, "dso": dso,
             "cpu": 1, "pid": TID, "tid": TID, "start_ns": start, "dur_ns": end - start, "self_ns": end - start,
             "start_known": "measured", "end_known": "measured", "arg": 0, "start_addr": 0, "before": "", "gap_cause": ""}
        )  # fmt: skip


def example() -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """``USUAL`` messages that wait for nothing (read 200, parse 500, send 300); then two that a third waits for; the second sends slowly.

    Returns the rows of ``hol`` and of ``anomalies``.
    """
    scene = Server()
    for n in range(USUAL):
        t = 10_000 * n + 1000
        scene.wait(scene.one(t, 500, 300))
    t = 10_000 * USUAL + 1000
    # All three are ready at t - 100; the thread works on the first two until t + 2400.
    done = scene.one(t, 500, 300)
    done = scene.one(done, 500, 700, nic=t - 800, handoff=t - 100)
    assert done == t + 2400
    scene.wait(scene.one(done, 500, 300, nic=t - 800, handoff=t - 100))
    scene.messages[-2:] = [dict(m, handoff_ns=t - 100) for m in scene.messages[-2:]]
    tables = scene.tables()
    options = Selection(slow=Slice.parse("3us-"), granularity_ns=50)
    compared, found, *_ = find(Recording(*tables), options)
    anomalies, *_ = attribute(found, compared, options)
    hol = queuing.break_down(Recording(*tables), anomalies, options)
    return hol.to_pylist(), anomalies.to_pylist()


def test_blocking_is_broken_down_by_what_the_fastest_messages_do():
    hol, anomalies = example()
    waited = [r for r in anomalies if r["anomaly"] == "hol"]
    assert [(r["message_id"], r["observed_ns"], r["deviation_ns"]) for r in waited] == [(42, 2400, 2400)]
    rows = {r["category"]: r for r in hol}
    # Two were ahead: 2 x 200 of reading and 300 + 700 of sending, both TCP; 2 x 500 of parsing.
    assert {c: r["observed_ns"] for c, r in rows.items()} == {"TCP": 1400, "Application processing": 1000}
    # The fastest take 200 + 300, and 500: 1000 and 1000 for two of them. Sending took 400 more.
    assert {c: r["fastest_ns"] for c, r in rows.items()} == {"TCP": 1000, "Application processing": 1000}
    assert {c: r["beyond_ns"] for c, r in rows.items()} == {"TCP": 400, "Application processing": 0}
    assert {r["n_ahead"] for r in hol} == {2}
    assert all(r["in_fastest"] for r in hol)


def test_the_parts_add_up_to_the_blocking_of_the_message():
    hol, anomalies = example()
    claimed = sum(r["deviation_ns"] for r in anomalies if r["anomaly"] == "hol")
    assert sum(r["deviation_ns"] for r in hol) == claimed == 2400
    assert [r["deviation_ns"] for r in hol] == [1400, 1000]


class Faulting(Server):
    """The same; while ``faults``, the middle of parsing is a page fault, or what ``within`` has, caller first."""

    faults = False
    within: tuple[tuple[str, str], ...] = (("exception", "page_fault"), ("function", "handle_mm_fault"))

    def add(self, kind: str, symbol: str, dso: str, start: int, end: int) -> None:
        super().add(kind, symbol, dso, start, end)
        if not self.faults or symbol != "parse":
            return
        for depth, (inner, name) in enumerate(self.within, 1):
            caller = self.calls[-1]["call_id"]
            super().add(inner, name, KERNEL, start + 100, end - 100)
            self.calls[-1] |= {"parent_id": caller, "depth": depth}


def of_syscall(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple(("function", name) for name in (*names, "handle_mm_fault"))


@pytest.mark.parametrize(
    ("within", "callers"),
    [
        (Faulting.within, "parse > page_fault"),
        (of_syscall("entry_SYSCALL_64", "do_syscall_64", "x64_sys_call", "__x64_sys_mprotect"), "parse > __x64_sys_mprotect"),
        (of_syscall("do_syscall_64", "do_mprotect_pkey", "mprotect_fixup"), "parse > do_mprotect_pkey"),
        (of_syscall("do_syscall_64"), "parse"),
    ],
)  # fmt: skip
def test_a_function_of_the_messages_ahead_is_told_with_its_callers(
    within: tuple[tuple[str, str], ...], callers: str
) -> None:
    """The callers end at the entry into the kernel: who called what in there is known by the function itself.

    Functions of every system call say nothing about this one.
    """
    scene = Faulting()
    scene.within = within
    for n in range(USUAL):
        t = 10_000 * n + 1000
        scene.wait(scene.one(t, 500, 300))
    t = 10_000 * USUAL + 1000
    scene.faults = True
    done = scene.one(t, 2200, 300)
    scene.faults = False
    scene.wait(scene.one(done, 500, 300, nic=t - 800, handoff=t - 100))
    tables = scene.tables()
    options = Selection(slow=Slice.parse("id:41"), granularity_ns=50)
    compared, found, *_ = find(Recording(*tables), options)
    anomalies, *_ = attribute(found, compared, options)
    hol = queuing.break_down(Recording(*tables), anomalies, options).to_pylist()
    told = {r["subject"]: (r["observed_ns"], r["callers"]) for r in hol}
    assert told["handle_mm_fault"] == (2000, callers)
    assert told["parse"] == (200, "")
    assert told["tcp_sendmsg"] == (500, "")  # with tcp_recvmsg, which is shorter


def test_without_blocking_there_is_nothing_to_break_down():
    scene = Scene()
    scene.quiet(50)
    recorded = Recording(*scene.tables())
    compared, found, *_ = find(Recording(*recorded), OPTIONS_ALL)
    anomalies, *_ = attribute(found, compared, OPTIONS_ALL)
    assert queuing.break_down(recorded, anomalies, OPTIONS_ALL).num_rows == 0


OPTIONS_ALL = Selection(granularity_ns=50)


def test_in_the_summary_categories_are_named_after_the_blocking():
    import pandas as pd
    from nsight_report.summary import blocking

    hol, _ = example()
    frame = blocking(pd.DataFrame(hol))
    assert list(frame["cause"]) == [
        "Head-of-line blocking: TCP (A)",
        "Head-of-line blocking: Application processing (A)",
    ]
    assert list(frame["subject"]) == ["tcp_sendmsg", "parse"]
    assert list(frame["callers"]) == ["", ""]
    assert list(frame["beyond_ns"]) == [400, 0]
    assert [round(s, 3) for s in frame["share"]] == [0.583, 0.417]


def test_the_table_is_that_of_the_schema():
    hol, _ = example()
    assert table("hol", hol).num_rows == 2


def test_sleep_of_the_thread_behind_a_message_is_no_part_of_that_message():
    """The thread works 1000 ns on the first, sleeps for 4000, and only then reads the one that waits."""
    scene = Server()
    for n in range(USUAL):
        t = 10_000 * n + 1000
        scene.wait(scene.one(t, 500, 300))
    t = 10_000 * USUAL + 1000
    assert scene.one(t, 500, 300) == t + 1000
    scene.cores(t, [], [(1000, 5000, "idle", "idle", 0, "swapper")])
    scene.threads(t, [(1000, 5000, "sleeping")])
    scene.wait(scene.one(t + 5000, 500, 300))
    late = scene.messages[-1]
    scene.messages[-1] = message(
        late["message_id"], t - 800, t - 100, t + 5200, call_ns=t + 5000, conn_id=late["conn_id"]
    )
    tables = scene.tables()
    options = Selection(slow=Slice.parse("3us-"), granularity_ns=50)
    compared, found, *_ = find(Recording(*tables), options)
    anomalies, *_ = attribute(found, compared, options)
    hol = queuing.break_down(Recording(*tables), anomalies, options).to_pylist()
    assert {r["category"]: (r["observed_ns"], r["fastest_ns"]) for r in hol} == {
        "TCP": (500, 500),
        "Application processing": (500, 500),
    }
