# SPDX-License-Identifier: GPL-2.0-only
"""Depths of queues, and what the messages that blocked others did."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from ..stage import ANALYSIS, CHOSEN, Context, Result, Stage


def _run(ctx: Context) -> Result:
    from ..selection.options import Selection
    from ..selection.population import looked_at
    from ..timeline.recording import Recording
    from .blocking import break_down
    from .find import find

    compared, anomalies = ctx.table("compared"), ctx.table("anomalies")
    here, there = Recording.of(ctx), Recording.of(ctx.other) if ctx.other else None
    options, span = Selection.of(ctx.options), here.seen
    only = looked_at(ctx.compared(), options, span) if ctx.options.decode == CHOSEN else None
    # Neither needs the other, and both wait for what they read.
    with ThreadPoolExecutor(2) as pool:
        found = pool.submit(find, here, compared, there)
        blocked = pool.submit(break_down, here, anomalies, options, span, only)
        table, lost = found.result()
        return {"queuing": table, "hol": blocked.result()}, lost


STAGE = Stage(
    "queuing",
    _run,
    needs=("messages", "requests", "contexts", "anomalies", "attribution"),
    options=(*ANALYSIS, "categories"),
    tables=("queuing", "hol"),
    diagnosis=True,
)
