# SPDX-License-Identifier: GPL-2.0-only
"""One capture as a diagnosis sees it: what messages met, read for some of them at a time.

Of the tables of cores, threads and calls only what lies within the lifetimes of the compared messages is
read, in the order of time, and of that what some messages at a time need: so memory grows with what
one of them called, and not with the recording.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from .. import drops
from ..calls.stored import Stored, union
from ..frames import column, to_pandas
from ..messages import Messages
from ..recorder import NOBODY, Recorder
from ..timeline import Detours, detours
from ..timeline.intervals import Int, overlaps
from . import arrival, exposure, functions, processing
from .exposure import USER_CODE, Exposure, Machine, Names, Stretches
from .functions import Measured
from .paths import COLUMNS, Calls, Nodes, Paths, Trace
from .pieces import Pieces, pieces
from .population import App, Noise
from .processing import Asked, Reads

#: Rows of ``calls`` (or contexts, where there are no functions) that are looked at together, about.
ROWS = 300_000
#: And messages.
MESSAGES = 20_000
#: Parts that are worked on at a time.
PARTS = 2

_CONTEXTS = ("cpu", "start_ns", "end_ns", "kind", "symbol", "pid", "tid", "comm", "call_id", "others")
_STATES = ("tid", "start_ns", "end_ns", "state", "cpu")
_ENTERED = ("thread", "syscall", "exception")
_STRETCHES = ("tid", "start_ns", "symbol", "kind", "call_id")
_SYSCALLS = ("tid", "start_ns", "symbol", "dur_ns", "end_known")
_MAY_WAIT = ("sleeping", "waiting", "unknown")


class Recorded(NamedTuple):
    """Tables of schema.py of one capture; ``seen``: messages outside of that time are not compared.

    ``host``: settings of its machine that delays may be due to. ``noise``: what its times cannot be told from others by;
    nothing where the options alone say it. ``recorder``: whose threads were the recording's own. ``drops``: that table.
    """

    messages: pa.Table | Messages
    calls: pa.Table | Stored
    contexts: pa.Table | Stored
    thread_states: pa.Table | Stored
    seen: tuple[int, int] | None = None
    host: arrival.Host | None = None
    noise: Noise | None = None
    recorder: Recorder = NOBODY
    drops: pa.Table | None = None

    def every(self) -> Messages:
        """Its messages, to be read in parts."""
        return self.messages if isinstance(self.messages, Messages) else Messages(self.messages)

    def noise_from(self, granularity_ns: int) -> Noise:
        """Up to what a deviation is ignored."""
        of_clocks = self.noise or (lambda first, _last: np.zeros(len(first), np.int64))
        return lambda first, last: np.maximum(granularity_ns, of_clocks(first, last))


class Side:
    """One capture, ready to be measured: some ``messages`` of an application, its cores, threads and functions."""

    def __init__(
        self, recorded: Recorded, messages: pd.DataFrame, app: App, names: Names | None = None
    ) -> None:
        self._calls, self._contexts = (
            t if isinstance(t, Stored) else Stored(t) for t in (recorded.calls, recorded.contexts)
        )
        states = recorded.thread_states
        self._states = states if isinstance(states, Stored) else Stored(states, "tid")
        self.messages = messages
        self._tids = app.tids
        self._host = recorded.host or arrival.Host()
        self._power = to_pandas(self._calls.where("kind", ["power"], ["cpu", "start_ns"]))
        self.has_functions = self._calls.holds("kind", "function")
        asked = Asked.of(messages)
        every = recorded.every().columns(processing.COLUMNS)
        reads, cores = Reads.of(every, asked), processing.by_core(every, asked)
        received = every.loc[np.isin(every["message_id"].to_numpy(), cores.owner), ["message_id", "comm"]]
        del every  # it grows with the recording, and what follows needs memory
        gaps = to_pandas(self._contexts.where("kind", ["gap"], _CONTEXTS))
        entered = self._entered(asked, reads)
        waits = entered[entered["is_new"] & entered["symbol"].isin(processing.WAITS)]
        asleep = self._asleep(gaps, np.unique(reads.tid))
        tid, since = (np.append(column(waits[c]), column(asleep[c])) for c in ("tid", "start_ns"))
        threads = processing.by_thread(reads, tid, since)
        self.machine = Machine.build(
            gaps, entered, threads, cores, received, app, names, recorded.recorder, self._host
        ).after_drops(
            drops.reasons(messages, to_pandas(recorded.drops)) if recorded.drops is not None else None
        )
        # Their calls have the function's kind: that they are contexts only this table says.
        self._softirqs = (
            self._contexts.where("kind", ["softirq"], ["call_id"])["call_id"].to_numpy()
            if self.has_functions
            else np.zeros(0, np.int64)
        )

    def _entered(self, asked: Asked, reads: Reads) -> pd.DataFrame:
        """What reading threads entered (tid, start_ns, symbol, is_new) and somebody will look for.

        That is a system call, an exception (grade pt) or USER_CODE: the last one before some time in a message's lifetime,
        or before the thread began to wait in it; and the first wait after a message was read. ``is_new``: a system call
        that begins there, and not the rest of one behind what interrupted it.
        """
        tid, first, last = (column(self.messages[c]) for c in ("tid", "first_ns", "last_ns"))
        began = self._states.overlapping(tid, first, last, ["start_ns"])["start_ns"].to_numpy()
        low, high = union(np.append(first, began), np.append(last, began) + 1)
        asked = replace(asked, low=low, high=high)
        tids, times = np.union1d(reads.tid, self._tids), np.sort(reads.read)
        source, kinds, names, rows_of = (
            (self._contexts, _ENTERED, _STRETCHES, _of_stretches())
            if self.has_functions
            else (self._calls, ("syscall",), _SYSCALLS, _of_syscalls)
        )
        found = []
        for table in source.each_where("kind", kinds, names):
            rows = rows_of(to_pandas(table.filter(pa.array(np.isin(table["tid"].to_numpy(), tids)))))
            found.append(rows[_looked_for(rows, asked, times)])
        return pd.concat(found, ignore_index=True)

    def _asleep(self, gaps: pd.DataFrame, tids: Int) -> pd.DataFrame:
        """Where nothing is known of a core, and only there, threads' states tell when they waited: tid, start_ns."""
        cpu, start, end = (column(gaps[c]) for c in ("cpu", "start_ns", "end_ns"))
        known, found = np.ones(len(gaps), bool), []
        for table in self._states.each_where("state", _MAY_WAIT if len(gaps) else [], _STATES):
            states = to_pandas(table.filter(pa.array(np.isin(table["tid"].to_numpy(), tids))))
            found.append(
                states.loc[processing.begin_in_gaps(states, cpu, start, end, known), ["tid", "start_ns"]]
            )
        return pd.concat(found, ignore_index=True)

    def measure(self, wanted: list[Int], with_functions: bool) -> list[tuple[Exposure, Measured | None]]:
        """For each of the sets of rows of ``messages``: what they met, and what they called."""
        met: list[list[Exposure]] = [[] for _ in wanted]
        called: list[list[tuple[Paths, Nodes, Int]]] = [[] for _ in wanted]
        # What the messages of one part called is found while the contexts of the next are looked at.
        with ThreadPoolExecutor(PARTS) as pool:
            ahead: deque[Future[list[tuple[Paths, Nodes, Int]]]] = deque()
            for parts, machine in self.parts(wanted):
                found = [exposure.measure(self.messages, p, machine) for p in parts]
                for of, (sums, _) in zip(met, found, strict=True):
                    of.append(sums)
                if with_functions:
                    ahead.append(pool.submit(self._called, [within for _, within in found]))
                if len(ahead) > PARTS:
                    _add(called, ahead.popleft().result())
            while ahead:
                _add(called, ahead.popleft().result())
        return [
            (Exposure.join(of), Measured.join(into) if with_functions else None)
            for of, into in zip(met, called, strict=True)
        ]

    def _called(self, within: list[Stretches]) -> list[tuple[Paths, Nodes, Int]]:
        """What was called in each of some sets of stretches: paths, what messages spent in them, and their labels."""
        calls, found = self._calls_in(Stretches.join(within)), []
        for w in within:
            labels = functions.label(w.side, w.kind, w.subject)
            nodes = calls.measure(w.row, labels, w.cpu, w.start, w.end)
            found.append((calls.paths, nodes, np.unique(labels)))
        return found

    def parts(self, wanted: list[Int]) -> Iterator[tuple[list[Pieces], Machine]]:
        """Lifetimes of sets of rows of ``messages``, some at a time, and what the machine did meanwhile."""
        for first, last in self._chunks(np.unique(np.concatenate(wanted))):
            chosen = [rows[(rows >= first) & (rows <= last)] for rows in wanted]
            every = np.unique(np.concatenate(chosen))
            states, told, found = self._thread_states(every), self._told(every), self._detours(every)
            parts = [pieces(self.messages, rows, states, told.at, found) for rows in chosen]
            yield parts, replace(self.machine.during(self._cores(parts)), told=told)

    def calls_while(self, cpu: Int, start: Int, end: Int, columns: Sequence[str]) -> pa.Table:
        """Rows of ``calls`` that overlap stretches of cores, with their callers."""
        return self._calls.overlapping(cpu, start, end, columns)

    def cores_of(self, tid: Int, start: Int, end: Int, state: str | None = None) -> tuple[Int, Int, Int, Int]:
        """On which cores threads were in some stretches: (which stretch, core, begin, end); ``state``: in that state only."""
        states = to_pandas(self._states.overlapping(tid, start, end, _STATES))
        states = states[(states["cpu"] >= 0) & ((states["state"] == state) if state else True)]
        query, item, low, high = overlaps(
            tid, start, end, column(states["tid"]), column(states["start_ns"]), column(states["end_ns"])
        )
        return query, column(states["cpu"])[item], low, high

    def _told(self, rows: Int) -> arrival.Told:
        chosen = self.messages.iloc[rows]
        contexts = to_pandas(self._contexts.overlapping(*arrival.where(chosen), _CONTEXTS))
        found = arrival.told(chosen, contexts, self._power, self._host)
        every = arrival.nothing_told(len(self.messages))
        every.at[rows], every.why[rows] = found.at, found.why
        return every

    def _detours(self, rows: Int) -> Detours:
        found = detours(self.messages.iloc[rows], self._contexts)
        every = Detours(np.full(len(self.messages), -1), np.zeros(len(self.messages), bool))
        every.left_ns[rows], every.in_backlog[rows] = found.left_ns, found.in_backlog
        return every

    def _chunks(self, rows: Int) -> Iterator[tuple[int, int]]:
        """First and last of rows that follow each other, which are also in the order of time."""
        per_ns = (self._calls if self.has_functions else self._contexts).rows_per_ns()
        chosen = self.messages.iloc[rows]
        length = column(chosen["last_ns"]) - column(chosen["first_ns"])
        weight = np.cumsum(np.maximum(length * per_ns / ROWS, 1 / MESSAGES))
        for part in np.split(rows, np.flatnonzero(np.diff(np.floor(weight))) + 1):
            yield int(part[0]), int(part[-1])

    def _thread_states(self, rows: Int) -> pd.DataFrame:
        chosen = self.messages.iloc[rows]
        tid, first, last = (column(chosen[c]) for c in ("tid", "first_ns", "last_ns"))
        # What a thread did next tells where one that waited was woken.
        states = self._states.overlapping_and_next(tid, first, last, _STATES)
        return self.machine.resolve(to_pandas(states), self._tids)

    def _cores(self, pieces: list[Pieces]) -> pd.DataFrame:
        cpu, start, end = (
            np.concatenate([getattr(p, name)[exposure.on_cores(p)] for p in pieces])
            for name in ("cpu", "start", "end")
        )
        return to_pandas(self._contexts.overlapping(cpu, start, end, _CONTEXTS))

    def _calls_in(self, stretches: Stretches) -> Calls:
        rows = self._calls.overlapping(stretches.cpu, stretches.start, stretches.end, COLUMNS)
        return Calls(Trace.build(rows, self._softirqs))


