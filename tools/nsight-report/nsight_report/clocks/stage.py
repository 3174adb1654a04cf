# SPDX-License-Identifier: GPL-2.0-only
"""Clock readings to the clock map."""

from __future__ import annotations

from ..stage import Context, Result, Stage


def _run(ctx: Context) -> Result:
    from . import clock_readings
    from .build import build

    table, lost = build(clock_readings.load(ctx.raw("clock.tsv")))
    return {"clock_map": table}, lost


STAGE = Stage("clocks", _run, raw=("clock.tsv",), tables=("clock_map",))
