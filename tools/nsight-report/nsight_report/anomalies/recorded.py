# SPDX-License-Identifier: GPL-2.0-only
"""One capture as a diagnosis sees it: what messages met, read for some of them at a time.

Of the tables of cores, threads and calls only what lies within the lifetimes of the compared messages is
read, in the order of time, and of that what some messages at a time need: so memory grows with what
one of them called, and not with the recording.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from ..calls.stored import Stored
from ..frames import to_pandas
from . import arrival, exposure, functions, windows
from .exposure import Exposure, Machine, Names, Stretches
from .functions import Measured
from .intervals import Int, overlaps
from .paths import COLUMNS, Calls, Nodes, Paths, Trace
from .windows import column

#: Rows of ``calls`` (or contexts, where there are no functions) that are looked at together, about.
ROWS = 300_000
#: And messages.
MESSAGES = 20_000
#: Parts that are worked on at a time.
PARTS = 2

_CONTEXTS = ("cpu", "start_ns", "end_ns", "kind", "symbol", "pid", "tid", "comm", "call_id")
_STATES = ("tid", "start_ns", "end_ns", "state", "cpu")
_MAY_WAIT = ("sleeping", "waiting", "unknown")


class Recorded(NamedTuple):
    """Tables of schema.py of one capture; ``seen``: messages outside of that time are not compared.

    ``host``: settings of its machine that delays may be due to. ``noise_ns``: for each message, up to what its
    times cannot be told from others; nothing where the options alone say it.
    """

    messages: pa.Table
    calls: pa.Table | Stored
    contexts: pa.Table | Stored
    thread_states: pa.Table | Stored
    seen: tuple[int, int] | None = None
    host: arrival.Host | None = None
    noise_ns: Int | None = None

    def with_noise(self, granularity_ns: int) -> pd.DataFrame:
        """Messages, and in ``noise_ns`` up to what a deviation of each is ignored."""
        of_clocks = 0 if self.noise_ns is None else self.noise_ns
        return to_pandas(self.messages).assign(noise_ns=np.maximum(granularity_ns, of_clocks))


class Side:
    """One capture, ready to be measured: the messages of its application, its cores, threads and functions."""

    def __init__(
        self, recorded: Recorded, every: pd.DataFrame, messages: pd.DataFrame, names: Names | None = None
    ) -> None:
        self._calls, self._contexts = (
            t if isinstance(t, Stored) else Stored(t) for t in (recorded.calls, recorded.contexts)
        )
        states = recorded.thread_states
        self._states = states if isinstance(states, Stored) else Stored(states, "tid")
        self.messages = messages
        self._host = recorded.host or arrival.Host()
        self._power = to_pandas(self._calls.where("kind", ["power"], ["cpu", "start_ns"]))
        self.has_functions = self._calls.holds("kind", "function")
        gaps = to_pandas(self._contexts.where("kind", ["gap"], _CONTEXTS))
        # Where nothing is known of a core, and only there, threads' states tell when they waited.
        may_wait = self._states.where("state", _MAY_WAIT if len(gaps) else [], _STATES)
        self.machine = Machine.build(gaps, self._syscalls(), every, to_pandas(may_wait), names)
        # Their calls have the function's kind: that they are contexts only this table says.
        self._softirqs = (
            self._contexts.where("kind", ["softirq"], ["call_id"])["call_id"].to_numpy()
            if self.has_functions
            else np.zeros(0, np.int64)
        )

    def _syscalls(self) -> pd.DataFrame:
        """Every system call: tid, start_ns, symbol."""
        columns = ["tid", "start_ns", "symbol"]
        if not self.has_functions:
            return to_pandas(self._calls.where("kind", ["syscall"], columns))
        # The first stretch of each begins with it, and contexts are far fewer than calls.
        stretches = self._contexts.where("kind", ["syscall"], ["call_id", *columns])
        ids = stretches["call_id"].to_numpy()
        first = np.unique(ids, return_index=True)[1]
        return to_pandas(stretches.select(columns).take(pa.array(first)))

    def measure(self, wanted: list[Int], with_functions: bool) -> list[tuple[Exposure, Measured | None]]:
        """For each of the sets of rows of ``messages``: what they met, and what they called."""
        met: list[list[Exposure]] = [[] for _ in wanted]
        called: list[list[tuple[Paths, Nodes, Int]]] = [[] for _ in wanted]
        # What the messages of one part called is found while the contexts of the next are looked at.
        with ThreadPoolExecutor(PARTS) as pool:
            ahead: deque[Future[list[tuple[Paths, Nodes, Int]]]] = deque()
            for pieces, machine in self.parts(wanted):
                found = [exposure.measure(self.messages, p, machine) for p in pieces]
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

    def parts(self, wanted: list[Int]) -> Iterator[tuple[list[windows.Pieces], Machine]]:
        """Lifetimes of sets of rows of ``messages``, some at a time, and what the machine did meanwhile."""
        for first, last in self._chunks(np.unique(np.concatenate(wanted))):
            chosen = [rows[(rows >= first) & (rows <= last)] for rows in wanted]
            every = np.unique(np.concatenate(chosen))
            states, told = self._thread_states(every), self._told(every)
            pieces = [windows.pieces(self.messages, rows, states, told.at) for rows in chosen]
            yield pieces, replace(self.machine.during(self._cores(pieces)), told=told)

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
        return self.machine.resolve(to_pandas(states), np.unique(column(self.messages["tid"])))

    def _cores(self, pieces: list[windows.Pieces]) -> pd.DataFrame:
        cpu, start, end = (
            np.concatenate([getattr(p, name)[exposure.on_cores(p)] for p in pieces])
            for name in ("cpu", "start", "end")
        )
        return to_pandas(self._contexts.overlapping(cpu, start, end, _CONTEXTS))

    def _calls_in(self, stretches: Stretches) -> Calls:
        rows = self._calls.overlapping(stretches.cpu, stretches.start, stretches.end, COLUMNS)
        return Calls(Trace.build(rows, self._softirqs))


def _add(called: list[list[tuple[Paths, Nodes, Int]]], part: list[tuple[Paths, Nodes, Int]]) -> None:
    for into, of in zip(called, part, strict=True):
        into.append(of)
