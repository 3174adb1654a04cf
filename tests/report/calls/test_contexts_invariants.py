# SPDX-License-Identifier: GPL-2.0-only
"""What must hold for any event stream, however damaged."""

from __future__ import annotations

import numpy as np
from event_arrays import ETH0, LOCAL_TIMER, T0, Event, build, counted, event, switch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CORE_KINDS = (
    "sys_enter",
    "sys_exit",
    "softirq_entry",
    "softirq_exit",
    "irq_handler_entry",
    "irq_handler_exit",
    "vector_entry",
    "vector_exit",
    "sched_waking",
    "sched_wakeup",
    "sched_migrate_task",
    "sched_process_fork",
    "sched_process_exit",
    "sched_process_exec",
    "page_fault_user",
    "cpu_idle",
    "lost",
    "comm",
    "fork",
    "exit",
)


@st.composite
def streams(draw: st.DrawFn) -> list[Event]:
    """Any events in any order on two cores; they need not fit together."""
    made, ts = [], 0
    for _ in range(draw(st.integers(1, 40))):
        ts += draw(st.integers(0, 5))
        cpu, tid = draw(st.integers(0, 1)), draw(st.integers(0, 4))
        if draw(st.booleans()):
            made.append(
                switch(ts, tid, draw(st.integers(0, 4)), draw(st.sampled_from([0, 1, 2, 4, 16, 256])), cpu)
            )
        else:
            kind = draw(st.sampled_from(CORE_KINDS))
            name = draw(st.sampled_from([LOCAL_TIMER, ETH0]))
            made.append(
                event(ts, kind, tid, cpu, a=draw(st.integers(0, 3)), b=draw(st.integers(0, 1)), c=name)
            )
    made.append(switch(ts + 1, 1, 2, 1, 0))  # at least one core is known
    return made


settled = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])


@settled
@given(streams())
def test_contexts_tile_each_core_and_calls_nest(events: list[Event]) -> None:
    calls, contexts, _, _ = build(*events)
    call, context = calls.to_pandas(), contexts.to_pandas()
    end = call["start_ns"] + call["dur_ns"]

    for _, core in context.groupby("cpu"):
        start, stop = core["start_ns"].to_numpy(), core["end_ns"].to_numpy()
        assert (stop > start).all()
        assert (start[1:] == stop[:-1]).all()
        # two adjacent rows are never the same interval
        assert (core["call_id"].to_numpy()[1:] != core["call_id"].to_numpy()[:-1]).all()

    # self time equals both the time that children leave and the time that the intervals show
    children = call[call["parent_id"] >= 0].groupby("parent_id")["dur_ns"].sum()
    left = call["dur_ns"].to_numpy() - children.reindex(call.index, fill_value=0).to_numpy()
    assert (call["self_ns"].to_numpy() == left).all()
    spent = (context["end_ns"] - context["start_ns"]).groupby(context["call_id"]).sum()
    assert (call["self_ns"].to_numpy() == spent.reindex(call.index, fill_value=0).to_numpy()).all()

    child = call[call["parent_id"] >= 0]
    parent = call.loc[child["parent_id"]]
    assert (child["cpu"].to_numpy() == parent["cpu"].to_numpy()).all()
    assert (child["depth"].to_numpy() == parent["depth"].to_numpy() + 1).all()
    assert (child["start_ns"].to_numpy() >= parent["start_ns"].to_numpy()).all()
    assert (end.loc[child.index].to_numpy() <= end.loc[parent.index].to_numpy()).all()

    assert (call["call_id"].to_numpy() == np.arange(len(call))).all()
    order = call.sort_values(["cpu", "start_ns", "depth"], kind="stable").index
    assert (order == call.index).all()


@settled
@given(streams())
def test_states_tile_each_thread_and_running_agrees_with_the_cores(events: list[Event]) -> None:
    calls, _, states, losses = build(*events)
    state, call = states.to_pandas(), calls.to_pandas()
    last = max(e[0] for e in events)
    assert (state["end_ns"] > state["start_ns"]).all()
    running = state[state["state"] == "running"]
    runs_at_all = call[(call["kind"] == "thread") & (call["depth"] == 0) & (call["tid"] > 0)]
    on_core = runs_at_all[runs_at_all["dur_ns"] > 0]
    begins, seen = (set(zip(of["tid"], of["cpu"], of["start_ns"], strict=True)) for of in (running, on_core))
    # A stream may say that a thread runs on two cores at once and began on both at the same time.
    if "thread on two cores at once" in counted(losses):
        assert begins <= seen
    else:
        assert begins == seen
    for tid, rows in state.groupby("tid"):
        assert (rows["start_ns"].to_numpy()[1:] == rows["end_ns"].to_numpy()[:-1]).all(), tid
        assert rows["start_ns"].iloc[0] >= T0
        assert rows["end_ns"].iloc[-1] <= last
