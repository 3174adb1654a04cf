# SPDX-License-Identifier: GPL-2.0-only
"""What cores and threads did during the lifetimes of some messages of a recording.

From the tables of cores, threads and calls, only what lies within the lifetimes of these messages is
read, in time order, and only as much at a time as some messages need: memory grows with what
one of them called, and not with the recording.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa

from .. import drops
from ..interval_joins import Int, distinct, overlaps
from ..selection.application import App
from ..tables.data_frames import column, to_pandas
from . import Detours, arrival, departure, detours, entered, exposure, occupancy
from .frequency import CoreFrequencies
from .machine import RECEIVED, Machine, MemoryWork, Names
from .occupancy import Asked, Reads
from .pieces import Pieces, State, because, pieces, threads_of, waits_of_threads
from .recording import Recording, Waits
from .unaccepted import ready_to_accept, unaccepted

#: Approximate number of rows of ``calls`` (or contexts, without functions) that are processed together.
ROWS = 300_000
#: The same for messages.
MESSAGES = 20_000

_CONTEXTS = ("cpu", "start_ns", "end_ns", "kind", "symbol", "pid", "tid", "comm", "call_id", "others")
_INTERRUPTS = ("cpu", "start_ns", "end_ns", "kind", "tid")
_READY = ("comm", "start_ns", "end_ns", "state")
_STATES = ("tid", "start_ns", "end_ns", "state", "cpu")
#: Number of messages that show how long interrupts usually are; they are spread evenly, so few of them are slow.
_SAMPLE = 64


class Activity:
    """The cores, threads and functions of a recording during some ``messages`` of the application ``app``.

    ``machine``: facts of the whole recording; ``has_functions``: whether Intel PT recorded calls; ``softirqs``: if so,
    numbers of the calls that are softirqs, whose kind is that of functions. ``frequencies`` and ``counters``: of its cores.
    ``n_unclear_drops``: messages for which it is unclear whether a dropped packet was theirs or another connection's.
    """

    def __init__(
        self, recording: Recording, messages: pd.DataFrame, app: App, names: Names | None = None
    ) -> None:
        self.messages = messages
        self._tids = app.tids
        self._calls, self._contexts, self._states, self._memory = (
            recording.activity(name) for name in ("calls", "contexts", "thread_states", "memory_work")
        )
        self.counters = recording.activity("counters")
        self._host, self._explain = recording.host or arrival.Host(), recording.explain
        self._power = to_pandas(self._calls.where("kind", ["power"], ["cpu", "start_ns"]))
        self.has_functions = self._calls.holds("kind", "function")
        softirqs = self._contexts.where("kind", ["softirq"] if self.has_functions else [], ["call_id"])
        self.softirqs = softirqs["call_id"].to_numpy()
        asked = Asked.of(messages)
        # Sent messages and intervals do not show what readers and receive cores worked on.
        every = recording.every().columns(
            occupancy.COLUMNS, lambda rows: (rows["direction"] == "rx").to_numpy(bool)
        )
        reads, cores = Reads.of(every, asked), occupancy.by_core(every, asked)
        owners = distinct(np.append(cores.owner, reads.owner))
        received = every.loc[np.isin(every["message_id"].to_numpy(), owners), list(RECEIVED)]
        del every  # it grows with the recording, and the next steps need memory
        gaps = to_pandas(self._contexts.where("kind", ["gap"], _CONTEXTS))
        source = self._contexts if self.has_functions else self._calls
        did = entered.find(source, self.has_functions, self._states, messages, asked, reads, app.tids)
        waits = pd.concat([entered.waits(did), entered.asleep(self._states, gaps, np.unique(reads.tid))])
        threads = occupancy.by_thread(reads, column(waits["tid"]), column(waits["start_ns"]))
        why, self.n_unclear_drops = None, 0
        if recording.drops is not None:
            dropped = to_pandas(recording.drops)
            why, self.n_unclear_drops = drops.reasons(messages, dropped, recording.every())
        self.machine = Machine.build(
            gaps, did, threads, cores, received, app, names, recording.recorder, self._host
        ).after_drops(why)
        self.machine = replace(self.machine, usual_interrupt_ns=self._usual_interrupt_ns())
        told = recording.frequencies
        self.frequencies = CoreFrequencies() if told is None else CoreFrequencies.of(to_pandas(told))

    def at_frequency(self, usual_khz: int) -> None:
        """Make ``machine`` compute how much longer work took at frequencies lower than that."""
        self.machine = replace(self.machine, frequencies=self.frequencies.against(usual_khz))

    def parts(self, wanted: list[Int]) -> Iterator[tuple[list[Pieces], Machine]]:
        """Lifetimes of sets of rows of ``messages``, some at a time, and what the machine did during them. No row is in two sets."""
        for first, last in self._chunks(np.unique(np.concatenate(wanted))):
            chosen = [rows[(rows >= first) & (rows <= last)] for rows in wanted]
            every = np.unique(np.concatenate(chosen))
            states, told, found = self._thread_states(every), self._told(every), self._detours(every)
            # What they waited for is read once for all sets.
            lived = Pieces.join([pieces(self.messages, rows, states, told.at, found) for rows in chosen])
            lived = self._explained(self._queued(lived, states))
            parts = [lived.take(np.isin(lived.row, rows)) for rows in chosen]
            cpu, start, end = self._on_cores(parts)
            contexts = to_pandas(self._contexts.overlapping(cpu, start, end, _CONTEXTS))
            memory = MemoryWork.of(to_pandas(self._memory.overlapping(cpu, start, end)), self.machine.names)
            yield parts, replace(self.machine.during(contexts), told=told, memory=memory)

    def _usual_interrupt_ns(self) -> int:
        some = self.messages.iloc[:: max(len(self.messages) // _SAMPLE, 1)]
        some = some[column(some["app_cpu"]) >= 0]
        cpu, first, last = (column(some[name]) for name in ("app_cpu", "first_ns", "last_ns"))
        contexts = to_pandas(self._contexts.overlapping(cpu, first, last, _INTERRUPTS))
        return exposure.usual_interrupt_ns(some, contexts, self._tids)

    def calls_while(self, cpu: Int, start: Int, end: Int, columns: Sequence[str]) -> pa.Table:
        """Rows of ``calls`` that overlap intervals of cores, with their callers."""
        return self._calls.overlapping(cpu, start, end, columns)

    def cores_of(self, tid: Int, start: Int, end: Int, state: str | None = None) -> tuple[Int, Int, Int, Int]:
        """The cores of threads during some intervals: (which interval, core, begin, end); ``state``: in that state only."""
        states = to_pandas(self._states.overlapping(tid, start, end, _STATES))
        states = states[(states["cpu"] >= 0) & ((states["state"] == state) if state else True)]
        query, item, low, high = overlaps(
            tid, start, end, column(states["tid"]), column(states["start_ns"]), column(states["end_ns"])
        )
        return query, column(states["cpu"])[item], low, high

    def _queued(self, found: Pieces, thread_states: pd.DataFrame) -> Pieces:
        """Adds the waits outside the application's threads: in the accept queue, and on the way to the driver."""
        found = unaccepted(found, self.messages, thread_states, self.machine)
        return self._departed(ready_to_accept(found, self.messages, self._states))

    def _departed(self, found: Pieces) -> Pieces:
        """Adds what sent messages waited for on their way to the driver."""
        at = np.flatnonzero(found.state == State.QUEUED)
        if not len(at):
            return found
        rows, of = np.unique(found.row[at], return_inverse=True)
        reason = departure.reasons(self.messages.iloc[rows], self._contexts)[of]
        codes = np.array([*map(self.machine.names.code, departure.SUBJECTS), -1], np.int64)
        why = found.why.copy()
        why[at] = codes[reason]
        return replace(found, why=why)

    def _explained(self, found: Pieces) -> Pieces:
        """Adds what their threads waited for, from the table of waits, if waits are to be explained."""
        if self._explain is None:
            return found
        at = waits_of_threads(found)
        row = found.row[at]
        unread = found.end[at] <= column(self.messages["read_ns"])[row]
        ids = column(self.messages["message_id"])[row]
        told = self._explain(Waits(found.tid[at], found.start[at], found.end[at], ids, unread))
        codes = np.array([self.machine.names.code(text) for text in told.texts], np.int64)
        return because(found, at[told.wait], told.start, told.end, codes[told.text])

    def _told(self, rows: Int) -> arrival.Told:
        chosen = self.messages.iloc[rows]
        contexts = to_pandas(self._contexts.overlapping(*arrival.where(chosen), _CONTEXTS))
        ready = to_pandas(self._states.where("comm", arrival.softirq_threads(self.messages), _READY))
        ready = ready[ready["state"].astype(str) == "runnable"]
        found = arrival.told(chosen, contexts, self._power, ready, self._host)
        every = arrival.nothing_told(len(self.messages))
        every.at[rows], every.why[rows] = found.at, found.why
        return every

    def _detours(self, rows: Int) -> Detours:
        found = detours(self.messages.iloc[rows], self._contexts)
        every = Detours(np.full(len(self.messages), -1), np.zeros(len(self.messages), bool))
        every.left_ns[rows], every.in_backlog[rows] = found.left_ns, found.in_backlog
        return every

    def _chunks(self, rows: Int) -> Iterator[tuple[int, int]]:
        """First and last of consecutive rows, which are also in time order."""
        per_ns = (self._calls if self.has_functions else self._contexts).rows_per_ns()
        chosen = self.messages.iloc[rows]
        length = column(chosen["last_ns"]) - column(chosen["first_ns"])
        weight = np.cumsum(np.maximum(length * per_ns / ROWS, 1 / MESSAGES))
        for part in np.split(rows, np.flatnonzero(np.diff(np.floor(weight))) + 1):
            yield int(part[0]), int(part[-1])

    def _thread_states(self, rows: Int) -> pd.DataFrame:
        chosen = self.messages.iloc[rows]
        tid, first, last = threads_of(chosen)
        # The next state of a waiting thread shows where it was woken.
        states = self._states.overlapping_and_next(tid, first, last, _STATES)
        return self.machine.resolve(to_pandas(states), self._tids)

    def _on_cores(self, pieces: list[Pieces]) -> tuple[Int, Int, Int]:
        """Core, begin and end of the pieces in which the activity of their core counts."""
        cpu, start, end = (
            np.concatenate([getattr(p, name)[exposure.on_cores(p)] for p in pieces])
            for name in ("cpu", "start", "end")
        )
        return cpu, start, end
