# SPDX-License-Identifier: GPL-2.0-only
"""Wait chains: a wait is explained by what the thread that ended it did meanwhile, and its waits by others'.

As wPerf redistributes waiting (OSDI 2018), but along time: of each ns of a wait that another thread ended, that thread's
doing in that ns is the explanation, so each is attributed exactly once. What ran, slept on purpose, or waited for
something from outside (packet, device) explains itself. All intervals are followed together, one depth after the other.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..interval_joins import Int
from ..losses import Ledger
from ..tables import schema
from ..tables.data_frames import column, to_pandas
from .activity import Activity
from .tiles import NUMBERS, WORDS, Queries, tiles

#: Threads that a chain names beside the one that was asked about.
DEPTH = 8
#: Pieces of all intervals; beyond, waits are left as they are.
MOST_PIECES = 5_000_000


def explain(
    intervals: pa.Table | pd.DataFrame, activity: Activity, depth: int = DEPTH, most: int = MOST_PIECES
) -> tuple[pa.Table, pa.Table]:
    """Table ``wait_pieces`` for intervals of threads (interval_id, tid, start_ns, end_ns), and a losses table.

    Pieces of depth 0 tile their interval; those with a ``parent_id`` tile that piece, which is a wait that their thread
    ended. So the pieces that have no others below them (``is_leaf``) tile the interval, too. An interval that ends
    before it begins is left out and counted.
    """
    ledger = Ledger("waits")
    frame = to_pandas(intervals) if isinstance(intervals, pa.Table) else intervals
    ids, tid, start, end = (column(frame[name]) for name in ("interval_id", "tid", "start_ns", "end_ns"))
    good = end > start
    ledger.add("wait_interval_empty", int((end < start).sum()))
    ids, asked = ids[good], Queries(tid[good], start[good], end[good])
    parent, path = np.full(len(ids), -1), asked.tid[:, None]
    levels: list[pd.DataFrame] = []
    n_pieces = 0
    for level in range(depth + 1):
        pieces = tiles(asked, activity)
        query = column(pieces["query"])
        pieces = pieces.assign(
            piece_id=n_pieces + np.arange(len(pieces)),
            interval_id=ids[query],
            parent_id=parent[query],
            depth=level,
            is_leaf=True,
        )
        levels.append(pieces)
        n_pieces += len(pieces)
        further = _followed(pieces, path[query], level < depth and n_pieces < most, ledger)
        if not len(further):
            break
        pieces["is_leaf"] = ~np.isin(np.arange(len(pieces)), further)
        asked = Queries(*(column(pieces[name])[further] for name in ("other_tid", "start_ns", "end_ns")))
        ids, parent = ids[query[further]], column(pieces["piece_id"])[further]
        path = np.column_stack([path[query[further]], asked.tid])
    every = pd.concat(levels, ignore_index=True) if len(levels) > 1 else levels[0]
    _account(every, ledger)
    return _table(every), ledger.table()


def _followed(pieces: pd.DataFrame, path: npt.NDArray[np.int64], may: bool, ledger: Ledger) -> Int:
    """Positions of waits whose waker is asked about next: not one that is in the chain already."""
    by_thread = pieces["by_thread"].to_numpy(bool)
    circular = by_thread & (path == column(pieces["other_tid"])[:, None]).any(axis=1)
    ledger.add("wait_chain_circular", int(circular.sum()))
    found = np.flatnonzero(by_thread & ~circular)
    if not may:
        ledger.add("wait_chain_cut", len(found))
        return found[:0]
    return found


def _account(pieces: pd.DataFrame, ledger: Ledger) -> None:
    """What the chains end in that nothing explains."""
    unknown = (pieces["is_leaf"] & (pieces["kind"] == "unknown") & (pieces["name"] != "dead")).to_numpy(bool)
    waits = pieces["doing"].isin(["sleeping", "blocked", "stopped"]).to_numpy(bool)
    length = column(pieces["end_ns"]) - column(pieces["start_ns"])
    asleep, other = unknown & waits, unknown & ~waits
    ledger.add("wait_without_waker", int(asleep.sum()), places=int(length[asleep].sum()))
    ledger.add("wait_thread_unknown", int(other.sum()), places=int(length[other].sum()))


def _table(pieces: pd.DataFrame) -> pa.Table:
    columns: dict[str, object] = {
        name: pieces[name].to_numpy(np.int64)
        for name in ("piece_id", "interval_id", "parent_id", "depth", *NUMBERS)
        if name != "query"
    }
    for name in ("depth", "tid", "pid", "cpu", "other_tid"):
        columns[name] = pieces[name].to_numpy(np.int32)
    for name in WORDS:
        codes, unique = pd.factorize(pieces[name].to_numpy(object))
        columns[name] = pa.DictionaryArray.from_arrays(
            pa.array(codes.astype(np.int32)), pa.array([str(word) for word in unique], pa.string())
        )
    columns["is_leaf"] = pieces["is_leaf"].to_numpy(bool)
    return schema.conform("wait_pieces", pa.table(columns))
