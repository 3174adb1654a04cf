# SPDX-License-Identifier: GPL-2.0-only
"""Grouping equal chains: sums, counts, texts and trees, checked by hand."""

import pyarrow as pa
from nsight_report.waits import summary
from waits_by_hand import activity, chains, intervals, on, ran, waited


def asked():
    """Thread 10 runs 100, waits for 20's lock 300 and again 200; 20 sleeps 250 of the first, 150 of the second, and otherwise runs."""
    states = [ran(10, 0, 100), ran(10, 400, 500), ran(20, 350, 400, 1), ran(20, 650, 700, 1)]
    contexts = [
        on(0, 0, 100, "thread", "server", 10),
        on(0, 400, 500, "thread", "server", 10),
        on(1, 350, 400, "thread", "worker", 20),
        on(1, 650, 700, "thread", "worker", 20),
    ]
    timer = {"context": "hardirq", "symbol": "local_timer"}
    waits = [
        waited(10, 100, 400, "futex", by=20),
        waited(10, 500, 700, "futex", by=20),
        waited(20, 0, 350, "nanosleep", by=40, **timer),
        waited(20, 400, 650, "nanosleep", by=40, **timer),
    ]
    pieces, lost = chains(intervals((10, 0, 700)), activity(states, contexts, waits))
    assert lost == {}
    return pieces


def test_each_chain_has_its_time_once():
    """500 of 700 ns are waits: 250 + 150 asleep, 50 + 50 running."""
    rows = summary.top(asked())
    assert [(r["chain"], r["total_ns"], r["n"], r["longest_ns"], r["sure"]) for r in rows] == [
        ("waited in futex for worker[20] (lock), which slept in nanosleep", 400, 2, 250, "measured"),
        ("waited in futex for worker[20] (lock), which ran", 100, 2, 50, "measured"),
    ]
    assert [r["share"] for r in rows] == [400 / 700, 100 / 700]
    assert len(summary.top(asked(), 1)) == 1


def test_with_all_that_the_thread_did_the_chains_add_up_to_the_interval():
    rows = summary.top(asked(), waits_only=False)
    assert sum(r["total_ns"] for r in rows) == 700
    assert [r["chain"] for r in rows if r["total_ns"] == 200] == ["ran"]


def test_tree_has_below_each_wait_what_explains_it():
    lock, ran_ = summary.tree(asked())
    assert (lock.text, lock.ns, lock.n) == ("waited in futex for worker[20] (lock)", 500, 2)
    assert [(node.text, node.ns, node.n) for node in lock.below] == [
        ("slept in nanosleep", 400, 2),
        ("ran", 100, 2),
    ]
    assert (ran_.text, ran_.ns, ran_.below) == ("ran", 200, [])


def test_small_nodes_of_a_level_are_put_together():
    """Of three parts of 150 ns, two have 20 and 30 ns."""
    contexts = [
        on(0, 0, 100, "thread", "hog", 40),
        on(0, 100, 120, "hardirq", "local_timer", 40),
        on(0, 120, 150, "softirq", "NET_RX", 40),
    ]
    pieces, _ = chains(intervals((10, 0, 150)), activity([ran(10, 0, 150, 0, "runnable")], contexts, []))
    nodes = summary.tree(pieces, 50)
    assert [(node.text, node.ns, node.rest) for node in nodes] == [
        ("was ready while hog had its core", 100, False),
        ("2 others", 50, True),
    ]
    # a single small node keeps its name
    assert [node.text for node in summary.tree(pieces, 25)][-1] == "was ready while local_timer had its core"


def test_chain_is_as_sure_as_its_least_sure_link():
    wait = waited(10, 0, 100, "recvfrom", by=20, context="softirq", symbol="NET_RX", from_thread=True)
    pieces, _ = chains(
        intervals((10, 0, 100)),
        activity([ran(20, 0, 100, 1)], [on(1, 0, 100, "thread", "worker", 20)], [wait]),
    )
    (row,) = summary.top(pieces)
    assert (row["chain"], row["sure"]) == (
        "waited in recvfrom for worker[20] (socket), which ran",
        "inferred",
    )


def test_pieces_below_one_wait_are_the_wait_and_what_explains_it():
    pieces = asked()
    of = summary.below(pieces, 1)
    assert of["depth"].to_pylist() == [0, 1, 1]
    assert sum(r["end_ns"] - r["start_ns"] for r in of.to_pylist() if r["is_leaf"]) == 300


def test_nothing_asked_is_nothing_told():
    pieces, _ = chains(intervals(), activity([], [], []))
    assert isinstance(pieces, pa.Table)
    assert (summary.top(pieces), summary.tree(pieces)) == ([], [])
