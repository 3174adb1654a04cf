# SPDX-License-Identifier: GPL-2.0-only
"""Functions within the contexts of a message: their paths, their times, and which of the nested ones are reported."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from machinery.made_up.scene import Scene
from machinery.made_up.tables import TID, message, table
from nsight_report.anomalies import Recording, Selection, Slice, find
from nsight_report.anomalies.paths import Calls, CallTree
from nsight_report.attribution import attribute
from nsight_report.timeline.frequency import CoreFrequencies

SLOWEST = Selection(slow=Slice.parse("1500ns-"), granularity_ns=50)
USUAL = 40


class Stack(Scene):
    """Scenes whose ``read`` of the message is made of functions.

    The system call starts at t+600; ``read`` names the functions that it calls and how long they take.
    """

    def call(self, parent: int, kind: str, symbol: str, start: int, dur: int, **over: object) -> int:
        """Add a call on core 1; returns its number."""
        depth = int(str(self.calls[parent]["depth"])) + 1 if parent >= 0 else 0
        row: dict[str, object] = {
            "call_id": len(self.calls), "parent_id": parent, "depth": depth, "kind": kind, "symbol": symbol,
            "dso": "", "cpu": 1, "pid": TID, "tid": TID, "start_ns": start, "dur_ns": dur, "self_ns": dur,
            "start_known": "measured", "end_known": "measured", "arg": 0,
            "start_addr": 0, "before": "", "gap_cause": "",
        }  # fmt: skip
        self.calls.append(row | over)
        return len(self.calls) - 1

    def read(self, t: int, tree: list[tuple], dur: int) -> None:
        """A message whose thread is in ``read`` from t + 600 on for ``dur`` ns; ``tree``: (function, ns, tree)."""
        self.messages.append(message(len(self.messages), t, t + 500, t + 600 + dur, call_ns=t + 600))
        self.cores(
            t,
            [(0, 800, "softirq", "NET_RX", 7, "client"), (800, 20_000, "idle", "idle", 0, "swapper")],
            [(0, 600, "idle", "idle", 0, "swapper"), (600, 600 + dur, "syscall", "read", TID, "server"),
             (600 + dur, 20_000, "idle", "idle", 0, "swapper")],
        )  # fmt: skip
        self.threads(t, [(0, 600, "sleeping"), (600, 600 + dur, "running"), (600 + dur, 20_000, "sleeping")])
        thread = self.call(-1, "thread", "server", t + 600, dur)
        syscall = self.call(thread, "syscall", "read", t + 600, dur)
        self.contexts[-2]["call_id"] = syscall
        self.inside(syscall, t + 600, tree)

    def inside(self, parent: int, start: int, tree: list[tuple]) -> None:
        """Consecutive calls."""
        for symbol, ns, below in tree:
            at = self.call(parent, "function", symbol, start, ns)
            self.inside(at, start, below)
            start += ns


def reported(
    scene: Stack, options: Selection = SLOWEST, frequencies: pa.Table | None = None
) -> dict[str, dict[str, object]]:
    tables = scene.tables()
    compared, found, *_ = find(Recording(*tables, frequencies=frequencies), options)
    anomalies, coverage, _, _ = attribute(found, compared, options)
    assert coverage.num_rows == 1
    rows = {str(r["path"] or r["subject"]): r for r in anomalies.to_pylist()}
    rows["coverage"] = coverage["coverage"].to_pylist()[0]
    return rows


def scene(slow: list[tuple], dur: int, usual: list[tuple] | None = None) -> Stack:
    """``USUAL`` usual messages, then one of ``dur`` ns."""
    made = Stack()
    usual = usual or [("ksys_read", 400, [("recv", 300, [("copy", 200, [])])])]
    for n in range(USUAL):
        made.read(20_000 * n, usual, sum(ns for _, ns, _ in usual))
    made.read(20_000 * USUAL, slow, dur)
    return made


def test_a_parent_that_nested_anomalies_explain_is_not_reported():
    # The paper's example: the parent takes 1000 ns longer, the nested function 900.
    found = reported(scene([("ksys_read", 1400, [("recv", 1300, [("copy", 1100, [])])])], 1400))
    assert found.pop("coverage") == pytest.approx(0.9)
    assert list(found) == ["read > ksys_read > recv > copy"]
    row = found["read > ksys_read > recv > copy"]
    assert (row["anomaly"], row["subject"], row["kind"]) == ("slower", "copy", "function")
    assert (row["observed_ns"], row["baseline_ns"], row["deviation_ns"]) == (1100, 200, 900)


def test_the_share_that_leaves_a_parent_out_can_be_chosen():
    options = replace(SLOWEST, explained=0.95)
    found = reported(scene([("ksys_read", 1400, [("recv", 1300, [("copy", 1100, [])])])], 1400), options)
    assert {p: r["deviation_ns"] for p, r in found.items() if p != "coverage"} == {
        "read > ksys_read > recv": 100,
        "read > ksys_read > recv > copy": 900,
    }
    assert found["coverage"] == 1


def test_a_parent_keeps_what_nested_anomalies_leave():
    # copy takes 600 of the additional 900 ns of recv. Together they are 90 % of the additional 1000 ns of ksys_read.
    found = reported(scene([("ksys_read", 1400, [("recv", 1200, [("copy", 800, [])])])], 1400))
    claims = {path: row["deviation_ns"] for path, row in found.items() if path != "coverage"}
    assert claims == {"read > ksys_read > recv": 300, "read > ksys_read > recv > copy": 600}
    assert found["coverage"] == pytest.approx(0.9)


def test_many_small_deviations_are_their_parent():
    # Ten functions take 40 ns longer each, which is below the granularity: none of them alone is an anomaly.
    usual = [("ksys_read", 400, [(f"f{i}", 40, []) for i in range(10)])]
    slow = [("ksys_read", 800, [(f"f{i}", 80, []) for i in range(10)])]
    options = Selection(slow=Slice.parse("1300ns-"), granularity_ns=50)
    found = reported(scene(slow, 800, usual), options)
    assert {p: r["deviation_ns"] for p, r in found.items() if p != "coverage"} == {"read > ksys_read": 400}


def test_nothing_is_reported_within_an_unexpected_function():
    slow = [
        ("ksys_read", 1400, [("recv", 300, [("copy", 200, [])]), ("fault", 1000, [("clear_page", 900, [])])])
    ]
    found = reported(scene(slow, 1400))
    assert found.pop("coverage") == 1
    assert {p: (r["anomaly"], r["deviation_ns"]) for p, r in found.items()} == {
        "read > ksys_read > fault": ("unexpected", 1000)
    }


def test_what_is_made_up_for_within_its_parent_is_not_reported():
    # wait takes 300 longer and copy 300 less: recv takes its usual time, but the lock does not.
    usual = [("recv", 700, [("copy", 400, []), ("wait", 300, [])]), ("lock", 100, [])]
    slow = [("recv", 700, [("copy", 100, []), ("wait", 600, [])]), ("lock", 1100, [])]
    found = reported(scene(slow, 1800, usual))
    assert [p for p in found if p != "coverage"] == ["read > lock"]


def test_a_function_that_is_called_more_often_says_so():
    usual = [("ksys_read", 400, [("recv", 100, [])] * 2)]
    slow = [("ksys_read", 1400, [("recv", 100, [])] * 12)]
    row = reported(scene(slow, 1400, usual))["read > ksys_read > recv"]
    assert (row["anomaly"], row["n_calls"], row["baseline_n_calls"]) == ("frequent", 12, 2)
    assert row["deviation_ns"] == 1000


def test_usual_jitter_of_a_function_is_no_anomaly():
    # copy takes from 200 to 320 ns. The slow message's 350 is close to that; its lock is not.
    made = Stack()
    for n in range(USUAL):
        extra = 20 * (n % 7)
        made.read(20_000 * n, [("copy", 200 + extra, []), ("lock", 100, [])], 300 + extra)
    made.read(20_000 * USUAL, [("copy", 350, []), ("lock", 1100, [])], 1450)
    options = Selection(slow=Slice.parse("1500ns-"), baseline=Slice.parse("p0-97"), granularity_ns=50)
    assert [p for p in reported(made, options) if p != "coverage"] == ["read > lock"]


def test_outliers_of_the_baseline_do_not_hide_a_cause():
    # One baseline message in four also waits for the lock.
    made = Stack()
    for n in range(USUAL):
        extra = 900 * (n % 4 == 0)
        made.read(20_000 * n, [("copy", 200, []), ("lock", 100 + extra, [])], 300 + extra)
    made.read(20_000 * USUAL, [("copy", 200, []), ("lock", 1100, [])], 1300)
    options = Selection(slow=Slice.parse("1850ns-"), baseline=Slice.parse("p0-97"), granularity_ns=50)
    found = reported(made, options)
    assert {p: r["deviation_ns"] for p, r in found.items() if p != "coverage"} == {"read > lock": 1000}


def test_messages_are_compared_with_their_request_type():
    # Half of the messages are scans and take 2000 ns longer: compared with other scans, they are no anomaly.
    made = Stack()
    for n in range(2 * USUAL):
        extra = 2000 * (n % 2)
        made.read(20_000 * n, [("recv", 400 + extra, [])], 400 + extra)
        made.messages[-1]["request_type"] = "scan" if n % 2 else "get"
    made.read(20_000 * 2 * USUAL, [("recv", 400, []), ("lock", 2500, [])], 2900)
    made.messages[-1]["request_type"] = "get"
    options = Selection(slow=Slice.parse("3200ns-"), baseline=Slice.parse("p0-98"), granularity_ns=50)
    found = reported(made, options)
    assert {p: r["deviation_ns"] for p, r in found.items() if p != "coverage"} == {"read > lock": 2500}


def trace(rows: list[tuple]) -> tuple[CallTree, Calls]:
    """Calls of core 0: (parent, kind, symbol, start, end, start_known)."""
    rows_of_calls = table(
        "calls",
        [
            {
                "call_id": n, "parent_id": up, "depth": 0, "kind": kind, "symbol": symbol, "dso": "", "cpu": 0,
                "pid": 1, "tid": 1, "start_ns": start, "dur_ns": end - start, "self_ns": 0, "start_known": known,
                "end_known": "measured", "arg": 0, "start_addr": 0, "before": "", "gap_cause": "",
            }
            for n, (up, kind, symbol, start, end, known) in enumerate(rows)
        ],
    )  # fmt: skip
    made = CallTree.build(rows_of_calls, np.zeros(0, np.int64))
    return made, Calls(made)


def paths(calls: Calls) -> list[str]:
    def text(at: int) -> str:
        above = calls.paths.up[at]
        return (text(above) + ">" if above >= 0 else "") + calls.paths.symbol[at]

    return sorted(text(at) for at in range(len(calls.paths.up)))


def test_functions_entered_before_the_recording_are_in_no_path():
    _, calls = trace(
        [
            (-1, "thread", "server", 0, 1000, "inferred"),
            (0, "function", "main", 0, 1000, "missing"),
            (1, "function", "loop", 0, 1000, "missing"),
            (2, "function", "serve", 100, 300, "measured"),
            (3, "syscall", "read", 100, 200, "measured"),
            (4, "function", "ksys_read", 110, 190, "measured"),
            (3, "function", "reply", 200, 300, "measured"),
        ]
    )
    # A path begins in its innermost context: functions that read calls are not below serve.
    assert paths(calls) == ["ksys_read", "serve", "serve>reply"]


def test_time_of_a_function_is_with_its_callees_and_counted_once_in_recursion():
    _, calls = trace(
        [
            (-1, "thread", "server", 0, 1000, "measured"),
            (0, "function", "f", 0, 900, "measured"),
            (1, "function", "f", 100, 800, "measured"),
            (2, "function", "g", 200, 300, "measured"),
            (2, "function", "g", 400, 500, "measured"),
        ]
    )
    nodes = calls.measure(*(np.array(a) for a in ([7], [0], [0], [0], [1000])), CoreFrequencies())
    found = {
        (int(nodes.total[i]), int(nodes.own[i]), int(nodes.calls[i]))
        for i in range(len(nodes))
        if nodes.path[i] >= 0
    }
    assert paths(calls) == ["f", "f>f", "f>f>g"]
    assert found == {(900, 200, 1), (700, 500, 1), (200, 200, 2)}
    assert nodes.total[nodes.path == -1].tolist() == [1000]


def test_a_thread_whose_functions_are_all_older_than_the_recording_has_no_path_and_is_reported_whole():
    made = Stack()
    for n in range(USUAL):
        made.read(20_000 * n, [], 400)
    made.read(20_000 * USUAL, [], 1400)
    made.call(-1, "function", "main", 20_000 * (USUAL + 1), 100, start_known="missing")
    found = reported(made)
    assert {p: (r["kind"], r["deviation_ns"]) for p, r in found.items() if p != "coverage"} == {
        "read": ("own", 1000)
    }


def test_only_the_part_within_the_interval_counts():
    _, calls = trace(
        [(-1, "thread", "server", 0, 1000, "measured"), (0, "function", "f", 100, 900, "measured")]
    )
    nodes = calls.measure(*(np.array(a) for a in ([0], [0], [0], [300], [500])), CoreFrequencies())
    assert nodes.total.tolist() == [200, 200]
    assert nodes.calls.tolist() == [0, 0]  # the call began before
