# SPDX-License-Identifier: GPL-2.0-only
"""Wait chains of some intervals, with equal chains grouped: how much of the time each explains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..interval_joins import Int
from ..tables.data_frames import column, to_pandas, words
from .kinds import SURE
from .phrases import Said, phrase
from .tiles import WAITING
from .words import Words, alike

#: Between the links of a chain.
WHICH = ", which "


@dataclass(frozen=True)
class Chains:
    """Pieces of ``wait_pieces`` by chain: pieces that are alike from the interval's own thread down to the piece.

    ``of``: chain of each piece; ``above``: for each chain, the chain that it explains, -1 none; ``link``: its own text;
    ``root``: row of the piece of depth 0 above each piece.
    """

    pieces: pd.DataFrame
    of: Int
    above: Int
    link: npt.NDArray[np.object_]
    root: Int

    @staticmethod
    def of_pieces(table: pa.Table) -> Chains:
        """Group the pieces; the table may contain only some pieces of an interval, if it also contains those that they explain."""
        pieces = to_pandas(table)
        said_words = Words()
        said = [
            column(pieces[name]) if name == "other_tid" else said_words.of(pieces[name])
            for name in Said._fields
        ]
        number = alike(said)
        first = np.unique(number, return_index=True)[1]
        known = said_words.texts()
        told = zip(*(values[first].tolist() for values in said), strict=True)
        texts = [
            phrase(Said(*(v if n == "other_tid" else known[v] for n, v in zip(Said._fields, row))))
            for row in told
        ]
        # Pieces that differ only in what the texts do not show are alike.
        alike_texts, unique = pd.factorize(np.array(texts, object))
        codes = alike_texts[number]
        depth = column(pieces["depth"])
        parent = pd.Index(column(pieces["piece_id"])).get_indexer(pd.Index(column(pieces["parent_id"])))
        of, root = np.full(len(pieces), -1), np.arange(len(pieces))
        above, link, n = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
        for level in range(int(depth.max(initial=-1)) + 1):
            rows = np.flatnonzero(depth == level)
            over = of[parent[rows]] if level else np.full(len(rows), -1)
            if level:
                root[rows] = root[parent[rows]]
            chain, keys = pd.factorize((over + 1) * len(unique) + codes[rows])
            of[rows] = n + chain
            above.append(np.asarray(keys, np.int64) // len(unique) - 1)
            link.append(np.asarray(keys, np.int64) % len(unique))
            n += len(keys)
        names = np.asarray(unique, object)[np.concatenate(link)] if n else np.zeros(0, object)
        return Chains(pieces, of, np.concatenate(above), names, root)

    def text(self, chain: int) -> str:
        """A chain in words."""
        return WHICH.join(self.links(chain))

    def links(self, chain: int) -> list[str]:
        """Its links, beginning with that of the interval's own thread."""
        found = []
        while chain >= 0:
            found.append(str(self.link[chain]))
            chain = int(self.above[chain])
        return found[::-1]

    def length(self) -> Int:
        """Of each piece, ns."""
        return column(self.pieces["end_ns"]) - column(self.pieces["start_ns"])


def top(table: pa.Table, n: int | None = None, waits_only: bool = True) -> list[dict[str, Any]]:
    """Chains by the time they explain, most first; each ns of the intervals is in one chain only.

    ``chain`` and its ``links`` as text, ``total_ns``, ``share`` of the intervals' time, ``n`` (pieces of the interval's
    own thread that it explains, at least in part), ``longest_ns`` (of one of these), ``sure`` (of its weakest link).
    ``waits_only``: without the time in which the threads themselves ran or were ready.
    """
    chains = Chains.of_pieces(table)
    length, leaf = chains.length(), chains.pieces["is_leaf"].to_numpy(bool)
    whole = int(length[leaf].sum())
    own = np.isin(words(chains.pieces["doing"])[chains.root], WAITING)
    rows = np.flatnonzero(leaf & own) if waits_only else np.flatnonzero(leaf)
    by_root = (
        pd.DataFrame({"chain": chains.of[rows], "root": chains.root[rows], "ns": length[rows]})
        .groupby(["chain", "root"], sort=False)["ns"]
        .sum()
        .reset_index()
    )
    by = by_root.groupby("chain")["ns"].agg(["sum", "size", "max"])
    by = by.sort_values(["sum", "size"], ascending=False, kind="stable")
    weakest = _weakest(chains)
    return [
        {
            "chain": chains.text(chain),
            "links": chains.links(chain),
            "total_ns": total,
            "share": total / whole if whole else 0.0,
            "n": count,
            "longest_ns": longest,
            "sure": SURE[weakest[chain]],
        }
        for chain, total, count, longest in by.iloc[:n].itertuples(name=None)
    ]


def _weakest(chains: Chains) -> list[int]:
    """The certainty of each chain (position in SURE): the lowest of its pieces and of the chain that it explains."""
    place = {word: at for at, word in enumerate(SURE)}
    sure = np.array([place.get(word, 0) for word in words(chains.pieces["sure"])], np.int64)
    found = np.zeros(len(chains.above), np.int64)
    np.maximum.at(found, chains.of, sure)
    result = found.tolist()
    for chain, above in enumerate(chains.above.tolist()):  # parents come first
        if above >= 0:
            result[chain] = max(result[chain], result[above])
    return result


@dataclass
class Node:
    """Equal pieces at one place of the tree: ``ns`` in total, ``n`` of them; ``below``: what explains them, largest first.

    ``rest``: it represents several different ones.
    """

    text: str
    ns: int
    n: int
    sure: str
    below: list[Node] = field(default_factory=list)
    rest: bool = False

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "text": self.text,
            "ns": self.ns,
            "n": self.n,
            "sure": self.sure,
            "rest": self.rest,
            "below": [node.plain() for node in self.below],
        }


def tree(table: pa.Table, least_ns: int = 0) -> list[Node]:
    """The same as a tree of all pieces, in which each level merges nodes of less than ``least_ns`` into one."""
    chains = Chains.of_pieces(table)
    ns = np.bincount(chains.of, chains.length(), len(chains.above)).astype(np.int64)
    n = np.bincount(chains.of, minlength=len(chains.above))
    weakest = _weakest(chains)
    below: dict[int, list[int]] = {}
    for chain, above in enumerate(chains.above.tolist()):
        below.setdefault(above, []).append(chain)

    def nodes(above: int) -> list[Node]:
        of = sorted(below.get(above, []), key=lambda chain: (-ns[chain], chain))
        large = [chain for chain in of if ns[chain] >= least_ns]
        # A single small node keeps its name.
        small = of[len(large) :]
        if len(small) == 1:
            large, small = of, []
        found = [Node(str(chains.link[c]), int(ns[c]), int(n[c]), SURE[weakest[c]], nodes(c)) for c in large]
        if small:
            sure = SURE[max(weakest[c] for c in small)]
            rest = sum(int(ns[c]) for c in small), sum(int(n[c]) for c in small)
            found.append(Node(f"{len(small)} others", *rest, sure, rest=True))
        return found

    return nodes(-1)


def below(table: pa.Table, piece_id: int) -> pa.Table:
    """A piece of depth 0 and everything that explains it."""
    chains = Chains.of_pieces(table)
    ids = column(chains.pieces["piece_id"])
    return table.filter(pa.array(ids[chains.root] == piece_id))
