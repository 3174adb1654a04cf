# SPDX-License-Identifier: GPL-2.0-only
"""Which calls of a lifetime are drawn, and on which level: reduces deep stacks to a readable height.

With Intel PT a lifetime has tens of thousands of calls, fifty deep; most of them are narrower than a line and
many do nothing but call the next one. Calls that are too narrow are left out (and counted); a function that spends nearly
all of its time in one callee shares a box with it, named ``caller > callee``. Contexts (threads, system calls,
interrupts) and anomalous calls always keep a separate box.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

NARROWEST = 0.0012  # share of the lifetime: about one point of a figure as wide as a page
WRAPPER = 0.9  # share of a function's time in one callee, from which the two share a box
LEVELS = 18  # maximum number drawn for a core
MOST = 1500  # maximum number of boxes drawn for a core


@dataclass
class Box:
    """A drawn call: row numbers of the calls that it represents (callers first) and its level, 0 at the bottom."""

    calls: list[int]
    level: int


def fold(calls: pd.DataFrame, span_ns: int, red: npt.NDArray[np.bool_]) -> tuple[list[Box], int]:
    """Boxes for ``calls`` (one core, callers before callees, ``begin`` and ``end`` in ns, ``red``: anomalous).

    Also returns how many calls are not drawn: too narrow, or deeper than ``LEVELS``.
    """
    begin, end = calls["begin"].to_numpy(np.int64), calls["end"].to_numpy(np.int64)
    length = end - begin
    plain = (calls["kind"] == "function").to_numpy(bool)
    wide = length >= max(span_ns * NARROWEST, 1)
    if wide.sum() > MOST:
        wide &= length >= np.partition(length, -MOST)[-MOST]
    kept = np.flatnonzero(wide | red)
    parents = _parents(calls, kept)
    children: dict[int, list[int]] = {}
    for i in kept.tolist():
        children.setdefault(parents[i], []).append(i)

    boxes: list[Box] = []
    n_deep = 0
    todo = [(i, 0) for i in reversed(children.get(-1, []))]
    while todo:
        i, level = todo.pop()
        box = Box([i], level)
        while True:
            inside = children.get(i, [])
            if len(inside) != 1 or red[i] or red[inside[0]] or not (plain[i] and plain[inside[0]]):
                break
            if length[inside[0]] < WRAPPER * length[i]:
                break
            i = inside[0]
            box.calls.append(i)
        if level < LEVELS:
            boxes.append(box)
        else:
            n_deep += len(box.calls)
        todo += [(child, level + 1) for child in reversed(children.get(i, []))]
    return boxes, len(calls) - len(kept) + n_deep


def _parents(calls: pd.DataFrame, kept: npt.NDArray[np.int64]) -> dict[int, int]:
    """For each kept row, the nearest caller that is also kept, -1 at the top."""
    place = {int(number): i for i, number in enumerate(calls["call_id"].to_numpy(np.int64))}
    parent = [place.get(int(number), -1) for number in calls["parent_id"].to_numpy(np.int64)]
    is_kept = set(kept.tolist())
    found = {}
    for i in kept.tolist():
        above = parent[i]
        while above >= 0 and above not in is_kept:
            above = parent[above]
        found[i] = above
    return found
