# SPDX-License-Identifier: GPL-2.0-only
"""With calls (Intel PT), an anomaly of another thread says in which functions that thread was."""

from __future__ import annotations

from machinery.made_up.tables import TID, context, message
from test_call_paths import USUAL, Stack, reported

HOLDER = 900


def taken(tree: list[tuple], tid: int = HOLDER, pid: int = TID) -> Stack:
    """``USUAL`` usual messages, then one whose thread is ready from t+600 on, while a thread has its core for 2000 ns."""
    made = Stack()
    for n in range(USUAL):
        made.read(20_000 * n, [("ksys_read", 400, [])], 400)
    t = 20_000 * USUAL
    made.messages.append(message(USUAL, t, t + 500, t + 3000, call_ns=None))
    made.cores(
        t,
        [(0, 800, "softirq", "NET_RX", 7, "client"), (800, 20_000, "idle", "idle", 0, "swapper")],
        [(0, 600, "idle", "idle", 0, "swapper")],
    )
    other = context(1, t + 600, t + 2600, "thread", "server", tid, "server")
    made.contexts += [
        other | {"pid": pid},
        context(1, t + 2600, t + 3000, "syscall", "read", TID, "server"),
        context(1, t + 3000, t + 20_000, "idle", "idle", 0, "swapper"),
    ]
    made.threads(
        t,
        [
            (0, 600, "sleeping"),
            (600, 2600, "runnable"),
            (2600, 3000, "running"),
            (3000, 20_000, "sleeping"),
        ],
    )
    base = made.call(-1, "thread", "server", t + 600, 2000, tid=tid, pid=pid)
    made.inside(base, t + 600, tree)
    return made


def test_the_functions_in_which_the_other_thread_was_for_most_of_the_time_are_named() -> None:
    # 1900 of 2000 ns are in holder, 1500 of these in spin; its 100 calls of pause are too short, and so is what comes before.
    tree = [("start", 100, []), ("holder", 1900, [("spin", 1500, [("pause", 15, [])] * 100)])]
    found = reported(taken(tree))
    assert found["holder > spin"]["deviation_ns"] == 2000
    assert found["holder > spin"]["kind"] == "sibling"
    assert found["holder > spin"]["subject"] == "server"


def test_of_a_thread_of_another_process_too() -> None:
    found = reported(taken([("compress", 2000, [])], pid=77))
    assert found["compress"]["kind"] == "thread"


def test_without_a_function_that_has_most_of_it_none_is_named() -> None:
    # 1000 of 2000 ns are not more than half.
    found = reported(taken([("first", 1000, []), ("second", 1000, [])]))
    assert found["server"]["path"] == ""
    assert found["server"]["deviation_ns"] == 2000
