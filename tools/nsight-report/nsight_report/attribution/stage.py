# SPDX-License-Identifier: GPL-2.0-only
"""From anomalies to causes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..stage import ANALYSIS, Context, Options, Result, Stage


def own(compared: pa.Table, options: Options) -> npt.NDArray[np.int64]:
    """IDs of the compared messages of this capture; baseline messages may come from another one."""
    if options.against is not None:
        compared = compared.filter(pc.equal(compared["role"].cast(pa.string()), "slow"))
    return compared["message_id"].to_numpy()


def _run(ctx: Context) -> Result:
    from ..names import thread_name
    from ..selection.options import Selection
    from .causes import attribute

    compared = ctx.table("compared")
    ours = ctx.messages().rows(own(compared, ctx.options), ["comm"])
    programs = frozenset(map(thread_name, ours["comm"].unique()))
    kept, coverage, causes, lost = attribute(
        ctx.table("found_anomalies"), compared, Selection.of(ctx.options), programs
    )
    return {"anomalies": kept, "coverage": coverage, "causes": causes}, lost


STAGE = Stage(
    "attribution",
    _run,
    needs=("messages", "anomalies"),
    options=(*ANALYSIS, "categories"),
    tables=("anomalies", "coverage", "causes"),
    diagnosis=True,
)
