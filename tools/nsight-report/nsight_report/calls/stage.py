# SPDX-License-Identifier: GPL-2.0-only
"""What cores and threads did, from records or perf.data; with Intel PT, the calls."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .. import losses
from ..stage import CHOSEN, RECORDS, Context, Result, Stage
from ..tables import schema
from ..tables.store import Written

if TYPE_CHECKING:
    from ..clocks import ClockMap


def _run(ctx: Context) -> Result:
    from .. import drops
    from ..capture import perf_data, raw_records
    from ..clocks import ClockMap
    from . import build, counters, frequencies, functions, memory_work, missed_ticks, stolen, waits

    clock = ClockMap(ctx.table("clock_map"))

    def to_monotonic(
        ns: npt.NDArray[np.int64], domain: str
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        converted, _error, good = clock.convert_masked(ns, domain, "monotonic")
        return converted, good

    if ctx.activity_of_records:
        decoded, lost_decoding = raw_records.activity(ctx.raw(RECORDS))
    else:
        decoded, lost_decoding = perf_data.load(ctx.raw("perf.data"), convert=to_monotonic)
    syscall_names = ctx.manifest.syscall_names()
    missed = missed_ticks.find(decoded, ctx.manifest)
    decoded_as_read, decoded = decoded, missed.inserted(decoded)
    calls, contexts, states, lost = build(decoded, syscall_names)
    made: dict[str, pa.Table | Written] = {"calls": calls, "contexts": contexts, "thread_states": states}
    made["waits"] = waits.build(decoded.events, calls, contexts, states, syscall_names)
    made["trace"] = schema.empty("trace")
    cores = losses.Ledger("calls")
    made["memory_work"] = memory_work.table(decoded, states, ctx.manifest.raw.get("page_fault_ns"), cores)
    made["frequencies"] = frequencies.of_events(decoded, ctx.manifest.mapping("core_khz"), cores)
    made["stolen"] = stolen.table(decoded_as_read, cores, missed)
    made["counters"] = counters.table(decoded, ctx.manifest.counters(), cores)
    missing = ctx.manifest.mapping("counters_missing")
    if missing:
        cores.add(
            "counters_missing",
            len(missing),
            names=", ".join(f"{name} ({why})" for name, why in list(missing.items())[:16]),
        )
    made["drops"] = drops.table(decoded, ctx.manifest.drop_reasons())
    lost_tracing = losses.merge([])
    if ctx.manifest.mode == "intel-pt":
        ledger = losses.Ledger("calls")
        choose = partial(_chosen, ctx, clock, states, ledger) if ctx.options.decode == CHOSEN else None
        assert ctx.scratch is not None  # a running stage has one
        found, lost_tracing = functions.load(
            ctx.raw("perf.data"), ctx.options.symfs, to_monotonic, ctx.scratch, choose
        )
        lost_tracing = losses.merge([lost_tracing, ledger.table()])
        made |= found
    return made, losses.merge([lost_decoding, lost, cores.table(), lost_tracing])


def _chosen(
    ctx: Context, clock: ClockMap, thread_states: pa.Table, ledger: losses.Ledger, traced: tuple[int, int]
) -> npt.NDArray[np.int64]:
    """Windows around the messages that are compared, or that another capture is compared with, in the perf clock."""
    from ..selection.options import Selection
    from ..selection.population import looked_at
    from ..selection.windows import on_cores
    from ..tables.data_frames import to_pandas

    ends, _error, _good = clock.convert_masked(np.array(traced), "perf", "monotonic")
    seen = int(ends[0]), int(ends[1])
    messages = ctx.compared()
    chosen = messages.rows(looked_at(messages, Selection.of(ctx.options), seen))
    intervals = on_cores(chosen, to_pandas(thread_states))
    flat, _error, good = clock.convert_masked(intervals[:, :2].reshape(-1), "monotonic", "perf")
    known = good.reshape(-1, 2).all(axis=1)
    ledger.add("windows_outside_clock_map", int((~known).sum()))
    return np.column_stack([flat.reshape(-1, 2), intervals[:, 2]])[known]


STAGE = Stage(
    "contexts",
    _run,
    needs=("clocks",),
    raw=("manifest.json", "perf.data", RECORDS),
    options=("symfs",),
    tables=(
        "calls",
        "contexts",
        "thread_states",
        "waits",
        "trace",
        "frequencies",
        "memory_work",
        "stolen",
        "counters",
        "drops",
    ),
    programs=("nsight-perfdata", "nsight-rawdata", "nsight-contexts"),
    by_message=True,
)
