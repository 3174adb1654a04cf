# SPDX-License-Identifier: GPL-2.0-only
"""Message events from the probes or the BPF recorder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import BadInput
from ..stage import RECORDS, Context, Result, Stage


def _run(ctx: Context) -> Result:
    from ..clocks import ClockMap
    from . import message_events, raw_records

    assert ctx.scratch is not None  # a running stage has one
    if ctx.has_records:
        table, lost = raw_records.messages(ctx.raw(RECORDS), ctx.scratch)
        if table.n_rows() == 0 and not _has_intervals(ctx):
            raise _no_events(ctx.capture / RECORDS, lost)
        return {"events": table}, lost
    clock = ClockMap(ctx.table("clock_map"))
    n_asked = n_known = 0

    def to_monotonic(ns: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        nonlocal n_asked, n_known
        converted, _error, good = clock.convert_masked(ns, "boottime", "monotonic")
        n_asked += len(good)
        n_known += int(np.count_nonzero(good))
        return converted, good

    path = ctx.raw("events.tsv")
    table, lost = message_events.load(path, ctx.scratch, to_monotonic)
    if n_asked and not n_known:
        raise BadInput(
            f"{ctx.capture}: clock.tsv covers none of the times in events.tsv",
            "clock.tsv is cut, or the files are from different recordings or boots: copy one capture directory "
            "whole, or record again",
        )
    if table.n_rows() == 0 and not _has_intervals(ctx):
        raise _no_events(path, lost)
    return {"events": table}, lost


def _has_intervals(ctx: Context) -> bool:
    """Whether there is something to explain besides messages."""
    return ctx.options.intervals is not None or bool(ctx.manifest.list("intervals"))


def _no_events(path: Path, lost: pa.Table) -> BadInput:
    """Why there is nothing to analyse: events that were rejected, or none at all."""
    # The probes' own counts do not show why no line came.
    rejected = [
        row
        for row in lost.to_pylist()
        if row["severity"] != "info" and not row["cause"].startswith("probe count")
    ]
    if rejected:
        worst = max(rejected, key=lambda row: row["count"])
        return BadInput(
            f"{path}: no usable message event: {worst['cause']}: {worst['count']}", worst["remedy"]
        )
    return BadInput(
        f"{path}: no message was recorded",
        "was there traffic during the recording? check --port, --pid and the other filters",
    )


STAGE = Stage(
    "events",
    _run,
    needs=("clocks",),
    raw=("events.tsv", RECORDS),
    tables=("events",),
    programs=("nsight-rawdata",),
)
