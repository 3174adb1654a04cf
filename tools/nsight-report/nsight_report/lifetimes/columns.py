# SPDX-License-Identifier: GPL-2.0-only
"""Events as numpy arrays, with addresses turned into endpoint numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..losses import Ledger

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]
TCP, UDP = 6, 17
NONE = -1  # a time, row or number that is not known; no timestamp is negative
GUEST = "a"  # a TCP arrival in the part of datagrams; its own part has it as A


@dataclass(frozen=True)
class Vocabulary:
    """What the numbers in ``Events`` stand for."""

    comms: list[str]
    addresses: list[str]
    namespaces: npt.NDArray[np.uint32]
    endpoint_address: I64  # endpoint -> index into addresses
    endpoint_port: I64
    endpoint_rank: (
        I64  # in the order in which endpoints come as local, then endpoints that only come as remote
    )


@dataclass(frozen=True)
class Events:
    """Events as arrays of one length, in the order of ``ts``.

    ``kind`` is the ASCII code of the letter; ``local`` and ``remote`` are endpoints (address and
    port), ``netns`` an index, ``call`` is NONE if the system call is not known. ``base``: for TCP the number of
    (namespace, local, remote) by first event, else NONE.
    """

    kind: npt.NDArray[np.uint8]
    ts: I64
    cpu: I32
    pid: I32
    tid: I32
    comm: I32
    fd: I32
    call: I64
    sk: npt.NDArray[np.uint64]
    netns: I32
    proto: npt.NDArray[np.uint8]
    local: I32
    remote: I32
    lport: I32
    rport: I32
    seq: I64
    length: I32
    hw: I64
    sw: I64
    ifindex: I32
    flags: I64
    base: I32

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, rows: npt.NDArray[Any]) -> Events:
        """The given rows (indices or mask), in that order."""
        return Events(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def of(self, letters: str) -> Bool:
        """Mask of the rows whose kind is one of ``letters``."""
        return np.asarray(np.isin(self.kind, np.frombuffer(letters.encode(), np.uint8)))


#: The types of the arrays of ``Events``.
FIELDS: Mapping[str, npt.DTypeLike] = dict.fromkeys((f.name for f in fields(Events)), np.int32) | {
    "kind": np.uint8,
    "proto": np.uint8,
    "sk": np.uint64,
    **dict.fromkeys(("ts", "call", "seq", "hw", "sw", "flags"), np.int64),
}


def once(events: Events, ledger: Ledger) -> Events:
    """Events without duplicates; the duplicates are counted."""
    twice = _recorded_twice(events)
    ledger.add("events_recorded_twice", int(np.count_nonzero(twice & (events.kind != ord(GUEST)))))
    return events.take(~twice) if twice.any() else events


def _recorded_twice(events: Events) -> Bool:
    """Rows that repeat another row in every field. Only rows with equal times can."""
    twice = np.zeros(len(events), dtype=bool)
    same = np.flatnonzero(np.diff(events.ts) == 0)
    rows = np.unique(np.concatenate((same, same + 1)))
    if len(rows):
        part = events.take(rows)
        frame = pd.DataFrame({f.name: getattr(part, f.name) for f in fields(part)})
        twice[rows] = frame.duplicated().to_numpy()
    return twice
