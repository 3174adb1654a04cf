# SPDX-License-Identifier: GPL-2.0-only
"""Messages to requests."""

from __future__ import annotations

from ..stage import Context, Result, Stage


def _run(ctx: Context) -> Result:
    from .build import build

    assert ctx.scratch is not None  # a running stage has one
    framing = None if ctx.options.framing == "none" else ctx.options.framing
    table, lost = build(ctx.messages(), ctx.scratch, framing)
    return {"requests": table}, lost


STAGE = Stage("requests", _run, needs=("messages",), options=("framing",), tables=("requests",))
