# SPDX-License-Identifier: GPL-2.0-only
"""Segments of a NIC's clock, from readings between two readings of CLOCK_REALTIME."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..losses import Ledger
from . import brackets
from .clock_readings import Brackets
from .convert import ClockMap
from .segments import Segments, empty


def build(b: Brackets, domain: str, clock_map: pa.Table, ledger: Ledger) -> Segments:
    """Segments of ``domain`` from readings whose bracket is in realtime.

    The bracket is converted to TSC with ``clock_map``; the error there widens that of the reading.
    """
    known = ClockMap(clock_map)
    if "realtime" not in known.domains:
        ledger.add("phc_reading_without_realtime_map", len(b), domain=domain)
        return empty()
    before, e1, ok1 = known.convert_masked(b.before, "realtime", "tsc")
    after, e2, ok2 = known.convert_masked(b.after, "realtime", "tsc")
    ok = ok1 & ok2
    ledger.add("phc_reading_outside_clock_map", int(np.count_nonzero(~ok)), domain=domain)
    kept = Brackets(before[ok], b.ns[ok], after[ok])
    # The kernel's reading of realtime is a whole ns: the TSC found for it is the first of that ns.
    return brackets.build(kept, domain, "phc", ledger, extra_ns=np.maximum(e1, e2)[ok] + 1)
