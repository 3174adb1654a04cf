# SPDX-License-Identifier: GPL-2.0-only
"""What ran on the cores during slow messages."""

from __future__ import annotations

from .. import losses
from ..stage import ANALYSIS, Context, Result, Stage


def _run(ctx: Context) -> Result:
    from ..selection.options import Selection
    from ..timeline.recording import Recording
    from .occupancy import summarise

    here = Recording.of(ctx)
    there = Recording.of(ctx.other) if ctx.other else here
    table = summarise(ctx.table("compared"), here, there, Selection.of(ctx.options))
    return {"cores": table}, losses.merge([])


STAGE = Stage(
    "cores",
    _run,
    needs=("messages", "requests", "contexts", "anomalies"),
    options=(*ANALYSIS, "categories"),
    tables=("cores",),
    diagnosis=True,
)
