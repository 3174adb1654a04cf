# SPDX-License-Identifier: GPL-2.0-only
"""What requests waited for, with equal words for requests that waited for the same: ``<kind>: <wait chain>``.

The chain comes from ``chains.explain``, without thread numbers, since each connection can have its own thread. The kind is
that of its first wait that is not for another thread of the same process: such a thread worked on the request itself, or
handed it on, and what it did counts. A thread that waits for any event is also woken for other requests (events.py): such
waits have the reason of the request's last one.

==========  ====================================================================================
lock        a lock or condition that the thread named gave away
latch       another process of the same program woke it, for example one that ended a transaction
backend     the reply to a request that was sent meanwhile (requests.parent_request_id)
process     another process woke it, through a socket, pipe, signal or its end
packet      a packet that is not known to be the reply to a request
disk        block I/O
sleep       its own sleep, or a timer
memory      a page fault, reclaim, compaction, or migration of pages
kernel      another thread inside the kernel or a device's interrupt woke it
stopped     a signal had stopped it
quota       the thread that it waited for had used up its CPU quota
events      an event loop served other requests meanwhile, and no record shows what this one waited for
core        another thread of the process was ready without a core, or interrupted
own thread  another thread of the process ran
unknown     no record shows it
==========  ====================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..interval_joins import Int, keys
from ..losses import Ledger
from ..names import printable, thread_name
from ..stage import Context
from ..tables.data_frames import column, words
from ..tables.messages import Messages
from ..timeline.occupancy import READS, WAITS
from ..timeline.recording import Reasons, Waits
from .activity import Activity
from .chains import explain
from .events import Loops, Reads, loops
from .summary import Chains
from .tiles import WAITING

#: Maximum number of pieces in the waits of requests that are explained together.
MOST_PIECES = 1_000_000
#: Longer chains are cut, because they serve as names.
_MOST_WORDS = 400
_KINDS = {
    "lock": "lock", "disk": "disk", "timer": "sleep", "signal": "process", "child": "process", "socket": "process",
    "hand-over": "process", "packet": "packet", "page fault": "memory", "reclaim": "memory", "kernel": "kernel", "device": "kernel",
    "stopped": "stopped", "CPU quota": "quota", "running": "own thread", "run queue": "core", "interrupt": "core",
    "wake-up": "core", "steal": "core", "unknown": "unknown",
}  # fmt: skip
_PREFIXES = tuple(f"{kind}: " for kind in dict.fromkeys((*_KINDS.values(), "latch", "backend")))
#: Columns of requests that say who read what, by role.
_READ = {"server": ("request_id", "tid", "read_ns", "last_send_ns"), "client": ("reply_tid", "last_ns")}
#: Located, but not explained.
_EVENTS, _SERVED = "events", "waited for events, while other requests were served"
#: Kinds of waits that may be for the reply to a request that was sent.
_FROM_OUTSIDE = ("packet", "process", "unknown")


def is_explained(subject: str) -> bool:
    """Whether the subject of an anomaly is a text of this module about what a request waited for.

    >>> is_explained("lock: waited in futex for worker (lock), which ran"), is_explained("sleeping in futex")
    (True, False)
    """
    return subject.startswith(_PREFIXES)


class _Sent(NamedTuple):
    """Requests that were sent during others (``parent``), in order of those and of time; ``peer``: the receiver."""

    parent: Int
    start: Int
    end: Int
    peer: npt.NDArray[np.object_]


@dataclass(frozen=True)
class Explainer:
    """Explains waits of one recording's requests (see ``timeline.recording.Explain``); ``requests``: its table of that name."""

    activity: Activity
    requests: Messages
    ledger: Ledger

    @staticmethod
    def of(ctx: Context, ledger: Ledger) -> Explainer:
        """From the results of the earlier stages."""
        return Explainer(Activity.of(ctx), ctx.requests(), ledger)

    def __call__(self, waits: Waits) -> Reasons:
        """Waits whose waker no record shows are left out if their system call names a reason.

        So are waits for events while a request is unread, because then the wake-up is late.
        """
        asked = {
            "interval_id": np.arange(len(waits.tid)),
            "tid": waits.tid,
            "start_ns": waits.start,
            "end_ns": waits.end,
        }
        table, _ = explain(pd.DataFrame(asked), self.activity, most=MOST_PIECES, ledger=self.ledger)
        pieces = _Pieces.read(table)
        at = np.flatnonzero(pieces.is_leaf)
        at = at[np.lexsort((pieces.start[at], pieces.of[at]))]
        root = pieces.root[at]
        for_events = np.isin(pieces.place[root], (*WAITS, *READS))
        # The call that the thread was in says more, unless it waits for anything.
        only_unknown = (at == root) & (pieces.kind[at] == "unknown") & ~for_events
        at = at[
            (pieces.place[root] != "")
            & ~only_unknown
            & ~(waits.unread[pieces.of[at]] & (for_events | (pieces.kind[root] == "unknown")))
        ]
        kind, text = pieces.kind[at], pieces.chain[at]
        sent = self._during(waits.request[pieces.of[at]], pieces.start[at], pieces.end[at])
        known = (sent >= 0) & np.isin(kind, _FROM_OUTSIDE)
        peer = np.append(self._sent.peer, "")[np.where(known, sent, -1)]
        kind = np.where(known, "backend", kind)
        loop, texts = self._loops(pieces, at, waits), [*pieces.texts, _SERVED]
        # A reply that it is known to wait for is its own reason, whatever else came meanwhile.
        told, open_ = loop.other & ~known & (loop.last >= 0), loop.other & ~known & (loop.last < 0)
        kind, peer, text = (np.where(told, of[loop.last], of) for of in (kind, peer, text))
        kind, text = np.where(open_, _EVENTS, kind), np.where(open_, len(texts) - 1, text)
        code, texts = _told(kind, peer, text, texts)
        return Reasons(pieces.of[at], pieces.start[at], pieces.end[at], code, texts)

    def chains(self, tid: Int, start: Int, end: Int) -> list[str]:
        """For intervals in which threads waited, the chain with most of the time, with thread numbers."""
        asked = {"interval_id": np.arange(len(tid)), "tid": tid, "start_ns": start, "end_ns": end}
        table, _ = explain(pd.DataFrame(asked), self.activity, most=MOST_PIECES)
        chains, said = Chains.of_pieces(table), [""] * len(tid)
        leaf = chains.pieces["is_leaf"].to_numpy(bool)
        of, ns = column(chains.pieces["interval_id"])[leaf], chains.length()[leaf]
        frame = (
            pd.DataFrame({"of": of, "chain": chains.of[leaf], "ns": ns}).groupby(["of", "chain"])["ns"].sum()
        )
        longest = frame.reset_index().sort_values(["ns", "chain"]).drop_duplicates("of", keep="last")
        texts = {chain: printable(chains.text(chain), _MOST_WORDS) for chain in longest["chain"].unique()}
        for place, chain in longest[["of", "chain"]].itertuples(index=False, name=None):
            said[place] = texts[chain]
        return said

    def _during(self, request: Int, start: Int, end: Int) -> Int:
        """Which of the requests that each request sent it waited for in an interval; -1 none.

        If several were open, the one whose reply it read first after the interval, else the one that it read last.
        """
        sent = self._sent
        if not len(sent.parent):
            return np.full(len(request), -1)
        began, ended, now, until = keys(
            (sent.parent, sent.start), (sent.parent, sent.end), (request, start), (request, end)
        )
        by_end = np.argsort(ended, kind="stable")
        following = by_end[np.minimum(np.searchsorted(ended[by_end], until), len(by_end) - 1)]
        reply = (sent.parent[following] == request) & (sent.start[following] <= start)
        reply &= sent.end[following] >= end
        before = np.maximum(np.searchsorted(began, now, "right") - 1, 0)
        # The keys of a later parent are all larger.
        last = by_end[np.searchsorted(ended[by_end], np.maximum.accumulate(ended)[before])]
        is_open = (sent.parent[last] == request) & (sent.start[last] <= start) & (start < sent.end[last])
        return np.where(reply, following, np.where(is_open, last, -1))

    def _loops(self, pieces: _Pieces, at: Int, waits: Waits) -> Loops:
        of = pieces.event[at]
        start, end = pieces.start[of], pieces.end[of]
        return loops(waits.request[pieces.of[at]], pieces.tid[of], start, end, of >= 0, self._reads)

    @cached_property
    def _reads(self) -> Reads:
        columns = []
        for role, names in _READ.items():
            rows = self.requests.columns([*names, "role"])
            rows = rows[(rows["role"] == role).to_numpy(bool)]
            columns += [rows[name].to_numpy(np.int64) for name in names]
        return Reads(*columns)

    @cached_property
    def _sent(self) -> _Sent:
        names = ("parent_request_id", "first_ns", "last_ns", "raddr", "rport")
        rows = self.requests.columns(names, lambda of: (of["parent_request_id"] >= 0).to_numpy(bool))
        rows = rows.sort_values(["parent_request_id", "first_ns"])
        peer = words(rows["raddr"]) + ":" + rows["rport"].astype(str).to_numpy(object)
        parent, start, end = (rows[name].to_numpy(np.int64) for name in names[:3])
        return _Sent(parent, start, end, peer)


