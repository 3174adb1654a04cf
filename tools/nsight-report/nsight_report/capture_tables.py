# SPDX-License-Identifier: GPL-2.0-only
"""An analysed capture: each of its tables as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from .interval_joins import meets
from .manifest import Manifest
from .pipeline import Pipeline
from .stage import Options
from .tables import schema
from .tables.data_frames import column, to_pandas

if TYPE_CHECKING:
    from .hops.ways import Ways
    from .selection.windows import Window
    from .tables.intervals import IntervalTable
    from .tables.messages import Messages
    from .timeline.calls_of_message import Interval


#: Number of messages whose calls are read together.
_TOGETHER = 32


class CaptureTables:
    """One analysed capture. Every table of ``schema.py`` is an attribute, made when first used.

    Raises errors.BadInput (and its kin) like the command line; ``hint`` holds the fix.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._frames: dict[str, pd.DataFrame] = {}
        self._analysed = False
        self._other: Self | None = None

    @property
    def path(self) -> Path:
        """The capture directory."""
        return self.pipeline.capture

    @property
    def name(self) -> str:
        """The name of the capture in output: the last part of the path as it was given."""
        given = self.path.name  # a link keeps the name that its owner chose
        return given if given not in ("", "..") else self.path.resolve().name

    @property
    def manifest(self) -> Manifest:
        """What was recorded, and how."""
        return self.pipeline.manifest

    @property
    def options(self) -> Options:
        """The options of the analysis."""
        return self.pipeline.options

    def diagnosed(self, yes: bool = True) -> Self:
        """The same capture, with every table; with ``yes`` false, only with tables of the stages before anomalies."""
        return type(self)(self.pipeline.alone(yes))

    @property
    def other(self) -> Self | None:
        """The capture that supplies the baseline messages (option ``against``); it is not diagnosed itself."""
        if self._other is None and self.pipeline.other is not None:
            self._other = type(self)(self.pipeline.other)
        return self._other

    def analyse(self, rerun: str | None = None) -> list[str]:
        """Bring every stage up to date; returns the stages that ran. Reading an attribute does this too."""
        ran = self.pipeline.run(rerun)
        self._analysed = True
        self._frames.clear()
        return ran

    def frame(self, name: str) -> pd.DataFrame:
        """Table ``name`` of ``schema.py``."""
        if not self._analysed:
            self.analyse()
        if name not in self._frames:
            table = self.pipeline.losses() if name == "losses" else self.pipeline.table(name)
            self._frames[name] = to_pandas(table)
        return self._frames[name]

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name in schema.STORED:
            return self.frame(name)
        raise AttributeError(name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *schema.STORED]

    def lifetime(self, message_id: int) -> pd.DataFrame:
        """The calls of one message, from the NIC to the application; see ``timeline.calls_of_message``.

        Raises KeyError if there is no such message.
        """
        return next(self.lifetimes([message_id]))

    def lifetimes(
        self, message_ids: Sequence[int], columns: Sequence[str] | None = None
    ) -> Iterator[pd.DataFrame]:
        """``lifetime`` of each message in turn, or only some ``columns`` of its calls; one read of the table serves several.

        Messages in time order cost least: neighbours in time are neighbours in the file.
        """
        from .timeline.calls_of_message import calls_of_each

        messages = self.diagnosed_messages.rows(np.array(message_ids, np.int64))
        place = pd.Index(messages["message_id"].to_numpy(np.int64)).get_indexer(pd.Index(message_ids))
        if columns is not None:
            columns = list(dict.fromkeys([*columns, "call_id", "parent_id", "cpu", "start_ns", "dur_ns"]))
        for first in range(0, len(place), _TOGETHER):
            batch = place[first : first + _TOGETHER]
            if (batch < 0).any():
                raise KeyError(f"no message {message_ids[first + int(np.argmin(batch))]}")
            calls = self.calls_around(messages.iloc[np.unique(batch)], columns)
            yield from calls_of_each(self.intervals(messages.iloc[batch]), calls)

    def intervals(self, messages: pd.DataFrame) -> list[list[Interval]]:
        """The intervals of cores that belong to each of ``messages`` (rows of the table)."""
        from .timeline import detours
        from .timeline.calls_of_message import intervals_of

        if not self._analysed:
            self.analyse()
        return intervals_of(messages, detours(messages, self.pipeline.stored("contexts")))

    def message(self, message_id: int) -> pd.Series[Any]:
        """The row of one message in ``messages`` (or of one request in the same form). Raises KeyError if there is none."""
        rows = self.diagnosed_messages.rows(np.array([message_id]))
        if not len(rows):
            raise KeyError(f"no message {message_id}")
        return rows.iloc[0]

    @property
    def stored_messages(self) -> Messages:
        """Table ``messages``, read in parts; ``messages`` itself holds every message of the recording in memory."""
        if not self._analysed:
            self.analyse()
        return self.pipeline.messages()

    @property
    def diagnosed_messages(self) -> Messages:
        """What is diagnosed, read in parts: messages, or requests in the same form (``--latency request``)."""
        if not self._analysed:
            self.analyse()
        return self.pipeline.compared()

    @property
    def stored_requests(self) -> Messages:
        """Table ``requests``, read in parts; ``requests`` itself holds every request of the recording in memory."""
        if not self._analysed:
            self.analyse()
        return self.pipeline.requests()

    @property
    def stored_states(self) -> IntervalTable:
        """Table ``thread_states``, read in parts; ``thread_states`` itself holds the whole table in memory."""
        if not self._analysed:
            self.analyse()
        return self.pipeline.stored("thread_states")

    def work(self, request_ids: Sequence[int]) -> pd.DataFrame:
        """Table ``request_work`` of received requests: which thread worked on each between its read and its reply."""
        from .waits import Activity
        from .waits.hands import COLUMNS, work

        names, ids = ("role", *COLUMNS), np.array(request_ids, np.int64)

        def wanted(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
            return ((rows["role"].astype(str) == "server") & rows["request_id"].isin(ids)).to_numpy(bool)

        rows = self.stored_requests.columns(names, wanted)
        read, sent = column(rows["read_ns"]), column(rows["last_send_ns"])

        def beside(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
            there = meets(column(rows["read_ns"]), column(rows["last_send_ns"]), read, sent)
            return there & (rows["role"].astype(str) == "server").to_numpy(bool)

        # Only the other requests of those times: memory must not grow with the recording.
        rows = self.stored_requests.columns(names, beside) if len(rows) else rows
        states, contexts, waits = (
            self.pipeline.stored(name) for name in ("thread_states", "contexts", "waits")
        )
        found = work(rows, ids, Activity(states, contexts, waits))
        return to_pandas(found)

    @cached_property
    def ways(self) -> Ways:
        """The packets of messages, from nsight-capsule directories in the capture."""
        from .hops.ways import of_capture

        return of_capture(self.path, self.manifest.text("host", "boot_id"), self.stored_messages)

    def calls_around(self, messages: pd.DataFrame, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Rows of ``calls`` that overlap the lifetimes of ``messages`` on their cores; only these are read."""
        from .selection.windows import around

        windows = around(messages)
        cpu, start, end = ([getattr(w, name) for w in windows] for name in ("cpu", "begin_ns", "end_ns"))
        return self.calls_during(cpu, start, end, columns)

    def calls_during(
        self,
        cpu: Sequence[int],
        start_ns: Sequence[int],
        end_ns: Sequence[int],
        columns: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Rows of ``calls`` that overlap any of the given intervals of cores, with their callers; only these are read.

        ``calls`` itself holds every call of the recording in memory.
        """
        core, start, end = (np.array(values, np.int64) for values in (cpu, start_ns, end_ns))
        return to_pandas(self._stored_calls().overlapping(core, start, end, columns))

    def calls_within(self, windows: Sequence[Window]) -> Iterator[pa.Table]:
        """Rows of ``calls`` that overlap ``windows``, with callers, in table order, one piece of the table at a time."""
        core, start, end = (
            np.array([getattr(w, name) for w in windows], np.int64) for name in ("cpu", "begin_ns", "end_ns")
        )
        yield from self._stored_calls().pieces(core, start, end)

    def calls_per_ns(self) -> float:
        """Average number of calls per ns of a core."""
        return self._stored_calls().rows_per_ns()

    def _stored_calls(self) -> IntervalTable:
        if not self._analysed:
            self.analyse()
        return self.pipeline.stored("calls")
