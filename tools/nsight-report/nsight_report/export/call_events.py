# SPDX-License-Identifier: GPL-2.0-only
"""Calls as begin and end events in the order that trace readers expect."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

Ints = npt.NDArray[np.int64]
_DEPTHS = 1 << 20  # more than any stack has


@dataclass(frozen=True)
class Events:
    """Begins and ends of one core: ``row`` is that of the piece that contains the event; the ends of earlier pieces have -1."""

    row: Ints
    ns: Ints
    is_begin: npt.NDArray[np.bool_]


class Nesting:
    """Turns calls of one core, piece after piece in table order, into events.

    Times alone are not sufficient: many calls share one, and some have no duration. A call ends before the next one of the
    same or a smaller depth begins.
    """

    def __init__(self) -> None:
        self._depth = np.empty(0, np.int64)  # calls that are still open
        self._end = np.empty(0, np.int64)

    def piece(self, depth: Ints, start: Ints, dur: Ints) -> Events:
        """Events up to the begin of the piece's last call."""
        n_open = len(self._depth)
        depth = np.concatenate([self._depth, depth])
        end = np.concatenate([self._end, start + dur])
        following = _next_not_deeper(depth)
        closed = np.flatnonzero(following < len(depth))
        begun = np.arange(n_open, len(depth))
        # Before the begin of `following`, the deepest first.
        order = np.argsort(
            np.concatenate([begun * _DEPTHS, following[closed] * _DEPTHS - 1 - depth[closed]]), kind="stable"
        )
        row = np.concatenate([begun, closed])[order] - n_open
        ns = np.concatenate([start, end[closed]])[order]
        still = np.flatnonzero(following == len(depth))
        self._depth, self._end = depth[still], end[still]
        return Events(np.maximum(row, -1), ns, order < len(begun))

    def rest(self) -> Events:
        """The ends of the calls that are still open."""
        ns = self._end[::-1].copy()
        self.__init__()  # type: ignore[misc]
        return Events(np.full(len(ns), -1, np.int64), ns, np.zeros(len(ns), bool))


def _next_not_deeper(depth: Ints) -> Ints:
    """For each call, the next one of the same or a smaller depth; the number of calls if there is none."""
    found = np.full(len(depth), len(depth), np.int64)
    for level in np.unique(depth):
        at = np.flatnonzero(depth <= level)
        own = np.flatnonzero(depth[at] == level)
        following = np.append(at[1:], len(depth))
        found[at[own]] = following[own]
    return found


def names(calls: pd.DataFrame) -> tuple[npt.NDArray[np.int64], list[tuple[str, str]]]:
    """For each call, the index of its displayed (category, name) in the list."""
    columns = ["kind", "symbol", "before", "gap_cause"]
    coded = [pd.factorize(calls[c].astype("category").cat.codes) for c in columns]
    whole = np.zeros(len(calls), np.int64)
    for codes, seen in coded:
        whole = whole * (len(seen) + 1) + codes
    _values, first, which = np.unique(whole, return_index=True, return_inverse=True)
    rows = calls[columns].iloc[first].astype(str)
    return which.reshape(-1), [_name(*row) for row in rows.itertuples(index=False)]


def _name(kind: str, symbol: str, before: str, cause: str) -> tuple[str, str]:
    after = f" after {before}" if before else ""
    if kind == "gap":
        return kind, f"gap: {cause or 'not recorded'}{after}"
    if kind == "stall":
        return kind, f"stall: {cause}{after}"
    return kind, symbol or f"({kind})"


def uncertain(calls: pd.DataFrame) -> npt.NDArray[np.object_]:
    """What is not measured about each call's ends, as words; '' if both are measured."""
    start, end = calls["start_known"].astype(str), calls["end_known"].astype(str)
    begin_note = np.where(start == "measured", "", "begin " + start)
    end_note = np.where(end == "measured", "", "end " + end)
    both = (begin_note != "") & (end_note != "")
    return np.where(both, begin_note + ", " + end_note, begin_note + end_note).astype(object)
