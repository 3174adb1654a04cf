# SPDX-License-Identifier: GPL-2.0-only
"""What each message spent its lifetime in, function by function: the calls within its own contexts by call path.

A path begins in the context that the function was called in (a system call, an interrupt, the thread's own code)
and goes on through its callers. Functions that a thread had entered before anything was recorded are
left out of paths: an event loop is in no path, what it calls for a message is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.util import hash_array

from ..calls.innermost import nearest, stretches
from .intervals import Int, overlaps
from .windows import column

Words = npt.NDArray[np.object_]

#: Kinds of calls that are no functions: a path begins with them.
ROOTS = ("thread", "idle", "syscall", "softirq", "hardirq", "exception", "gap")
#: Rows without length that say nothing of time.
MARKS = ("ptwrite", "power", "frequency")

# Odd constants of the splitmix64 generator.
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@dataclass(frozen=True)
class FunctionNames:
    """What functions and stalls are called, and a number for each combination."""

    symbols: Words
    dsos: Words
    befores: Words

    def code(self, symbol: Int, dso: Int, before: Int) -> Int:
        """Numbers of combinations; ``before`` -1: none."""
        return (symbol * len(self.dsos) + dso) * (len(self.befores) + 1) + before + 1

    def digest(self, code: Int) -> npt.NDArray[np.uint64]:
        """Numbers that are the same for the same texts in every trace."""
        unique, at = np.unique(code, return_inverse=True)
        digest = np.zeros(len(unique), np.uint64)
        for words in self.of(unique):
            digest = _mix(digest, hash_array(words, categorize=False))
        return digest[at.reshape(-1)]

    def of(self, code: Int) -> tuple[Words, Words, Words]:
        """Symbol, object, and what came before a stall ('' for functions)."""
        rest, before = np.divmod(code, len(self.befores) + 1)
        symbol, dso = np.divmod(rest, len(self.dsos))
        return self.symbols[symbol], self.dsos[dso], np.append("", self.befores)[before]


@dataclass(frozen=True)
class Trace:
    """Calls in the order of the table, as arrays; ``parent`` is a place in them or -1.

    ``name``: what a path calls it, by ``names``;
    ``is_root``: a context; ``is_base``: entered before anything was recorded.
    """

    cpu: Int
    start: Int
    end: Int
    parent: Int
    name: Int
    is_root: npt.NDArray[np.bool_]
    is_base: npt.NDArray[np.bool_]
    names: FunctionNames

    @staticmethod
    def build(calls: pd.DataFrame, contexts: pd.DataFrame) -> Trace:
        """From the tables ``calls`` and ``contexts``, which say what is a context: of softirqs calls have the function."""
        calls = _without_marks(calls)
        kind = calls["kind"].astype("category").cat
        kinds = kind.codes.to_numpy()

        def of_kind(*wanted: str) -> npt.NDArray[np.bool_]:
            return np.isin(kinds, [n for n, k in enumerate(kind.categories) if k in wanted])

        start, ids, parent = (column(calls[c]) for c in ("start_ns", "call_id", "parent_id"))
        symbol, dso, before = (calls[c].astype("category").cat for c in ("symbol", "dso", "before"))
        names = FunctionNames(*(c.categories.to_numpy(object) for c in (symbol, dso, before)))
        codes = [c.codes.to_numpy().astype(np.int64) for c in (symbol, dso, before)]
        codes[2][~of_kind("stall")] = -1
        is_root = of_kind(*ROOTS)
        inner = column(contexts["call_id"])
        is_root[np.searchsorted(ids, inner[(inner >= 0) & (inner <= ids.max(initial=-1))])] = True
        return Trace(
            column(calls["cpu"]),
            start,
            start + column(calls["dur_ns"]),
            np.where(parent < 0, -1, np.searchsorted(ids, parent)),
            names.code(*codes),
            is_root,
            ~is_root & (calls["start_known"] == "missing").to_numpy(bool),
            names,
        )

    def within(self, cpu: Int, start: Int, end: Int) -> Int:
        """Places of the calls that overlap any of the stretches; with them come their callers."""
        hit = np.zeros(len(self.cpu), bool)
        for core in np.unique(cpu[cpu >= 0]):
            low, high = _union(start[cpu == core], end[cpu == core])
            rows = np.flatnonzero(self.cpu == core)
            at = np.searchsorted(high, self.start[rows], "right")
            known = at < len(low)
            hit[rows[known]] = low[at[known]] < self.end[rows[known]]
        return np.flatnonzero(hit)


def _without_marks(calls: pd.DataFrame) -> pd.DataFrame:
    marks = calls["kind"].isin(MARKS)
    return calls[~marks] if marks.any() else calls


def _union(start: Int, end: Int) -> tuple[Int, Int]:
    """Overlapping stretches joined, in order."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    new = np.append(True, start[1:] > end[:-1])
    return start[new], end[np.append(np.flatnonzero(new)[1:] - 1, len(end) - 1)]