@dataclass(frozen=True)
class _Pieces:
    """Columns of ``wait_pieces``: interval (``of``), its row of depth 0 (``root``), ``place`` where it waited, ``kind`` and ``chain``.
    ``event``: the wait for any event, in the same process, that explains the row; -1 none. Rows are in order of piece_id.
    """

    of: Int
    start: Int
    end: Int
    is_leaf: npt.NDArray[np.bool_]
    root: Int
    place: npt.NDArray[np.object_]
    kind: npt.NDArray[np.object_]
    chain: Int
    tid: Int
    event: Int
    texts: list[str]

    @staticmethod
    def read(table: pa.Table) -> _Pieces:
        """From table ``wait_pieces``."""
        chains = Chains.of_pieces(_without_numbers(table))
        frame = chains.pieces
        used, chain = np.unique(chains.of, return_inverse=True)
        return _Pieces(
            column(frame["interval_id"]),
            column(frame["start_ns"]),
            column(frame["end_ns"]),
            frame["is_leaf"].to_numpy(bool),
            chains.root,
            words(frame["name"]),
            _kinds(frame),
            chain,
            column(frame["tid"]),
            _events(frame),
            [printable(chains.text(number), _MOST_WORDS) for number in used.tolist()],
        )


def _without_numbers(table: pa.Table) -> pa.Table:
    """Threads by name alone, kernel threads by kind."""
    names = table["other_comm"].combine_chunks()
    # Several names can have one kind.
    code, plain = pd.factorize(np.array([thread_name(of) for of in names.dictionary.to_pylist()], object))
    columns = {
        "other_tid": pa.array(np.full(table.num_rows, -1, np.int32)),
        "other_comm": pa.DictionaryArray.from_arrays(
            pa.array(code.astype(np.int32)[names.indices.to_numpy()]), pa.array(plain.tolist(), pa.string())
        ),
    }
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, values)
    return table


