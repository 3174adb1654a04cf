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
    from ..tables.data_frames import to_pandas
    from .causes import attribute
    from .host_time import CORES, at_most

    compared = ctx.table("compared")
    ours = ctx.compared().rows(
        own(compared, ctx.options), ["message_id", "comm", "first_ns", "last_ns", *CORES]
    )
    programs = frozenset(map(thread_name, ours["comm"].unique()))
    kept, coverage, causes, lost = attribute(
        ctx.table("found_anomalies"),
        compared,
        Selection.of(ctx.options),
        programs,
        at_most(ours, to_pandas(ctx.table("stolen"))),
    )
    return {"anomalies": kept, "coverage": coverage, "causes": causes}, lost


STAGE = Stage(
    "attribution",
    _run,
    needs=("messages", "requests", "contexts", "anomalies"),
    options=(*ANALYSIS, "categories"),
    tables=("anomalies", "coverage", "causes"),
    diagnosis=True,
)
