# SPDX-License-Identifier: GPL-2.0-only
"""Timer ticks that did not come on a busy core show that the host had it. One tick is 4 ms here; all times in us."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from event_arrays import LOCAL_TIMER, STRINGS, T0, Event, array, enter, event, intervals, switch
from nsight_report import calls
from nsight_report.calls import missed_ticks, stolen
from nsight_report.capture.perf_data import Decoded
from nsight_report.losses import Ledger
from nsight_report.manifest import Manifest

US = 1000
HOST: dict[str, Any] = {"hypervisor": True, "tick_ns": 4000 * US, "nohz_full": ""}


def tick(at: int, tid: int = 10, cpu: int = 0) -> list[Event]:
    ends = {"tid": tid, "cpu": cpu, "c": LOCAL_TIMER}
    return [event(at * US, "vector_entry", **ends), event((at + 2) * US, "vector_exit", **ends)]


def ticks(*at: int, tid: int = 10, cpu: int = 0) -> list[Event]:
    return [of for t in at for of in tick(t, tid, cpu)]


def found(*events: Event, **host: Any) -> list[tuple[int, int, int, int]]:
    """(core, last record before, when the tick was due, end) of each time without a tick."""
    manifest = Manifest("tracepoints", False, {"host": HOST | host})
    missed = missed_ticks.find(Decoded(array(*events), STRINGS, "monotonic", {}), manifest)
    rows = zip(missed.cpu.tolist(), *((t - T0).tolist() for t in (missed.begin, missed.due, missed.end)))
    return [(cpu, *(t // US for t in times)) for cpu, *times in rows]


def built(*events: Event) -> tuple[list[tuple[str, int, int]], pa.Table]:
    """Contexts of core 0, and table stolen."""
    manifest = Manifest("tracepoints", False, {"host": HOST})
    decoded = Decoded(array(*events), STRINGS, "monotonic", {})
    missed = missed_ticks.find(decoded, manifest)
    _, contexts, _, _ = calls.build(missed.inserted(decoded), {})
    return intervals(contexts), stolen.table(decoded, Ledger("calls"), missed)


#: Thread 10 gets the core at 500; ticks at 4000, 8000 and 12,000; the next is due at 16,000 and comes at 33,000.
STOPPED = [switch(500 * US, 0, 10), *ticks(4000, 8000, 12000), event(13000 * US, "sched_waking", 10, a=7)]
STOPPED += [*ticks(33000, 36000), switch(36500 * US, 10, 0)]


def test_the_host_had_the_core_from_the_tick_that_was_due_to_the_one_that_came() -> None:
    assert found(*STOPPED) == [(0, 13000, 16000, 33000)]


def test_a_thread_that_goes_on_without_an_interrupt_shows_no_absence() -> None:
    """Some hosts run no tracepoint while their first process has a core: its ticks came. The next one comes by chance."""
    silent = [switch(13000 * US, 10, 11), switch(32500 * US, 11, 10), *ticks(33000, 36000)]
    assert found(switch(500 * US, 0, 10), *ticks(4000, 8000, 12000), *silent) == []
    silent = [*silent[:1], event(32500 * US, "sched_waking", 11, a=7), *ticks(33000, 36000, tid=11)]
    assert found(switch(500 * US, 0, 10), *ticks(4000, 8000, 12000), *silent) == []


def test_it_is_a_context_of_its_own_and_what_was_before_is_a_bound() -> None:
    contexts, table = built(*STOPPED)
    assert ("missed timer ticks", 16000 * US, 33000 * US) in contexts
    assert [(r["start_ns"] - T0, r["end_ns"] - T0, r["ns"]) for r in table.to_pylist()] == [
        (13000 * US, 16000 * US, 3000 * US)
    ]


def test_a_thread_that_got_the_core_from_idle_has_its_first_tick_within_one() -> None:
    # The last tick was long ago: the next is due 4000 after the switch at 40,000.
    events = [*ticks(4000), switch(5000 * US, 10, 0), switch(40000 * US, 0, 10), *ticks(60000)]
    assert found(switch(500 * US, 0, 10), *events) == [(0, 40000, 44000, 60000)]


@pytest.mark.parametrize(
    "host", [{"hypervisor": False}, {"hypervisor": None}, {"tick_ns": None}, {"tick_ns": 5}, {"tick_ns": "4"}]
)
def test_without_a_virtual_machine_or_the_length_of_a_tick_nothing_is_said(host: dict[str, Any]) -> None:
    assert found(*STOPPED, **host) == []


@pytest.mark.parametrize(
    ("cores", "shown"), [("0", 0), ("0-3", 0), ("1-3,7", 1), ("(null)", 1), ("9-x,-", 1)]
)
def test_a_core_that_may_stop_its_tick_is_left_out(cores: str, shown: int) -> None:
    assert len(found(*STOPPED, nohz_full=cores)) == shown


@pytest.mark.parametrize(
    "between",
    [
        pytest.param([switch(13500 * US, 10, 0), switch(32999 * US, 0, 10)], id="idle core"),
        pytest.param([event(20000 * US, "lost", -1, a=5)], id="lost records"),
        pytest.param([event(13500 * US, "irq_handler_entry", 10, a=9)], id="inside an interrupt"),
        pytest.param(ticks(16000, 20000, 24000, 28000, 32000), id="all ticks came"),
    ],
)
def test_these_are_no_evidence(between: list[Event]) -> None:
    assert found(*STOPPED, *between) == []


def test_no_tick_after_it_no_evidence() -> None:
    # A system call ends the time without records; the overdue tick does not come.
    events = [switch(500 * US, 0, 10), *ticks(4000, 8000), enter(40000 * US, 10, 0), *ticks(42000)]
    assert found(*events) == []


def test_other_interrupts_may_come_before_the_overdue_tick() -> None:
    events = [switch(500 * US, 0, 10), *ticks(4000, 8000)]
    events += [event(30000 * US + n, "irq_handler_" + k, 10, a=9) for n, k in ((0, "entry"), (US, "exit"))]
    assert found(*events, *ticks(30100)) == [(0, 8002, 12000, 30000)]


def test_other_cores_do_not_count() -> None:
    other = [switch(500 * US, 0, 11, cpu=1), *ticks(*range(4000, 36000, 4000), tid=11, cpu=1)]
    assert found(*STOPPED, *other) == [(0, 13000, 16000, 33000)]


def test_the_schedulers_count_comes_first_where_it_is_as_long() -> None:
    told = event(33000 * US, "steal", -1, a=20000 * US, b=stolen.PLACED)
    assert found(*STOPPED, told) == []
    contexts, _ = built(told, *STOPPED)  # the recorder's order: steal time before what happens then
    assert ("steal", 13000 * US, 33000 * US) in contexts


def test_a_shorter_count_is_within_it() -> None:
    contexts, _ = built(event(33000 * US, "steal", -1, a=5000 * US, b=stolen.PLACED), *STOPPED)
    assert ("missed timer ticks", 16000 * US, 33000 * US) in contexts
    assert not any(symbol == "steal" and end > start for symbol, start, end in contexts)


def test_steal_time_without_a_place_is_not_counted_twice() -> None:
    # 20,000 somewhere since 500, of which 17,000 are shown: 3000 remain, and are the bound for the time before the tick, too.
    _, table = built(event(36500 * US, "steal", -1, a=20000 * US, b=stolen.UNKNOWN), *STOPPED)
    assert [(r["start_ns"] - T0, r["end_ns"] - T0, r["ns"]) for r in table.to_pylist()] == [
        (500 * US, 36500 * US, 3000 * US)
    ]


def test_impossible_times_are_survived() -> None:
    """A hostile file: the first and the last time that nsight-contexts takes."""
    late = (1 << 62) - 1 - T0
    events = [switch(-T0 + 1, 0, 10), event(late, "vector_entry", 10, c=LOCAL_TIMER)]
    assert len(found(*events)) == 1
    contexts, _ = built(*events)
    assert contexts