@dataclass(frozen=True)
class Paths:
    """Call paths: ``up`` is the path of the caller, -1 for the function that the context called first.

    ``digest``: in ascending order; that of the same path is the same in every trace.
    """

    up: Int
    name: Int
    depth: Int
    digest: npt.NDArray[np.uint64]

    def translate(self, nodes: Nodes, paths: Paths) -> Nodes:
        """``nodes`` of other ``paths`` with the numbers of these; those that these lack are left out."""
        at = np.minimum(np.searchsorted(self.digest, paths.digest), max(len(self.digest) - 1, 0))
        same = self.digest[at] == paths.digest if len(self.digest) else np.zeros(len(at), bool)
        path = np.append(np.where(same, at, -2), -1)[nodes.path]
        keep = path != -2
        return replace(Nodes(*(getattr(nodes, f)[keep] for f in Nodes.__dataclass_fields__)), path=path[keep])


def find_paths(trace: Trace, rows: Int) -> tuple[Paths, Int]:
    """Paths of the calls at ``rows`` (callers included), and which one each has; -1: a context or a base."""
    parent = np.searchsorted(rows, trace.parent[rows])  # garbage where there is none: such rows are roots
    counted = ~(trace.is_root | trace.is_base)[rows]
    up = np.where(trace.parent[rows] >= 0, parent, -1)
    over = np.where(trace.is_base[rows], False, True)
    caller = nearest(over, up)  # itself, or the nearest that is in paths
    above = np.where(up >= 0, caller[np.maximum(up, 0)], -1)
    own = trace.names.digest(trace.name[rows])
    digest = np.zeros(len(rows), np.uint64)
    depth = np.zeros(len(rows), np.int64)
    level = counted & ((above < 0) | ~counted[np.maximum(above, 0)])
    at = np.flatnonzero(level)
    digest[at] = _mix(np.zeros(len(at), np.uint64), own[at])
    depth[at] = 1
    children = _children(above, counted)
    while len(at):
        at = children(at)
        digest[at] = _mix(digest[above[at]], own[at])
        depth[at] = depth[above[at]] + 1
    of = np.flatnonzero(counted)
    unique, first, path = np.unique(digest[of], return_index=True, return_inverse=True)
    found = np.full(len(rows), -1)
    found[of] = path.reshape(-1)
    sample = of[first]
    callers = np.where(depth[sample] > 1, found[np.maximum(above[sample], 0)], -1)
    return Paths(callers, trace.name[rows[sample]], depth[sample], unique), found


def _children(above: Int, counted: npt.NDArray[np.bool_]):  # type: ignore[no-untyped-def]
    """A function that gives the counted rows right below some rows."""
    below = np.flatnonzero(counted & (above >= 0))
    below = below[counted[above[below]]]
    below = below[np.argsort(above[below], kind="stable")]
    keys = above[below]

    def of(rows: Int) -> Int:
        low, high = np.searchsorted(keys, rows), np.searchsorted(keys, rows, "right")
        n = high - low
        return below[np.repeat(low - (np.cumsum(n) - n), n) + np.arange(n.sum())]

    return of


