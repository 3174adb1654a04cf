# SPDX-License-Identifier: GPL-2.0-only
"""One capture as input of the diagnosis: its tables, and the recorded machine's settings and clocks."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..clocks import ClockMap
from ..interval_joins import Int
from ..manifest import Manifest
from ..recorder import NOBODY, Recorder
from ..selection.population import Noise
from ..stage import REQUEST, Context
from ..tables import schema
from ..tables.intervals import IntervalTable
from ..tables.messages import Messages
from .arrival import Host


class Reasons(NamedTuple):
    """What some waits of threads were for: intervals within the waits, in order, and the text for each.

    ``wait``: position in the waits that were passed; ``text``: position in ``texts``.
    """

    wait: Int
    start: Int
    end: Int
    text: Int
    texts: list[str]


class Waits(NamedTuple):
    """Intervals in which threads were off their cores and not ready. ``request``: number of the request that waited
    meanwhile; ``unread``: whether the thread had not read it yet.
    """

    tid: Int
    start: Int
    end: Int
    request: Int
    unread: npt.NDArray[np.bool_]


class Explain(Protocol):
    """Explains what threads waited for."""

    def __call__(self, waits: Waits) -> Reasons:
        """The reasons, as far as they are known."""

    def chains(self, tid: Int, start: Int, end: Int) -> list[str]:
        """For some intervals, the wait chain with the numbers of threads; '' if it is not known."""


class Recording(NamedTuple):
    """Tables of one capture, as its diagnosis needs them; ``seen``: messages outside of that time are not compared.

    ``host``: settings of its machine that can cause delays. ``noise``: the smallest difference that its times can show;
    empty where only the options decide it. ``recorder``: threads of the recording itself. ``drops``: table of that name.
    ``frequencies``, ``memory_work`` and ``counters``: the tables of its cores.
    ``diagnosed``: requests, if they are compared instead of messages; ``explain`` then gives what their threads waited for.
    """

    messages: pa.Table | Messages
    calls: pa.Table | IntervalTable
    contexts: pa.Table | IntervalTable
    thread_states: pa.Table | IntervalTable
    seen: tuple[int, int] | None = None
    host: Host | None = None
    noise: Noise | None = None
    recorder: Recorder = NOBODY
    drops: pa.Table | None = None
    diagnosed: Messages | None = None
    explain: Explain | None = None
    frequencies: pa.Table | None = None
    memory_work: pa.Table | IntervalTable | None = None
    counters: pa.Table | IntervalTable | None = None

    def every(self) -> Messages:
        """Its messages, read in parts."""
        return self.messages if isinstance(self.messages, Messages) else Messages(self.messages)

    def compared(self) -> Messages:
        """What is diagnosed, read in parts."""
        return self.diagnosed or self.every()

    def activity(self, name: str) -> IntervalTable:
        """Its table ``calls``, ``contexts``, ``thread_states``, ``memory_work`` or ``counters``, read in parts."""
        table = getattr(self, name)
        table = schema.empty(name) if table is None else table
        return (
            table
            if isinstance(table, IntervalTable)
            else IntervalTable(table, "tid" if name == "thread_states" else "cpu")
        )

    def noise_from(self, granularity_ns: int) -> Noise:
        """The size up to which a deviation is ignored."""
        of_clocks = self.noise or (lambda first, _last: np.zeros(len(first), np.int64))
        return lambda first, last: np.maximum(granularity_ns, of_clocks(first, last))

    @staticmethod
    def of(ctx: Context) -> Recording:
        """The results of the stages before the diagnosis."""
        calls, contexts, states = (ctx.stored(name) for name in ("calls", "contexts", "thread_states"))
        recorder = Recorder.of(ctx.manifest)
        return Recording(
            ctx.messages(),
            calls,
            contexts,
            states,
            seen(ctx),
            host_beside(states, ctx.manifest),
            recorder=recorder,
            drops=ctx.table("drops"),
            frequencies=ctx.table("frequencies"),
            memory_work=ctx.stored("memory_work"),
            counters=ctx.stored("counters"),
            diagnosed=ctx.compared() if ctx.options.direction == REQUEST else None,
        )


def host_beside(states: pa.Table | IntervalTable, manifest: Manifest) -> Host:
    """``host``; without ``throttled`` if ``thread_states`` itself shows when threads had no quota."""
    table = states if isinstance(states, IntervalTable) else IntervalTable(states, "tid")
    found = host(manifest)
    return replace(found, throttled=()) if found.throttled and table.holds("state", "throttled") else found


def host(manifest: Manifest) -> Host:
    """Delays that the settings of the recorded machine can cause."""
    settings = [nic["coalescing"] for nic in manifest.list("nics") if isinstance(nic.get("coalescing"), dict)]
    waits = [_count(s.get("rx_coalesce_usecs")) * 1000 for s in settings]
    states = manifest.mapping("host").get("idle_states")
    exits = [
        _count(state.get("latency_us")) * 1000
        for state in (states if isinstance(states, list) else [])
        if isinstance(state, dict) and not state.get("disabled")
    ]
    adapts = any(s.get("use_adaptive_rx_coalesce") for s in settings)
    groups = [row["pids"] for row in manifest.list("throttled") if isinstance(row.get("pids"), list)]
    throttled = {pid for pids in groups for pid in pids if isinstance(pid, int) and 0 < pid < 1 << 31}
    return Host(-1 if adapts else max(waits, default=0), tuple(exits), tuple(sorted(throttled)))


def _count(value: object) -> int:
    """A number from a manifest that is plausible in microseconds, else 0."""
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else 0


#: Shorter times from tracepoints are noise of the tracing itself.
TRACEPOINT_NOISE_NS = 1_000


def granularity_ns(ctx: Context) -> int:
    """Smallest deviation (ns) that can be told from none whatever the clocks: limited by the trace packets, or by tracepoints."""
    return max((row["p99_step_ns"] for row in ctx.table("trace").to_pylist()), default=TRACEPOINT_NOISE_NS)


def noise_of(ctx: Context) -> Noise:
    """Precision of the clocks of a call and of a message: twice the worst bound, at its begin or end.

    Where the clock map does not cover a message's time, the worst bound of all.
    """
    bounds = ctx.table("clock_map")
    clock = ClockMap(bounds)
    used = {"perf", "boottime"}.intersection(clock.domains)
    counts = pc.is_in(bounds["domain"].cast(pa.string()), pa.array(["monotonic", *sorted(used)]))
    worst_of_all = int(bounds.filter(counts)["error_ns"].to_numpy().max(initial=0))

    def noise(first: Int, last: Int) -> Int:
        worst = np.zeros(len(first), np.int64)
        for times in (first, np.maximum(last, first)):
            tsc, error, good = clock.convert_masked(times, "monotonic", "tsc")
            worst = np.maximum(worst, np.where(good, error, worst_of_all))
            for domain in used:
                _, error, known = clock.convert_masked(tsc, "tsc", domain)
                worst = np.maximum(worst, np.where(good & known, error, worst_of_all))
        return 2 * worst

    return noise


def seen(ctx: Context) -> tuple[int, int] | None:
    """First and last time for which the activity of cores is known."""
    for row in ctx.table("trace").to_pylist():
        return row["begin_ns"], row["end_ns"]
    return ctx.stored("contexts").span()
