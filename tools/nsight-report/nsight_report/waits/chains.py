# SPDX-License-Identifier: GPL-2.0-only
"""Wait chains: a wait is explained by what the thread that ended it did meanwhile, and that thread's waits by further threads.

This redistributes waiting as wPerf does (OSDI 2018), but along time: if another thread ended a wait, each ns of the wait is
explained by what that thread did in that ns, so each ns is attributed exactly once. Running, deliberate sleep, and waits for
something from outside (packet, device) need no further explanation. All intervals are followed together, one depth at a time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..interval_joins import Int, as_of
from ..losses import Ledger
from ..tables import schema
from ..tables.data_frames import column, to_pandas
from .activity import Activity
from .events import EPOLL, hand_overs
from .tiles import WAITING, WORDS, Columns, Queries, tiles
from .words import Words

#: Maximum number of threads that a chain names besides the first.
DEPTH = 8
#: Maximum number of pieces of all intervals; beyond it, waits are not explained further.
MOST_PIECES = 5_000_000


def explain(
    intervals: pa.Table | pd.DataFrame,
    activity: Activity,
    depth: int = DEPTH,
    most: int = MOST_PIECES,
    ledger: Ledger | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Table ``wait_pieces`` for intervals of threads (interval_id, tid, start_ns, end_ns), and a losses table.

    Pieces of depth 0 tile their interval; pieces with a ``parent_id`` tile that piece, which is a wait that their thread
    ended. So the pieces without others below them (``is_leaf``) also tile the interval. An interval that ends
    before it begins is left out and counted. ``ledger``: adds up the losses, if not in a separate one.
    """
    ledger = Ledger("waits") if ledger is None else ledger
    frame = to_pandas(intervals) if isinstance(intervals, pa.Table) else intervals
    ids, tid, start, end = (column(frame[name]) for name in ("interval_id", "tid", "start_ns", "end_ns"))
    good = end > start
    ledger.add("wait_interval_empty", int((end < start).sum()))
    ids, asked = ids[good], Queries(tid[good], start[good], end[good])
    parent, path, words = np.full(len(ids), -1), asked.tid[:, None], Words()
    levels: list[Columns] = []
    n_pieces = 0
    for level in range(depth + 1):
        pieces = tiles(asked, activity, words)
        query, n = pieces.pop("query"), len(pieces["tid"])
        pieces["piece_id"] = n_pieces + np.arange(n)
        pieces["interval_id"], pieces["parent_id"] = ids[query], parent[query]
        pieces["depth"], pieces["is_leaf"] = np.full(n, level), np.ones(n, bool)
        levels.append(pieces)
        n_pieces += n
        further = _followed(pieces, path[query], level < depth and n_pieces < most, ledger)
        if not len(further):
            break
        pieces["is_leaf"][further] = False
        asked = Queries(*(pieces[name][further] for name in ("other_tid", "start_ns", "end_ns")))
        ids, parent = ids[query[further]], pieces["piece_id"][further]
        path = np.column_stack([path[query[further]], asked.tid])
    every = {name: np.concatenate([pieces[name] for pieces in levels]) for name in levels[0]}
    hand_overs(every, words)
    _account(every, words, ledger)
    return _table(every, words), ledger.table()


def are_hand_overs(tid: Int, waker: Int, start: Int, end: Int, activity: Activity) -> npt.NDArray[np.bool_]:
    """Whether ``explain`` says hand-over of the ends of whole waits (of threads ``tid``, ended by threads ``waker``).

    It looks back to where the waker last waited for any event, or last waited at all, since threads may be parked for long.
    """
    waits = activity.waits_of(waker, start, end)
    of, began, since = column(waits["tid"]), column(waits["start_ns"]), start
    for rows in (np.arange(len(of)), np.flatnonzero(waits["place"].isin(EPOLL))):
        last = as_of(of[rows], began[rows], waker, end - 1)
        since = np.where(last >= 0, np.maximum(start, np.append(began[rows], 0)[last]), since)
    asked = {"interval_id": np.arange(len(tid)), "tid": tid, "start_ns": since, "end_ns": end}
    pieces = to_pandas(explain(pd.DataFrame(asked), activity)[0])
    last_ones = (pieces["depth"] == 0) & (column(pieces["end_ns"]) == end[column(pieces["interval_id"])])
    found = pieces[last_ones & (pieces["kind"] == "hand-over")]
    return np.isin(np.arange(len(tid)), column(found["interval_id"]))


def _followed(pieces: Columns, path: npt.NDArray[np.int64], may: bool, ledger: Ledger) -> Int:
    """Positions of waits whose waker is followed next: not one that is in the chain already."""
    by_thread = pieces["by_thread"]
    circular = by_thread & (path == pieces["other_tid"][:, None]).any(axis=1)
    ledger.add("wait_chain_circular", int(circular.sum()))
    found = np.flatnonzero(by_thread & ~circular)
    if not may:
        ledger.add("wait_chain_cut", len(found))
        return found[:0]
    return found


def _account(pieces: Columns, words: Words, ledger: Ledger) -> None:
    """Count the ends of chains that nothing explains."""
    unknown = pieces["is_leaf"] & (pieces["kind"] == words.number("unknown"))
    waits = np.isin(pieces["doing"], words.numbers(list(WAITING)))
    length = pieces["end_ns"] - pieces["start_ns"]
    asleep, other = unknown & waits, unknown & ~waits & (pieces["name"] != words.number("dead"))
    ledger.add("wait_without_waker", int(asleep.sum()), places=int(length[asleep].sum()))
    ledger.add("wait_thread_unknown", int(other.sum()), places=int(length[other].sum()))


def _table(pieces: Columns, words: Words) -> pa.Table:
    columns: dict[str, object] = dict(pieces)
    for name in ("depth", "tid", "pid", "cpu", "other_tid"):
        columns[name] = pieces[name].astype(np.int32)
    columns |= {name: words.column(pieces[name]) for name in WORDS}
    return schema.conform("wait_pieces", pa.table(columns))
