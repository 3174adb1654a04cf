# SPDX-License-Identifier: GPL-2.0-only
"""Read edge streams (Documentation/formats.md) into arrays."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

MAGIC = b"NSEDGE01"
KINDS = (
    "",
    "call",
    "return",
    "syscall",
    "sysret",
    "interrupt",
    "iret",
    "trace begin",
    "trace end",
    "tail call",
    "software interrupt",
)
EDGE = (
    ("time", "<u8"),
    ("from", "<u8"),
    ("to", "<u8"),
    ("pid", "<i4"),
    ("tid", "<i4"),
    ("cpu", "<i4"),
    ("from_sym", "<u4"),
    ("to_sym", "<u4"),
    ("kind", "u1"),
)
EVENT = (("time", "<u8"), ("cpu", "<i4"), ("pid", "<i4"), ("tid", "<i4"), ("code", "<u4"), ("value", "<u8"))
_EDGES, _SYMBOLS, _EVENTS = 1, 2, 3


@dataclass(frozen=True)
class Stream:
    """``edges`` and ``events``: structured arrays in file order; ``symbols``: (symbol, dso) by id, 0 the unknown one."""

    edges: npt.NDArray[np.void]
    events: npt.NDArray[np.void]
    symbols: list[tuple[str, str]]


def _columns(payload: bytes, n: int, layout: tuple[tuple[str, str], ...]) -> npt.NDArray[np.void]:
    rows = np.empty(n, np.dtype(list(layout)))
    at = 0
    for name, kind in layout:
        rows[name] = np.frombuffer(payload, kind, n, at)
        at += n * np.dtype(kind).itemsize
    return rows


def read(path: Path) -> Stream:
    """A whole stream."""
    data = path.read_bytes()
    assert data.startswith(MAGIC)
    at = len(MAGIC)
    edges, events, symbols = [], [], []
    while at < len(data):
        kind, n, size = struct.unpack_from("<IIQ", data, at)
        payload = data[at + 16 : at + 16 + size]
        at += 16 + size
        if kind == _EDGES:
            edges.append(_columns(payload, n, EDGE))
        elif kind == _EVENTS:
            events.append(_columns(payload, n, EVENT))
        elif kind == _SYMBOLS:
            words = payload.decode(errors="replace").split("\0")
            symbols += [(words[2 * i], words[2 * i + 1]) for i in range(n)]
    return Stream(
        np.concatenate(edges) if edges else np.empty(0, np.dtype(list(EDGE))),
        np.concatenate(events) if events else np.empty(0, np.dtype(list(EVENT))),
        symbols,
    )
