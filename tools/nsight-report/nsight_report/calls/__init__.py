# SPDX-License-Identifier: GPL-2.0-only
"""Which thread ran on each core at what time, and the state of each thread, from decoded perf events."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from ..capture.perf_data import Decoded
from ..errors import BadInput
from ..losses import Ledger
from . import contexts, thread_states


def build(
    decoded: Decoded, syscall_names: Mapping[str, str] | None = None
) -> tuple[pa.Table, pa.Table, pa.Table, pa.Table]:
    """Tables ``calls``, ``contexts``, ``thread_states`` and ``losses`` of schema.py.

    ``syscall_names`` (number, as int or text, to name) belongs to the recorded machine;
    missing ones are named ``syscall N``. Raises BadInput if the times are not monotonic
    ones, or if nothing shows which thread ran.
    """
    if decoded.clock != "monotonic":
        raise BadInput(
            f"{decoded.source} is in the {decoded.clock} clock, which cannot be related to the message timestamps",
            "record with: perf record -k CLOCK_MONOTONIC",
        )
    ledger = Ledger("calls")
    nesting = contexts.nest(decoded.events, decoded.source)
    calls, intervals = contexts.tables(nesting, decoded.strings, syscall_names or {})
    contexts.account(nesting.repairs, ledger, decoded.source)
    complete = "wake_ups_untraced" in decoded.info.get("losses", {})
    states = thread_states.build(decoded.events, nesting.calls, decoded.strings, ledger, complete)
    return calls, intervals, states, ledger.table()
