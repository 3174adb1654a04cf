# SPDX-License-Identifier: GPL-2.0-only
"""What slow messages met that comparable ones did not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..manifest import Manifest
from ..recorder import Recorder
from ..stage import ANALYSIS, RECORDS, Context, Result, Stage

if TYPE_CHECKING:
    from ..timeline.intervals import Int
    from .arrival import Host
    from .population import Noise
    from .recorded import Recorded


def _run(ctx: Context) -> Result:
    from ..consistency import check_together
    from .find import find
    from .options import REFERENCES_WITH_CALLS, Options

    # Here and not where the files are read: this is the first stage that sees them all.
    of_records = f"messages of {RECORDS}/", f"activity of {RECORDS}/"
    names = (
        of_records[0] if ctx.has_records else "events.tsv",
        of_records[1] if ctx.activity_of_records else "perf.data",
    )
    check_together(ctx.manifest, ctx.stored("events").span(), ctx.stored("contexts").span(), names)
    options = Options.of(ctx.options)
    if ctx.manifest.grade == "pt":
        options = replace(options, max_reference=min(options.max_reference, REFERENCES_WITH_CALLS))
    granularity = max(granularity_ns(of) for of in (ctx, ctx.other) if of)
    here = recorded(ctx)._replace(noise=noise_of(ctx))
    against = recorded(ctx.other)._replace(noise=noise_of(ctx.other)) if ctx.other else None
    compared, found, lost = find(here, replace(options, granularity_ns=granularity), against)
    return {"compared": compared, "found_anomalies": found}, lost


def recorded(ctx: Context) -> Recorded:
    from .recorded import Recorded

    calls, contexts, states = (ctx.stored(name) for name in ("calls", "contexts", "thread_states"))
    recorder = Recorder.of(ctx.manifest)
    return Recorded(
        ctx.messages(),
        calls,
        contexts,
        states,
        seen(ctx),
        host(ctx.manifest),
        recorder=recorder,
        drops=ctx.table("drops"),
    )


def host(manifest: Manifest) -> Host:
    """What the recorded machine's settings can delay."""
    from .arrival import Host

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
    """A number of a manifest that can be one of microseconds, else 0."""
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else 0


#: Below this, times of tracepoints are noise of the tracing itself.
TRACEPOINT_NOISE_NS = 1_000


def granularity_ns(ctx: Context) -> int:
    """What deviation cannot be told from none whatever the clocks, in ns: that of the packets, or of tracepoints."""
    return max((row["p99_step_ns"] for row in ctx.table("trace").to_pylist()), default=TRACEPOINT_NOISE_NS)


def noise_of(ctx: Context) -> Noise:
    """What the clocks of a call and of a message are known to: twice the worst bound, at its begin or end.

    Where the clock map has no time of a message's, the worst of all.
    """
    from ..clocks import ClockMap

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
    """From when to when something tells what cores did."""
    for row in ctx.table("trace").to_pylist():
        return row["begin_ns"], row["end_ns"]
    return ctx.stored("contexts").span()


STAGE = Stage(
    "anomalies",
    _run,
    needs=("messages", "contexts", "events", "clocks"),
    options=ANALYSIS,
    tables=("compared", "found_anomalies"),
    diagnosis=True,
    schemas=(("found_anomalies", "anomalies"),),
)
