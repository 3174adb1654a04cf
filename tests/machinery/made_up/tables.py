# SPDX-License-Identifier: GPL-2.0-only
"""Tables of the schema from a few rows, or from columns. Missing values are null, or 0, "" and False where null is not allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
from nsight_report.tables import schema

Row = dict[str, Any]

#: The application thread of the rows below, which runs on core 1; core 0 receives.
PID = TID = 100


def table(name: str, rows: Sequence[Row] | Mapping[str, Any] | pd.DataFrame) -> pa.Table:
    """Rows, or columns of equal length, as table ``name``. ValueError: a column that the table does not have."""
    spec = schema.TABLES[name].arrow()
    keys = {key for row in rows for key in row} if isinstance(rows, Sequence) else set(rows)
    if unknown := keys - set(spec.names):
        raise ValueError(f"table {name} has no {', '.join(sorted(unknown))}")
    if isinstance(rows, Sequence):
        rows = {key: [row.get(key, _nothing(spec.field(key))) for row in rows] for key in keys}
    given = {f.name: _array(rows[f.name], f.type) for f in spec if f.name in rows}
    n = len(next(iter(given.values()))) if given else 0
    arrays = {f.name: given[f.name] if f.name in given else _array([_nothing(f)] * n, f.type) for f in spec}
    return schema.conform(name, pa.table(arrays))


def _array(values: Any, type_: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(type_):
        type_ = None if isinstance(getattr(values, "dtype", None), pd.CategoricalDtype) else type_.value_type
    return pa.array(values, type_, from_pandas=True)


def _nothing(field: pa.Field) -> object:
    plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if field.nullable:
        return None
    return "" if pa.types.is_string(plain) else False if pa.types.is_boolean(plain) else 0


def message(i: int, nic: int, handoff: int, read: int, **over: object) -> Row:
    """One rx message; arrival 100 ns before the hand-off, the read call 200 ns before it returns."""
    return {
        "message_id": i, "direction": "rx", "conn_id": i % 4, "proto": 6, "netns": 1,
        "laddr": "10.0.0.1", "lport": 11211, "raddr": "10.0.0.2", "rport": 40000 + i % 4,
        "byte_start": i, "byte_end": i + 1, "nbytes": 1,
        "first_ns": nic, "last_ns": read, "latency_ns": read - nic, "nic_ns": nic, "nic_source": "peer_xmit", "nic_error_ns": 0,
        "arrival_ns": handoff - 100, "arrival_last_ns": handoff - 100, "recv_cpu": 0,
        "handoff_ns": handoff, "handoff_cpu": 0, "call_ns": read - 200, "app_ns": read, "app_cpu": 1,
        "driver_ns": None, "completion_ns": None, "pid": PID, "tid": TID, "comm": "server", "fd": 5,
        "n_arrivals": 1, "n_reads": 1, "n_in_read": 1, "retransmitted": False, "copy_lost": False, "timestamps": "nahr", **over,
    }  # fmt: skip


def context(cpu: int, start: int, end: int, kind: str, symbol: str, tid: int, comm: str) -> Row:
    """What one core was in, outside of any recorded call."""
    return {
        "cpu": cpu, "start_ns": start, "end_ns": end, "kind": kind, "symbol": symbol,
        "pid": tid, "tid": tid, "comm": comm, "call_id": -1,
    }  # fmt: skip


def state(start: int, end: int, name: str, cpu: int = 1, tid: int = TID) -> Row:
    """One state of the thread."""
    return {
        "tid": tid, "pid": tid, "comm": "server", "start_ns": start, "end_ns": end, "state": name,
        "cpu": cpu, "waker_tid": -1,
    }  # fmt: skip


def call(kind: str, symbol: str, cpu: int, tid: int, start: int, end: int, **over: object) -> Row:
    """One call at the top of its core, whose begin and end were measured."""
    return {
        "call_id": 0, "parent_id": -1, "depth": 0, "kind": kind, "symbol": symbol, "cpu": cpu, "pid": tid, "tid": tid,
        "start_ns": start, "dur_ns": end - start, "self_ns": end - start,
        "start_known": "measured", "end_known": "measured", **over,
    }  # fmt: skip


def syscall(tid: int, start: int, end: int, name: str, cpu: int = 1) -> Row:
    """One system call, in its thread."""
    return call("syscall", name, cpu, tid, start, end, depth=1)
