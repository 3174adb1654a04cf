# SPDX-License-Identifier: GPL-2.0-only
"""Some calls with all their callers, as arrays: the input for function paths and self times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pandas.util import hash_array

Int = npt.NDArray[np.int64]
Words = npt.NDArray[np.object_]

#: Kinds of calls that are not functions: a path begins with one.
ROOTS = ("thread", "idle", "syscall", "softirq", "hardirq", "exception", "gap")
#: Rows without length that do not represent time.
MARKS = ("ptwrite", "power", "frequency")

# Odd constants of the splitmix64 generator.
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


#: Columns of ``calls`` from which paths are built.
COLUMNS = (
    "call_id",
    "parent_id",
    "kind",
    "symbol",
    "dso",
    "before",
    "start_known",
    "cpu",
    "start_ns",
    "dur_ns",
)


@dataclass(frozen=True)
class FunctionNames:
    """Names of functions and stalls, and a number for each combination."""

    symbols: Words
    dsos: Words
    befores: Words

    def code(self, symbol: Int, dso: Int, before: Int) -> Int:
        """Numbers of combinations; ``before`` -1: none."""
        return (symbol * len(self.dsos) + dso) * (len(self.befores) + 1) + before + 1

    def digest(self, code: Int) -> npt.NDArray[np.uint64]:
        """Numbers that are equal for equal texts in every tree."""
        unique, at = np.unique(code, return_inverse=True)
        digest = np.zeros(len(unique), np.uint64)
        for words in self.of(unique):
            digest = mixed(digest, hash_array(words, categorize=False))
        return digest[at.reshape(-1)]

    def of(self, code: Int) -> tuple[Words, Words, Words]:
        """Symbol, object, and what came before a stall ('' for functions)."""
        rest, before = np.divmod(code, len(self.befores) + 1)
        symbol, dso = np.divmod(rest, len(self.dsos))
        return self.symbols[symbol], self.dsos[dso], np.append("", self.befores)[before]


@dataclass(frozen=True)
class CallTree:
    """Some calls with all their callers, as arrays in table order; ``parent`` is a position in them or -1.

    ``name``: index into ``names``, its name in a path;
    ``is_root``: a context; ``is_base``: entered before the recording began.
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
    def build(calls: pa.Table, softirqs: Int) -> CallTree:
        """From rows of ``calls`` (``COLUMNS``, callers included) and the numbers of the softirqs among them.

        For a softirq, calls contain its function; only ``contexts`` shows that it is a context.
        """
        kinds, kind = _words(calls["kind"])
        marks = np.isin(kinds, MARKS)[kind]
        if marks.any():
            calls = calls.filter(pa.array(~marks))
            kind = kind[~marks]
        start, ids, parent = (_ints(calls[c]) for c in ("start_ns", "call_id", "parent_id"))
        words, codes = zip(*(_words(calls[c]) for c in ("symbol", "dso", "before")))
        names = FunctionNames(*words)
        before = np.where((kinds == "stall")[kind], codes[2], -1)
        is_root = np.isin(kinds, ROOTS)[kind] | np.isin(ids, softirqs)
        known, start_known = _words(calls["start_known"])
        return CallTree(
            _ints(calls["cpu"]),
            start,
            start + _ints(calls["dur_ns"]),
            np.where(parent < 0, -1, np.searchsorted(ids, parent)),
            names.code(codes[0], codes[1], before),
            is_root,
            ~is_root & (known == "missing")[start_known],
            names,
        )


def _ints(column: pa.ChunkedArray) -> Int:
    return column.to_numpy().astype(np.int64, copy=False)


def _words(column: pa.ChunkedArray) -> tuple[Words, Int]:
    """Distinct words, and the index of each row's word."""
    encoded = (
        column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    )
    parts = [chunk.indices.to_numpy() for chunk in encoded.chunks]
    words = encoded.chunk(0).dictionary.to_pylist() if parts else []
    codes = np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)
    return np.array([*words, ""], object), codes


def mixed(digest: npt.NDArray[np.uint64], more: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A digest of both, the same in every tree."""
    z = (digest ^ (more + np.uint64(1))) + _MIX[0]
    z = (z ^ (z >> np.uint64(30))) * _MIX[1]
    z = (z ^ (z >> np.uint64(27))) * _MIX[2]
    return z ^ (z >> np.uint64(31))
