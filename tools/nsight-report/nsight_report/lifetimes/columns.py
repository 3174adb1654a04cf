# SPDX-License-Identifier: GPL-2.0-only
"""The ``events`` table as numpy arrays, with addresses turned into endpoint numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from .. import schema
from ..losses import Ledger

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
TCP, UDP = 6, 17
_ANY = frozenset({"0.0.0.0", "::"})  # noqa: S104 (no socket is bound here)
NONE = -1  # a time, row or number that is not known; no stamp is negative


@dataclass(frozen=True)
class Vocabulary:
    """What the numbers in ``Events`` stand for."""

    comms: list[str]
    addresses: list[str]
    namespaces: npt.NDArray[np.uint32]
    endpoint_address: I64  # endpoint -> index into addresses
    endpoint_port: I64


@dataclass(frozen=True)
class Events:
    """Events as arrays of one length, in the order of ``ts``.

    ``kind`` is the ASCII code of the letter; ``local`` and ``remote`` are endpoints (address and
    port), ``netns`` an index, ``call`` is NONE where the system call is not known.
    """

    kind: npt.NDArray[np.uint8]
    ts: I64
    cpu: I64
    pid: I64
    tid: I64
    comm: I64
    fd: I64
    call: I64
    sk: npt.NDArray[np.uint64]
    netns: I64
    proto: I64
    local: I64
    remote: I64
    lport: I64
    rport: I64
    seq: I64
    length: I64
    hw: I64
    sw: I64
    ifindex: I64
    flags: I64

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, rows: npt.NDArray[Any]) -> Events:
        """The given rows (indices or mask), in that order."""
        return Events(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def of(self, letters: str) -> Bool:
        """Mask of the rows whose kind is one of ``letters``."""
        return np.asarray(np.isin(self.kind, np.frombuffer(letters.encode(), np.uint8)))


def load(table: pa.Table, ledger: Ledger) -> tuple[Events, Vocabulary]:
    """Arrays of an ``events`` table; events recorded twice are left out and counted."""
    table = schema.conform("events", table)
    kinds, kind_names = _codes(table["kind"])
    letters = np.array([ord(name[:1] or "?") for name in kind_names] or [0], np.uint8)
    comms, comm_names = _codes(table["comm"])
    address, names = _joint_codes(table["laddr"], table["raddr"])
    numbers = {
        name: table[name].to_numpy()
        for name in table.column_names
        if pa.types.is_integer(table[name].type) and name != "call_ns"
    }
    n_rows = table.num_rows
    local = address[:n_rows] << 16 | numbers["lport"]
    remote = _apart(address, numbers, names) << 16 | numbers["rport"]
    endpoint, distinct = pd.factorize(np.concatenate((local, remote)))
    n_names = max(len(names), 1)
    netns, namespaces = pd.factorize(numbers["netns"])
    wide = {
        name: numbers[name].astype(np.int64)
        for name in ("cpu", "pid", "tid", "fd", "proto", "lport", "rport")
    }
    events = Events(
        kind=letters[kinds] if n_rows else np.zeros(0, np.uint8),
        ts=numbers["ts_ns"],
        cpu=wide["cpu"],
        pid=wide["pid"],
        tid=wide["tid"],
        comm=comms,
        fd=wide["fd"],
        call=table["call_ns"].fill_null(NONE).to_numpy(),
        sk=numbers["sk"],
        netns=netns.astype(np.int64),
        proto=wide["proto"],
        local=endpoint[:n_rows].astype(np.int64),
        remote=endpoint[n_rows:].astype(np.int64),
        lport=wide["lport"],
        rport=wide["rport"],
        seq=numbers["seq"],
        length=numbers["len"],
        hw=numbers["hw_stamp"],
        sw=numbers["sw_stamp"],
        ifindex=numbers["ifindex"].astype(np.int64),
        flags=numbers["flags"],
    )
    order = np.argsort(events.ts, kind="stable")
    twice = _recorded_twice(events.take(order))
    ledger.add(
        "events recorded twice",
        int(np.count_nonzero(twice)),
        "warning",
        "identical in every field; one copy was kept",
        "run one recording at a time",
    )
    events = events.take(order[~twice])
    return events, Vocabulary(
        comm_names, names, np.asarray(namespaces), (distinct >> 16) % n_names, distinct & 0xFFFF
    )


def _apart(address: I64, numbers: dict[str, npt.NDArray[Any]], names: list[str]) -> I64:
    """Codes of the peers' addresses; connections of unknown addresses have one for each socket.

    An event of a connected socket with the any-address on both sides comes from a recording that does not
    tell addresses. Their ports alone would join the connections of two clients. Modulo the number of names the
    code is that of the name.
    """
    n_rows = len(address) // 2
    remote = address[n_rows:]
    any_address = np.array([name in _ANY for name in names] or [False])
    unknown = any_address[address[:n_rows]] & any_address[remote] & (numbers["rport"] != 0)
    if not unknown.any():
        return remote
    socket, _ = pd.factorize(numbers["sk"][unknown])
    apart = remote.copy()
    apart[unknown] += (socket + 1) * len(names)
    return apart


def _recorded_twice(events: Events) -> Bool:
    """Rows that repeat another row in every field. Only rows that share a time can."""
    twice = np.zeros(len(events), dtype=bool)
    same = np.flatnonzero(np.diff(events.ts) == 0)
    rows = np.unique(np.concatenate((same, same + 1)))
    if len(rows):
        part = events.take(rows)
        frame = pd.DataFrame({f.name: getattr(part, f.name) for f in fields(part)})
        twice[rows] = frame.duplicated().to_numpy()
    return twice


def _codes(column: pa.ChunkedArray) -> tuple[I64, list[str]]:
    array = pa.concat_arrays(column.unify_dictionaries().chunks) if column.num_chunks else None
    if array is None:
        return np.zeros(0, np.int64), []
    return array.indices.to_numpy(zero_copy_only=False).astype(np.int64), array.dictionary.to_pylist()


def _joint_codes(*columns: pa.ChunkedArray) -> tuple[I64, list[str]]:
    """Codes of several text columns, one after the other, in one common vocabulary."""
    vocabulary: dict[str, int] = {}
    parts = []
    for column in columns:
        codes, values = _codes(column)
        joint = np.array([vocabulary.setdefault(v, len(vocabulary)) for v in values] or [0], np.int64)
        parts.append(joint[codes])
    return np.concatenate(parts), list(vocabulary)
