# SPDX-License-Identifier: GPL-2.0-only
"""What each message spent its lifetime in, function by function: the calls within its own contexts, by call path.

A path begins in the context in which the function was called (a system call, an interrupt, the thread's own code)
and continues through its callers. Functions that a thread had entered before the recording began are
left out: an event loop is in no path, but the functions that it calls for a message are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..calls.call_tree import CallTree, Words, mixed
from ..calls.innermost import innermost, nearest
from ..interval_joins import Int, overlaps
from ..timeline.frequency import CoreFrequencies


@dataclass(frozen=True)
class Paths:
    """Call paths: ``up`` is the path of the caller, -1 for the function that the context called first.

    ``digest``: in ascending order; equal paths have equal digests in every tree. ``symbol``, ``dso`` and
    ``before`` (for a stall, else '') describe its last function.
    """

    up: Int
    depth: Int
    digest: npt.NDArray[np.uint64]
    symbol: Words
    dso: Words
    before: Words

    @staticmethod
    def join(parts: list[Paths]) -> tuple[Paths, list[Int]]:
        """All paths of ``parts``, and the new numbers for each part, with one entry for path -1 at the end."""
        digests = np.concatenate([p.digest for p in parts])
        unique, first = np.unique(digests, return_index=True)
        numbers = [np.append(np.searchsorted(unique, p.digest), -1) for p in parts]
        up = np.concatenate([n[p.up] for n, p in zip(numbers, parts, strict=True)])[first]
        rest = [
            np.concatenate([getattr(p, name) for p in parts])[first]
            for name in ("depth", "symbol", "dso", "before")
        ]
        return Paths(up, rest[0], unique, *rest[1:]), numbers

    def translate(self, nodes: Nodes, paths: Paths) -> Nodes:
        """``nodes`` of other ``paths`` with the numbers of these paths; nodes whose path is missing here are left out."""
        at = np.minimum(np.searchsorted(self.digest, paths.digest), max(len(self.digest) - 1, 0))
        same = self.digest[at] == paths.digest if len(self.digest) else np.zeros(len(at), bool)
        path = np.append(np.where(same, at, -2), -1)[nodes.path]
        keep = path != -2
        return replace(nodes.take(keep), path=path[keep])


def find_paths(tree: CallTree) -> tuple[Paths, Int]:
    """Paths of the calls of a tree, and the path of each call; -1: a context or a base."""
    up, n = tree.parent, len(tree.parent)
    counted = ~(tree.is_root | tree.is_base)
    caller = nearest(~tree.is_base, up)  # itself, or the nearest caller that is in paths
    above = np.where(up >= 0, caller[np.maximum(up, 0)], -1) if n else up
    own = tree.names.digest(tree.name)
    digest = np.zeros(n, np.uint64)
    depth = np.zeros(n, np.int64)
    at = np.flatnonzero(counted & ((above < 0) | ~counted[np.maximum(above, 0)])) if n else up
    digest[at] = mixed(np.zeros(len(at), np.uint64), own[at])
    depth[at] = 1
    children = _children(above, counted)
    while len(at):
        at = children(at)
        digest[at] = mixed(digest[above[at]], own[at])
        depth[at] = depth[above[at]] + 1
    of = np.flatnonzero(counted)
    unique, first, path = np.unique(digest[of], return_index=True, return_inverse=True)
    found = np.full(n, -1)
    found[of] = path.reshape(-1)
    sample = of[first]
    callers = np.where(depth[sample] > 1, found[np.maximum(above[sample], 0)], -1)
    return Paths(callers, depth[sample], unique, *tree.names.of(tree.name[sample])), found


def _children(above: Int, counted: npt.NDArray[np.bool_]):  # type: ignore[no-untyped-def]
    """A function that returns the counted rows directly below some rows."""
    below = np.flatnonzero(counted & (above >= 0))
    below = below[counted[above[below]]]
    below = below[np.argsort(above[below], kind="stable")]
    keys = above[below]

    def of(rows: Int) -> Int:
        low, high = np.searchsorted(keys, rows), np.searchsorted(keys, rows, "right")
        n = high - low
        return below[np.repeat(low - (np.cumsum(n) - n), n) + np.arange(n.sum())]

    return of


@dataclass(frozen=True)
class Nodes:
    """One row per message, label and path; path -1 is the label as a whole.

    ``row`` and ``label`` are the caller's numbers; ``total``: ns with callees, ``own``: without; ``calls``: number of calls that
    began; ``start``/``end``/``cpu``: its longest interval, whether or not the function itself is innermost there.
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

    def take(self, chosen: npt.NDArray[np.bool_]) -> Nodes:
        """The chosen rows."""
        return Nodes(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    @classmethod
    def join(cls, parts: list[Nodes]) -> Nodes:
        """All rows of ``parts``."""
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in cls.__dataclass_fields__))