def _mix(digest: npt.NDArray[np.uint64], more: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (digest ^ (more + np.uint64(1))) + _MIX[0]
    z = (z ^ (z >> np.uint64(30))) * _MIX[1]
    z = (z ^ (z >> np.uint64(27))) * _MIX[2]
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True)
class Nodes:
    """One row per message, label and path that it was in; path -1 is the label as a whole.

    ``row`` and ``label`` are the caller's; ``total``: ns with callees, ``own``: without; ``calls``: how many
    began; ``start``/``end``/``cpu``: its longest stretch, itself innermost or not.
    """

    row: Int
    label: Int
    path: Int
    total: Int
    own: Int
    calls: Int
    start: Int
    end: Int
    cpu: Int

    def __len__(self) -> int:
        return len(self.row)


class Calls:
    """The calls of a trace in some stretches of cores, with their paths."""

    def __init__(self, trace: Trace, cpu: Int, start: Int, end: Int) -> None:
        rows = trace.within(cpu, start, end)
        self.names = trace.names
        self.paths, self._path = find_paths(trace, rows)
        up = np.where(trace.parent[rows] >= 0, np.searchsorted(rows, trace.parent[rows]), -1)
        self._start = trace.start[rows]
        self._tiles = stretches(np.arange(len(rows)), trace.cpu[rows], self._start, trace.end[rows], up)

    def measure(self, row: Int, label: Int, cpu: Int, start: Int, end: Int) -> Nodes:
        """What was called in stretches, which lie in those: each belongs to a message ``row`` and has a ``label``."""
        tiles = self._tiles
        query, tile, low, high = overlaps(cpu, start, end, tiles.cpu, tiles.start, tiles.end)
        call = tiles.row[tile]
        path = self._path[call]
        begins = (path >= 0) & (low == self._start[call])
        nodes = _add_up(
            row[query], label[query], path, high - low, begins.astype(np.int64), low, high, cpu[query]
        )
        return _with_callees(nodes, self.paths)


def _add_up(row: Int, label: Int, path: Int, ns: Int, calls: Int, start: Int, end: Int, cpu: Int) -> Nodes:
    order = np.lexsort((-ns, path, label, row))
    keys = np.stack([row, label, path])[:, order]
    first = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))[: len(order)])
    longest = order[first]
    if not len(first):
        none = np.zeros(0, np.int64)
        return Nodes(none, none, none, none, none, none, none, none, none)
    total = np.add.reduceat(ns[order], first)
    return Nodes(
        row[longest],
        label[longest],
        path[longest],
        total,
        total,
        np.add.reduceat(calls[order], first),
        start[longest],
        end[longest],
        cpu[longest],
    )


def _with_callees(nodes: Nodes, paths: Paths) -> Nodes:
    """The time of each function with what it called, up to the label as a whole."""
    frame = pd.DataFrame({name: getattr(nodes, name) for name in Nodes.__dataclass_fields__})
    depths = np.append(paths.depth, 0)  # of path -1
    ups = np.append(paths.up, -1)
    done = []
    level = frame.iloc[:0]
    for depth in range(int(depths.max(initial=0)), -1, -1):
        level = pd.concat([frame[depths[frame["path"].to_numpy()] == depth], level], ignore_index=True)
        level = level.sort_values(
            ["row", "label", "path", "own", "total"], ascending=[True, True, True, False, False]
        )
        groups = level.groupby(["row", "label", "path"], sort=False)
        level = groups.agg(
            total=("total", "sum"), own=("own", "sum"), calls=("calls", "sum"),
            start=("start", "first"), end=("end", "first"), cpu=("cpu", "first"),
        ).reset_index()  # fmt: skip
        done.append(level)
        level = level.assign(path=ups[level["path"].to_numpy()], own=0, calls=0)
    every = pd.concat(done[::-1], ignore_index=True) if done else frame
    return Nodes(*(every[name].to_numpy(np.int64) for name in Nodes.__dataclass_fields__))