def _kinds(pieces: pd.DataFrame) -> npt.NDArray[np.object_]:
    """For each piece, the kind of the chain that it ends (see the module); parents come first."""
    own = np.array([_KINDS.get(kind, "unknown") for kind in words(pieces["kind"])], object)
    parent = pd.Index(column(pieces["piece_id"])).get_indexer(pd.Index(column(pieces["parent_id"])))
    pid, comm = column(pieces["pid"]), words(pieces["comm"])
    passes_on = (words(pieces["kind"]) == "hand-over") | (words(pieces["kind"]) == "socket")
    within = (parent >= 0) & (pid == pid[parent])
    # The thread that woke it is known by what it did.
    of_program = np.zeros(len(pieces), bool)
    signalled = (
        (parent >= 0) & ~within & (comm == comm[parent]) & (words(pieces["kind"])[parent] == "hand-over")
    )
    of_program[parent[signalled]] = True
    own = np.where(of_program, "latch", own)
    found, open_ = own.copy(), passes_on & ~of_program
    depth = column(pieces["depth"])
    for level in range(1, int(depth.max(initial=0)) + 1):
        rows = np.flatnonzero(depth == level)
        above = parent[rows]
        goes_on = open_[above] & within[rows]
        found[rows] = np.where(goes_on, own[rows], found[above])
        open_[rows] &= goes_on
    return found


def _events(pieces: pd.DataFrame) -> Int:
    """By piece, the piece of the last link in its chain (within the process) that is a wait for any event; -1 none."""
    is_event = np.isin(words(pieces["name"]), list(WAITS)) & np.isin(words(pieces["doing"]), list(WAITING))
    found = np.where(is_event, np.arange(len(pieces)), -1)
    parent = pd.Index(column(pieces["piece_id"])).get_indexer(pd.Index(column(pieces["parent_id"])))
    depth, pid = column(pieces["depth"]), column(pieces["pid"])
    root_pid = pid.copy()
    for level in range(1, int(depth.max(initial=0)) + 1):
        rows = np.flatnonzero(depth == level)
        above = parent[rows]
        root_pid[rows] = root_pid[above]
        own = (found[rows] >= 0) & (pid[rows] == root_pid[rows])
        found[rows] = np.where(own, found[rows], found[above])
    return found


def _told(
    kind: npt.NDArray[np.object_], peer: npt.NDArray[np.object_], chain: Int, texts: list[str]
) -> tuple[Int, list[str]]:
    """``(index of the text of each, the texts)``."""
    codes, unique = pd.factorize(pd.MultiIndex.from_arrays([kind, peer, chain]))
    said = []
    for what, whom, number in unique:
        reply = f"reply of {whom}: " if whom else ""
        said.append(f"{what}: {printable(reply, _MOST_WORDS)}{texts[number]}")
    return codes.astype(np.int64), said
