# SPDX-License-Identifier: GPL-2.0-only
"""Finds what slow messages met and comparable messages did not."""

from __future__ import annotations

from dataclasses import replace

from .. import losses
from ..errors import BadInput
from ..stage import ANALYSIS, RECORDS, REQUEST, Context, Result, Stage


def _run(ctx: Context) -> Result:
    from ..capture.check import check_together
    from ..selection.options import BASELINE_WITH_CALLS, Selection
    from ..timeline.recording import Recording, granularity_ns, noise_of
    from ..waits.reasons import Explainer
    from .find import find

    # Checked here and not where the files are read: this is the first stage that sees all of them.
    of_records = f"messages of {RECORDS}/", f"activity of {RECORDS}/"
    names = (
        of_records[0] if ctx.has_records else "events.tsv",
        of_records[1] if ctx.activity_of_records else "perf.data",
    )
    stamped = ctx.stored("events").span()
    if ctx.options.direction == "interval":
        names, stamped = (ctx.options.intervals or f"intervals of {RECORDS}/", names[1]), _of_intervals(ctx)
        if stamped is None:
            raise BadInput(
                f"{ctx.capture}: no interval was recorded",
                "give a file with --intervals, or record with nsight-record --interval",
            )
    check_together(ctx.manifest, stamped, ctx.stored("contexts").span(), names)
    options = Selection.of(ctx.options)
    if ctx.manifest.mode == "intel-pt":
        options = replace(options, max_baseline=min(options.max_baseline, BASELINE_WITH_CALLS))
    granularity = max(granularity_ns(of) for of in (ctx, ctx.other) if of)
    here = Recording.of(ctx)._replace(noise=noise_of(ctx))
    against = Recording.of(ctx.other)._replace(noise=noise_of(ctx.other)) if ctx.other else None
    ledger = losses.Ledger("waits")
    if ctx.options.direction == REQUEST:
        here = here._replace(explain=Explainer.of(ctx, ledger))
        if against is not None and ctx.other is not None:
            against = against._replace(explain=Explainer.of(ctx.other, ledger))
    compared, found, lost, counts = find(here, replace(options, granularity_ns=granularity), against)
    made = {"compared": compared, "found_anomalies": found, "message_counters": counts}
    return made, losses.merge([lost, ledger.table()])


def _of_intervals(ctx: Context) -> tuple[int, int] | None:
    """Time span of the intervals; None if there are none."""
    every = ctx.messages().columns(
        ["direction", "first_ns", "last_ns"], lambda rows: (rows["direction"] == "interval").to_numpy(bool)
    )
    return (int(every["first_ns"].min()), int(every["last_ns"].max())) if len(every) else None


STAGE = Stage(
    "anomalies",
    _run,
    needs=("messages", "requests", "contexts", "events", "clocks"),
    options=ANALYSIS,
    tables=("compared", "found_anomalies", "message_counters"),
    diagnosis=True,
    schemas=(("found_anomalies", "anomalies"),),
)
