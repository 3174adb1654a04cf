# SPDX-License-Identifier: GPL-2.0-only
"""Table ``page_faults`` in mode tracepoints: the kernel tells when a page fault begins, and not when it ends.

A fault takes at least as long as one of the smallest kind does on the same machine, unless something else is recorded of its core
before: the recorder measures that before it begins (``manifest.page_fault_ns``).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..capture.perf_data import CODE, Decoded
from ..tables import schema

#: No fault that waits for nothing takes longer; a manifest that says so is none of the recorder's.
LONGEST_NS = 100_000


def table(decoded: Decoded, takes_ns: object) -> pa.Table:
    """Faults in order of core and time; none where nothing tells what one takes."""
    if not isinstance(takes_ns, int) or not 0 < takes_ns <= LONGEST_NS:
        return schema.empty("page_faults")
    events = decoded.events
    of_cores = events[events["cpu"] != np.iinfo(np.uint16).max]
    of_cores = of_cores[np.argsort(of_cores["cpu"], kind="stable")]
    cpu, start = of_cores["cpu"].astype(np.int32), of_cores["ts"].astype(np.int64)
    end = start + takes_ns
    same = cpu[1:] == cpu[:-1]
    end[:-1][same] = np.minimum(end[:-1][same], start[1:][same])
    fault = np.isin(of_cores["kind"], [CODE["page_fault_user"], CODE["page_fault_kernel"]]) & (end > start)
    columns = {"cpu": cpu[fault], "start_ns": start[fault], "end_ns": end[fault]}
    return schema.conform("page_faults", pa.table(columns))
