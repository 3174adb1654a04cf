# SPDX-License-Identifier: GPL-2.0-only
"""Table ``page_faults`` in mode tracepoints: the kernel tells when a page fault begins, and not when it ends.

A fault takes at least as long as one of the smallest kind does on the same machine, unless something else is recorded of its core
before: the recorder measures that before it begins (``manifest.page_fault_ns``).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..capture.perf_data import CODE, Decoded
from ..losses import Ledger
from ..tables import schema

#: No fault that waits for nothing takes longer; a manifest that says so is none of the recorder's.
LONGEST_NS = 100_000


def table(decoded: Decoded, takes_ns: object, ledger: Ledger) -> pa.Table:
    """Faults in order of core and time; none where nothing tells what one takes."""
    events = decoded.events
    kind = events["kind"]
    at = np.flatnonzero((kind == CODE["page_fault_user"]) | (kind == CODE["page_fault_kernel"]))
    if not isinstance(takes_ns, int) or not 0 < takes_ns <= LONGEST_NS:
        ledger.add("page_faults_without_length", len(at))
        return schema.empty("page_faults")
    ledger.add("page_fault_ends_inferred", len(at), takes_ns=takes_ns)
    cpu, start = events["cpu"][at].astype(np.int32), events["ts"][at].astype(np.int64)
    end = start + takes_ns
    # A recording has far more events than faults: of the others nothing is copied but their cores.
    cores = np.ascontiguousarray(events["cpu"])
    for core in np.unique(cpu):
        mine, every = np.flatnonzero(cpu == core), np.flatnonzero(cores == core)
        following = np.searchsorted(every, at[mine], "right")
        known = following < len(every)
        until = events["ts"][every[following[known]]].astype(np.int64)
        end[mine[known]] = np.minimum(end[mine[known]], until)
    order = np.lexsort((start, cpu))
    order = order[end[order] > start[order]]
    columns = {"cpu": cpu[order], "start_ns": start[order], "end_ns": end[order]}
    return schema.conform("page_faults", pa.table(columns))