def _of_stretches() -> Callable[[pd.DataFrame], pd.DataFrame]:
    """What threads entered, by rows of ``contexts`` in order, some at a time: every stretch begins where one is entered again."""
    newest = -1

    def rows_of(contexts: pd.DataFrame) -> pd.DataFrame:
        nonlocal newest
        ids = column(contexts["call_id"])
        # They ascend: what is older has begun in a row group before.
        is_new = (
            (contexts["kind"] == "syscall").to_numpy()
            & (ids > newest)
            & ~pd.Series(ids).duplicated().to_numpy()
        )
        newest = max(newest, int(ids.max(initial=-1)))
        symbol = contexts["symbol"].astype(str).where(contexts["kind"] != "thread", USER_CODE)
        return contexts[["tid", "start_ns"]].assign(symbol=symbol, is_new=is_new)

    return rows_of


def _of_syscalls(calls: pd.DataFrame) -> pd.DataFrame:
    """The same by system calls in ``calls``: behind one that ended is user code. A switch cuts it, and does not end it."""
    begins = calls[["tid", "start_ns"]].assign(symbol=calls["symbol"].astype(str), is_new=True, order=1)
    ended = calls[(calls["end_known"] == "measured").to_numpy()]
    took = column(ended["dur_ns"])
    # At one time, one system call ends before the next one begins, and after it has begun itself.
    ends = ended[["tid"]].assign(
        start_ns=ended["start_ns"] + took, symbol=USER_CODE, is_new=False, order=np.where(took > 0, 0, 2)
    )
    both = pd.concat([begins, ends], ignore_index=True)
    return both.sort_values(["start_ns", "order"], ignore_index=True).drop(columns="order")


