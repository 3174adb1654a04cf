# SPDX-License-Identifier: GPL-2.0-only
"""Table ``frequencies``: the frequency of each core, and from when on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..capture.perf_data import CODE, Decoded
from ..losses import Ledger
from ..tables import schema

#: Unit of a core:bus ratio of Intel PT (Intel SDM, MSR_PLATFORM_INFO: since Sandy Bridge).
BUS_KHZ = 100_000
MAX_KHZ = 1 << 31


def of_events(decoded: Decoded, at_start: Mapping[str, Any], ledger: Ledger) -> pa.Table:
    """From the kernel's events. ``at_start``: kHz of each core (by its number as text) when the recording began.

    ``at_start`` is used only if the kernel reported some change: otherwise the hardware may have changed the frequency by itself.
    """
    events = decoded.events[decoded.events["kind"] == CODE["cpu_frequency"]]
    cpu, start, khz = events["cpu"].astype(np.int64), events["ts"].astype(np.int64), events["a"]
    if not len(events):
        return schema.empty("frequencies")
    known = [
        (int(core), value)
        for core, value in at_start.items()
        if core.isdecimal() and len(core) < 6 and isinstance(value, int) and 0 < value < MAX_KHZ
    ]
    cores, values = np.array(known, np.int64).reshape(-1, 2).T
    begin = np.append(np.zeros(len(cores), np.int64), start)
    return _table(np.append(cores, cpu), begin, np.append(values, khz), ledger)


def packets(calls: pa.Table) -> pa.Table:
    """Rows of ``calls`` that are packets with a core's ratio: (cpu, start_ns, arg)."""
    rows = calls.filter(pc.equal(calls["kind"].cast(pa.string()), "frequency"))
    return rows.select(["cpu", "start_ns", "arg"])


def of_packets(found: Sequence[pa.Table], ledger: Ledger) -> pa.Table:
    """From ``packets`` of Intel PT, of all cores and threads."""
    if not found:
        return schema.empty("frequencies")
    rows = pa.concat_tables(found)
    cpu, start, ratio = (rows[name].to_numpy().astype(np.int64) for name in ("cpu", "start_ns", "arg"))
    # A ratio is one byte.
    return _table(cpu, start, np.clip(ratio, 0, 1 << 16) * BUS_KHZ, ledger)


def _table(cpu: Any, start: Any, khz: Any, ledger: Ledger) -> pa.Table:
    """Rows in order; rows that repeat the core's previous frequency, or are no frequency, are left out."""
    good = (khz > 0) & (khz < MAX_KHZ)
    ledger.add("frequencies_rejected", int((~good).sum()))
    cpu, start, khz = cpu[good], start[good], khz[good]
    order = np.lexsort((start, cpu))
    cpu, start, khz = cpu[order], start[order], khz[order]
    new = np.append(True, (np.diff(cpu) != 0) | (np.diff(khz) != 0))[: len(cpu)]
    table = pa.table({"cpu": cpu[new].astype(np.int32), "start_ns": start[new], "khz": khz[new]})
    return schema.conform("frequencies", table)
