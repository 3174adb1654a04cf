# SPDX-License-Identifier: GPL-2.0-only
"""For any recording, however damaged: pieces tile what they explain, and leaves tile the intervals."""

import random

import numpy as np
import pandas as pd
import pytest
from nsight_report import calls
from nsight_report.calls import waits
from nsight_report.capture.perf_data import CODE, EVENT, Decoded
from nsight_report.waits import Activity, explain, summary

THREADS = range(10, 17)
CORES = 2
CALLS = {"0": "read", "35": "nanosleep", "74": "fsync", "202": "futex"}
STRINGS = ["", "local_timer", "eth0", *(f"t{tid}" for tid in THREADS)]


class Machine:
    """Threads that sleep, wake each other and lose their cores at random, and the events that a recorder would write."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1_000_000
        self.events: list[tuple] = []
        self.on = dict.fromkeys(range(CORES), 0)
        self.ready: list[int] = list(THREADS)
        self.asleep: list[int] = []

    def tell(self, kind, cpu, a=0, b=0, c=0):
        self.now += self.random.choice((0, 1, 50, 300, 4_000))
        tid = self.on[cpu]
        self.events.append((self.now, CODE[kind], cpu, tid, tid, 0, a, b, c))

    def switch(self, cpu, state):
        before = self.on[cpu]
        after = self.ready.pop(self.random.randrange(len(self.ready))) if self.ready else 0
        names = (STRINGS.index(f"t{tid}") if tid else 0 for tid in (before, after))
        self.tell("sched_switch", cpu, after, state, next(names) | next(names) << 32)
        self.on[cpu] = after
        if before and state in (1, 2, 4):
            self.asleep.append(before)
        elif before:
            self.ready.append(before)

    def wake(self, cpu):
        if self.asleep:
            tid = self.asleep.pop(self.random.randrange(len(self.asleep)))
            self.tell("sched_waking", cpu, tid, self.random.randrange(CORES), STRINGS.index(f"t{tid}"))
            self.ready.append(tid)

    def step(self):
        cpu = self.random.randrange(CORES)
        what = self.random.randrange(8) if self.on[cpu] else self.random.choice((0, 5, 6))
        number = int(self.random.choice(list(CALLS)))
        if what == 0:
            self.switch(cpu, self.random.choice((0, 0x100)))
        elif what in (1, 2):
            self.tell("sys_enter", cpu, number, self.random.randrange(9))
            self.switch(cpu, self.random.choice((1, 1, 2, 4)))
        elif what == 3:
            self.tell("page_fault_user", cpu, 0x7000)
            self.switch(cpu, 2)
        elif what == 4:
            self.wake(cpu)
        elif what == 5:
            self.tell("irq_handler_entry", cpu, 33, 0, 2)
            self.tell("block_io", cpu, 254 << 20, 500, 4096)
            self.wake(cpu)
            self.tell("irq_handler_exit", cpu, 33)
        elif what == 6:
            vector = self.random.choice((1, 3, 4))
            self.tell("softirq_entry", cpu, vector)
            self.wake(cpu)
            self.tell("softirq_exit", cpu, vector)
        else:
            self.tell("sys_exit", cpu, number)


def recorded(seed, lost):
    """A recording that has lost a share of its events, and intervals of its threads, some of which it does not cover fully."""
    machine = Machine(seed)
    for _ in range(1_500):
        machine.step()
    kept = [event for event in machine.events if machine.random.random() >= lost]
    events = np.array(kept, dtype=EVENT)
    made = calls.build(Decoded(events, STRINGS, "monotonic", {}), CALLS)
    contexts, states = made[1], made[2]
    first, last = int(events["ts"][0]), int(events["ts"][-1])
    rows = []
    for i in range(60):
        begin = machine.random.randrange(first - 5_000, last)
        length = machine.random.choice((1, 900, 50_000, last - first))
        rows.append((i, machine.random.choice((*THREADS, 99)), begin, begin + length))
    asked = pd.DataFrame(rows, columns=["interval_id", "tid", "start_ns", "end_ns"])
    return asked, Activity(states, contexts, waits.build(events, *made[:3], CALLS), throttled=(10,))


def tiles(pieces, key, whole):
    """Sorted by time, the pieces begin and end with the whole that they explain, and each begins where the previous one ends."""
    ordered = pieces.sort_values([key, "start_ns"])
    of = ordered.groupby(key, sort=True)
    inner = ordered[key].to_numpy()[1:] == ordered[key].to_numpy()[:-1]
    assert (ordered["start_ns"].to_numpy()[1:] == ordered["end_ns"].to_numpy()[:-1])[inner].all()
    assert (ordered["end_ns"] > ordered["start_ns"]).all()
    assert of["start_ns"].min().to_dict() == whole["start_ns"].to_dict()
    assert of["end_ns"].max().to_dict() == whole["end_ns"].to_dict()


@pytest.mark.parametrize("lost", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("seed", range(6))
def test_each_ns_of_an_interval_is_told_once_at_each_depth(seed, lost):
    asked, activity = recorded(seed, lost)
    table, _ = explain(asked, activity)
    pieces = table.to_pandas()
    assert pieces["depth"].max() >= 2 or lost > 0.2, "chains are not looked at"
    whole = asked.set_index("interval_id")
    tiles(pieces[pieces["depth"] == 0], "interval_id", whole)
    tiles(pieces[pieces["is_leaf"]], "interval_id", whole)
    explained = pieces[~pieces["is_leaf"]].set_index("piece_id")
    tiles(pieces[pieces["depth"] > 0], "parent_id", explained)

    parents = pieces.set_index("piece_id")
    below = pieces[pieces["depth"] > 0]
    above = parents.loc[below["parent_id"]]
    assert (below["depth"].to_numpy() == above["depth"].to_numpy() + 1).all()
    assert (below["interval_id"].to_numpy() == above["interval_id"].to_numpy()).all()
    assert (below["tid"].to_numpy() == above["other_tid"].to_numpy()).all()
    length = int((asked["end_ns"] - asked["start_ns"]).sum())
    rows = summary.top(table, waits_only=False)
    assert sum(row["total_ns"] for row in rows) == length
    assert sum(node.ns for node in summary.tree(table, length // 50)) == length


def test_no_thread_is_twice_in_a_chain():
    for seed in range(4):
        asked, activity = recorded(seed, 0.3)
        pieces = explain(asked, activity)[0].to_pandas().set_index("piece_id")
        for number in pieces.index[pieces["depth"] == pieces["depth"].max()][:200]:
            path = []
            while number >= 0:
                path.append(pieces.at[number, "tid"])
                number = pieces.at[number, "parent_id"]
            assert len(path) == len(set(path))