def _looked_for(entered: pd.DataFrame, asked: Asked, times: Int) -> npt.NDArray[np.bool_]:
    """Which are the last of their thread up to a time that is asked about, or the first of its waits from one of ``times`` on."""
    tid, start = column(entered["tid"]), column(entered["start_ns"])
    wanted = np.zeros(len(tid), bool)
    order = np.lexsort((start, tid))
    wanted[order] = asked.about(start[order], _beside(tid[order], start[order], 1))
    waits = order[(entered["is_new"] & entered["symbol"].isin(processing.WAITS)).to_numpy()[order]]
    before = _beside(tid[waits], start[waits], -1)
    wanted[waits] |= np.searchsorted(times, before, "right") < np.searchsorted(times, start[waits], "right")
    return wanted


def _beside(group: Int, time: Int, step: int) -> Int:
    """Of each row the time of the next (1) or the one before (-1) of its group, in order; without one, never."""
    never = np.iinfo(np.int64).max * step
    beside, of = np.roll(time, -step), np.roll(group, -step)
    end = -1 if step == 1 else 0
    if len(group):
        beside[(of != group) | (np.arange(len(group)) == end % len(group))] = never
    return beside


def _add(called: list[list[tuple[Paths, Nodes, Int]]], part: list[tuple[Paths, Nodes, Int]]) -> None:
    for into, of in zip(called, part, strict=True):
        into.append(of)
