# SPDX-License-Identifier: GPL-2.0-only
"""Which functions of a nested stack are reported (section 5.2 of the paper).

A function is not reported itself if nested anomalies explain at least 80 % of its deviation; a function that is explained less
keeps the rest. Nothing is reported within an unexpected function, nor within a function that took no longer than
usual: savings elsewhere offset what took longer there. So each ns of deviation is claimed at most once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..interval_joins import Int
from .paths import Nodes, Paths


@dataclass(frozen=True)
class Usual:
    """What baseline messages spent at nodes: medians of ``total`` and ``calls``, and how large a deviation is still usual."""

    total: Int
    calls: Int
    spread: Int


class Baseline:
    """What ``n_baseline`` messages spent at their ``nodes``, by label and path; absence counts as 0.

    The spread is three times the distance from the first quartile to the median: differences within the faster half of
    messages are jitter, while some of the slower half may have the very cause that is looked for.
    """

    def __init__(self, nodes: Nodes, n_baseline: int) -> None:
        self._n_paths = int(nodes.path.max(initial=-1)) + 2
        key = nodes.label * self._n_paths + nodes.path + 1
        self._keys, n_nodes = np.unique(key, return_counts=True)
        first = np.cumsum(n_nodes) - n_nodes

        def quantile(values: Int, share: float) -> Int:
            # Messages without the node sort first: shift the rank by their number.
            rank = int(n_baseline * share) - (n_baseline - n_nodes)
            ordered = values[np.lexsort((values, key))]
            return np.where(rank >= 0, np.append(ordered, 0)[first + np.maximum(rank, 0)], 0)

        total = quantile(nodes.total, 0.5)
        spread = 3 * (total - quantile(nodes.total, 0.25))
        # One more entry, for nodes that no baseline message has.
        self._total, self._calls, self._spread = (
            np.append(values, 0) for values in (total, quantile(nodes.calls, 0.5), spread)
        )

    def at(self, nodes: Nodes) -> Usual:
        """The baseline of each of ``nodes``, by its label and path."""
        key = nodes.label * self._n_paths + nodes.path + 1
        place = np.minimum(np.searchsorted(self._keys, key), max(len(self._keys) - 1, 0))
        known = nodes.path + 1 < self._n_paths
        if len(self._keys):
            known &= self._keys[place] == key
        place = np.where(known, place, -1)
        return Usual(self._total[place], self._calls[place], self._spread[place])


def claims(nodes: Nodes, paths: Paths, expected: Usual, noise_ns: Int, explained: float) -> Int:
    """Deviation in ns with which each node of the slow messages is reported; 0: not reported.

    ``noise_ns``: by node, the measurement noise; ``explained``: share from which nested anomalies replace their parent.
    """
    deviation = (nodes.total - expected.total).astype(float)
    significant = deviation > np.maximum(noise_ns, expected.spread)
    unexpected = significant & (expected.total == 0)
    depth = np.append(paths.depth, 0)[nodes.path]
    parent = _parents(nodes, paths)

    # Upwards: what nested anomalies claim, what is left for the function itself, and how much they claim too much.
    nested, left, scale = (np.zeros(len(nodes)) for _ in range(3))
    for level in range(int(depth.max(initial=0)), -1, -1):
        at = np.flatnonzero((depth == level) & significant)
        dev, inside = deviation[at], nested[at]
        whole = inside < explained * dev
        left[at] = np.where(unexpected[at], dev, np.where(whole, dev - inside, 0))
        scale[at] = np.where(unexpected[at], 0, np.minimum(1, dev / np.maximum(inside, 1)))
        claim = np.where(unexpected[at] | whole, dev, np.minimum(inside, dev))
        nested_in = parent[at]
        np.add.at(nested, nested_in[nested_in >= 0], claim[nested_in >= 0])

    # Downwards: nothing is reported below a node whose inside is not reported.
    factor = np.ones(len(nodes))
    for level in range(1, int(depth.max(initial=0)) + 1):
        at = np.flatnonzero(depth == level)
        factor[at] = factor[parent[at]] * scale[parent[at]]
    claimed = np.rint(factor * left).astype(np.int64)
    return np.where(claimed > noise_ns, claimed, 0)


def _parents(nodes: Nodes, paths: Paths) -> Int:
    """Position of each node's caller among ``nodes``; -1: the label as a whole."""
    n_paths, n_labels = len(paths.up) + 1, int(nodes.label.max(initial=0)) + 1
    group = (nodes.row * n_labels + nodes.label) * n_paths
    key = group + nodes.path + 1
    order = np.argsort(key)
    wanted = group + np.append(paths.up, -1)[nodes.path] + 1
    place = order[np.minimum(np.searchsorted(key[order], wanted), len(order) - 1)] if len(order) else order
    return np.where(nodes.path < 0, -1, place)
