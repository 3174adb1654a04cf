# SPDX-License-Identifier: GPL-2.0-only
"""Table ``counters``: what the performance counters of the cores counted between two readings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from ..capture.perf_data import CODE, NO_CPU, Decoded
from ..losses import Ledger
from ..tables import schema


def table(decoded: Decoded, names: Sequence[str], ledger: Ledger) -> pa.Table:
    """Rows in order of core, time and counter, without zero counts. ``names``: names of the counters by number; '': no such counter.

    Counts before the first reading of a core, or while records were lost, are not known. A count can be below 0 if a
    reading was interrupted by another one: together with the next count it is right.
    """
    events = decoded.events
    at = events[np.isin(events["kind"], [CODE["counter"], CODE["lost"]]) & (events["cpu"] != NO_CPU)]
    # They come in time order; readings of a core stay together.
    at = at[np.argsort(at["cpu"], kind="stable")]
    cpu, ts = at["cpu"].astype(np.int64), at["ts"].astype(np.int64)
    reads = (at["kind"] == CODE["counter"]) & (at["a"] == 0)
    begins = reads | (at["kind"] == CODE["lost"])
    # For each row, its reading and the previous one on that core.
    boundary = np.flatnonzero(begins)
    of = np.searchsorted(boundary, np.arange(len(at)), "right") - 1
    last = boundary[np.maximum(of - 1, 0)]
    known = (at["kind"] == CODE["counter"]) & (of > 0)
    known &= reads[last] & (cpu[last] == cpu)
    ledger.add(
        "counter_readings_after_losses",
        int(np.count_nonzero((at["kind"] == CODE["counter"]) & (at["a"] == 0) & (of > 0) & ~reads[last])),
    )
    number, count = at["a"], at["b"]
    known &= (number >= 0) & (number < len(names)) & (count != 0) & (ts > ts[last])
    name = np.append(np.array(list(names), object), "")[np.where(known, number, -1)]
    known &= name != ""
    rows = pd.DataFrame({
        "cpu": cpu[known], "start_ns": ts[last][known], "end_ns": ts[known], "counter": name[known], "count": count[known],
    })  # fmt: skip
    rows = rows.sort_values(["cpu", "start_ns", "counter"], kind="stable", ignore_index=True)
    return schema.conform("counters", pa.Table.from_pandas(rows, preserve_index=False))