class Calls:
    """The calls of a trace with their paths."""

    def __init__(self, tree: CallTree) -> None:
        self.paths, self._path = find_paths(tree)
        self._start = tree.start
        self._tiles = innermost(np.arange(len(tree.cpu)), tree.cpu, tree.start, tree.end, tree.parent)

    def measure(
        self, row: Int, label: Int, cpu: Int, start: Int, end: Int, frequencies: CoreFrequencies
    ) -> Nodes:
        """The calls of the tree within intervals; each interval belongs to a message ``row`` and has a ``label``.

        Times are scaled to the usual frequency of the cores (CoreFrequencies.longer).
        """
        tiles = self._tiles
        query, tile, low, high = overlaps(cpu, start, end, tiles.cpu, tiles.start, tiles.end)
        call = tiles.row[tile]
        path = self._path[call]
        begins = (path >= 0) & (low == self._start[call])
        ns = high - low - frequencies.longer(cpu[query], low, high)
        nodes = _add_up(row[query], label[query], path, ns, begins.astype(np.int64), low, high, cpu[query])
        return _with_callees(nodes, self.paths)


def _add_up(row: Int, label: Int, path: Int, ns: Int, calls: Int, start: Int, end: Int, cpu: Int) -> Nodes:
    if not len(row):
        none = np.zeros(0, np.int64)
        return Nodes(none, none, none, none, none, none, none, none, none)
    labels, place = np.unique(label, return_inverse=True)
    key = (row * len(labels) + place) * (int(path.max()) + 2) + path + 1
    order = np.argsort(key, kind="stable")
    key, ns = key[order], ns[order]
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    # The first of the longest intervals of each.
    most = np.flatnonzero(ns == np.repeat(np.maximum.reduceat(ns, first), np.diff(np.append(first, len(ns)))))
    longest = order[most[np.searchsorted(most, first)]]
    total = np.add.reduceat(ns, first)
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
    """The time of each function including its callees, up to the label as a whole."""
    if not len(nodes):
        return nodes
    n_paths = len(paths.up) + 1
    labels, label = np.unique(nodes.label, return_inverse=True)
    group = (nodes.row * len(labels) + label.reshape(-1)) * n_paths
    ups = np.append(paths.up, -1)
    # Callers without time of their own, up to the label (path -1, which is its own caller).
    own_keys = keys = np.sort(group + nodes.path + 1)
    while len(keys):
        path = keys % n_paths - 1
        above = np.unique(keys[path >= 0] - path[path >= 0] + ups[path[path >= 0]])
        keys = above[~_among(above, own_keys)]
        own_keys = np.sort(np.concatenate([own_keys, keys]))
    path = own_keys % n_paths - 1
    parent = np.where(path < 0, -1, np.searchsorted(own_keys, own_keys - path + ups[path]))
    depth = np.append(paths.depth, 0)[path]
    at = np.searchsorted(own_keys, group + nodes.path + 1)
    own, calls, start, end, cpu = (np.zeros(len(own_keys), np.int64) for _ in range(5))
    for values, name in ((own, "own"), (calls, "calls"), (start, "start"), (end, "end"), (cpu, "cpu")):
        values[at] = getattr(nodes, name)
    total = own.copy()
    order = np.argsort(-depth, kind="stable")
    for level in np.split(order, np.flatnonzero(np.diff(depth[order])) + 1):
        inner = level[parent[level] >= 0]
        np.add.at(total, parent[inner], total[inner])
        # A function without an interval of its own gets that of its longest callee: the last one written.
        inner = inner[own[parent[inner]] == 0]
        inner = inner[np.argsort(total[inner], kind="stable")]
        for values in (start, end, cpu):
            values[parent[inner]] = values[inner]
    of = own_keys // n_paths
    return Nodes(of // len(labels), labels[of % len(labels)], path, total, own, calls, start, end, cpu)


def _among(values: Int, ordered: Int) -> npt.NDArray[np.bool_]:
    return ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values
