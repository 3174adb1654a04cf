# SPDX-License-Identifier: GPL-2.0-only
"""Who had the cores of slow messages."""

from __future__ import annotations

from .. import losses
from ..stage import ANALYSIS, Context, Result, Stage


def _run(ctx: Context) -> Result:
    from ..anomalies.options import Options
    from ..recorder import Recorder
    from .occupancy import Recorded, summarise

    other = ctx.other or ctx
    table = summarise(
        ctx.table("compared"),
        Recorded(ctx.messages(), ctx.stored("contexts"), Recorder.of(ctx.manifest)),
        Recorded(other.messages(), other.stored("contexts"), Recorder.of(other.manifest)),
        Options.of(ctx.options),
    )
    return {"cores": table}, losses.merge([])


STAGE = Stage(
    "cores",
    _run,
    needs=("messages", "contexts", "anomalies"),
    options=(*ANALYSIS, "categories"),
    tables=("cores",),
    diagnosis=True,
)
