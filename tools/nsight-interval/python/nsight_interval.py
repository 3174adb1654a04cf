# SPDX-License-Identifier: GPL-2.0-only
"""Marks of intervals in Python programs: what nsight-record --interval records.

    import nsight_interval

    ORDER = nsight_interval.Interval("order")
    print(ORDER.where)                     # order=usdt:/.../slots.so:nsight:slot0_begin..slot0_end

    with ORDER:
        match(order)

As long as nobody listens, entering and leaving is a look at a counter in memory. Up to eight intervals have a mark; a begin and
an end belong together by their thread. Where the library was not built (make -C tools/nsight-interval), nothing is marked.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

LIBRARY = Path(__file__).resolve().with_name("slots.so")
N_SLOTS = 8


class _Slot(ctypes.Structure):
    _fields_ = [
        ("listeners", ctypes.POINTER(ctypes.c_ushort)),
        # Functions that keep the interpreter lock: another thread would take it for up to 5 ms, inside what is measured.
        ("begin", ctypes.PYFUNCTYPE(None)),
        ("end", ctypes.PYFUNCTYPE(None)),
    ]


def _slots() -> list[_Slot]:
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError:
        return []
    return list((_Slot * N_SLOTS).in_dll(library, "nsight_slots"))


_free = _slots()


class Interval:
    """One kind of intervals, by name. ``where``: what nsight-record --interval takes; empty where there is no mark left."""

    def __init__(self, name: str) -> None:
        self.name, self.where = name, ""
        self._listeners: ctypes.c_ushort = ctypes.c_ushort(0)
        self._begin: Callable[[], None] | None = None
        self._end: Callable[[], None] | None = None
        if _free:
            number, slot = N_SLOTS - len(_free), _free.pop(0)
            self._listeners, self._begin, self._end = slot.listeners.contents, slot.begin, slot.end
            self.where = f"{name}=usdt:{LIBRARY}:nsight:slot{number}_begin..slot{number}_end"

    def __enter__(self) -> Interval:
        if self._listeners.value and self._begin:
            self._begin()
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._listeners.value and self._end:
            self._end()
