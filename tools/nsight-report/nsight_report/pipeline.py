# SPDX-License-Identifier: GPL-2.0-only
"""Runs the stages whose results are stale, in order, each from stored tables."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from . import losses
from . import manifest as manifests
from .errors import BadInput
from .stage import INTERVALS, REQUEST, Context, Options, Stage
from .stages import BY_NAME, DIAGNOSIS, MADE_BY, SPECS, STAGES, in_order
from .tables import schema
from .tables.store import Store, Written, place

if TYPE_CHECKING:
    from .tables.intervals import IntervalTable
    from .tables.messages import Messages

_LONG = 1000

#: Tables that grow with the recording: they are read in parts and never kept in memory.
IN_PARTS = ("events", "messages", "requests", "calls", "contexts", "thread_states", "waits")

# Called with the name of a stage around its run, to show progress.
Progress = Callable[[str], AbstractContextManager[object]]


def _quiet(_stage: str) -> AbstractContextManager[object]:
    return nullcontext()


class Pipeline:
    """The stages over one capture.

    A stage is stale when the size or time of an input file, an option that it uses, its code, the schema
    version or the run of an earlier stage differs from what ``tables/stages.json`` records.
    Tables go to the capture; if that is read-only, to ``output`` or else to the user's cache.
    ``diagnosed``: if false, stages of the diagnosis do not run, and their tables, which may be stale, are not available.
    """

    def __init__(
        self,
        capture: Path,
        options: Options | None = None,
        output: Path | None = None,
        progress: Progress = _quiet,
        diagnosed: bool = True,
    ) -> None:
        self.capture = capture
        self._output = output
        self.options = _with_own_intervals(options or Options(), capture)
        self._stages = tuple(
            s for s in in_order(STAGES, self.options) if diagnosed or s.name not in DIAGNOSIS
        )
        self.manifest = manifests.load(capture)
        directory, self._scratch = place(capture, output)
        self.store = Store(directory)
        # A read-only capture may contain tables that are still valid.
        own = capture / "tables"
        self._stores = [self.store] if directory == own else [self.store, Store(own)]
        self._progress = progress
        self._other: Pipeline | None = None
        if self.options.against is not None:
            # The other capture's own diagnosis is not needed and need not exist: compared with itself, a slice of
            # the same percentiles as the slow messages would leave no baseline.
            alone = replace(self.options, against=None, intervals=None)
            self._other = Pipeline(Path(self.options.against), alone, None, progress, diagnosed=False)
        self._tables: dict[str, pa.Table] = {}
        self._stored: dict[str, tuple[tuple[int, ...], IntervalTable]] = {}
        self._messages: tuple[tuple[int, ...], Messages] | None = None
        self._fresh: dict[str, Store] = {}

    @property
    def other(self) -> Pipeline | None:
        """The pipeline of the capture that supplies the baseline messages."""
        return self._other

    def alone(self, diagnosed: bool) -> Pipeline:
        """The same capture with the same options except ``against``."""
        options = replace(self.options, against=None)
        return Pipeline(self.capture, options, self._output, self._progress, diagnosed)

    def run(self, rerun: str | None = None) -> list[str]:
        """Bring every stage up to date; returns the names of the stages that had to run.

        ``rerun`` names a stage to run in any case; the stages after it run, too.
        """
        if rerun is not None:
            _known(rerun)
        if self._other:
            self._other.run()
        ran = []
        for stage in self._stages:
            store = None if stage.name == rerun else self._find_fresh(stage)
            if store is None:
                self._run(stage)
                ran.append(stage.name)
            else:
                self._fresh[stage.name] = store
        return ran

    def run_for(self, tables: Collection[str]) -> None:
        """Bring up to date only the stages that make these tables: not every recording has messages."""
        wanted = {MADE_BY[name] for name in tables}
        for stage in reversed(STAGES):
            if stage.name in wanted:
                wanted.update(stage.inputs(self.options)[0])
        for stage in STAGES:
            if stage.name not in wanted:
                continue
            store = self._find_fresh(stage)
            if store is None:
                self._run(stage)
            else:
                self._fresh[stage.name] = store

    def run_alone(self, name: str) -> dict[str, int]:
        """Run one stage from the stored tables as they are; returns the number of rows of each of its tables."""
        stage = _known(name)
        for needed in stage.inputs(self.options)[0]:
            self._fresh[needed] = next((s for s in self._stores if s.entry(needed)), self.store)
        self._run(stage)
        return {table: Written(self.path(table)).n_rows() for table in stage.tables}

    def table(self, name: str) -> pa.Table:
        """Table ``name`` as made or stored. Raises BadInput when its stage has not run."""
        if name in self._tables:
            return self._tables[name]
        stage = MADE_BY[name]
        if BY_NAME[stage] not in self._stages:
            raise BadInput(
                f"{self.capture}: table {name} belongs to a diagnosis; this capture only supplies the baseline",
                "open it by itself",
            )
        table = self._fresh.get(stage, self.store).load(name, SPECS.get(name))
        if table is None:
            raise BadInput(
                f"{self.capture}: table {name} is not stored; stage {stage} makes it",
                f"run nsight-report on the capture without --stage first, or with --rerun {stage}",
            )
        if name not in IN_PARTS:
            self._tables[name] = table
        return table

    def stored(self, name: str) -> IntervalTable:
        """Table ``name`` of cores, threads or events as made or stored, read in parts. Raises like ``table``."""
        from .tables.intervals import IntervalTable

        store = self._fresh.get(MADE_BY[name], self.store)
        path = store.path(name)
        # Another run may have replaced the file.
        now = tuple(_stat(path))
        if name not in self._stored or self._stored[name][0] != now:
            group = "tid" if name in ("thread_states", "waits") else "cpu"
            self._stored[name] = now, IntervalTable(path if store.holds(name) else self.table(name), group)
        return self._stored[name][1]

    def messages(self) -> Messages:
        """Table ``messages``, read in parts. Raises like ``table``."""
        from .tables.messages import Messages

        store = self._fresh.get(MADE_BY["messages"], self.store)
        path = store.path("messages")
        now = tuple(_stat(path))
        if self._messages is None or self._messages[0] != now:
            self._messages = now, Messages(path if store.holds("messages") else self.table("messages"))
        return self._messages[1]

    def requests(self) -> Messages:
        """Table ``requests``, read in parts. Raises like ``table``."""
        from .tables.messages import Messages

        store = self._fresh.get(MADE_BY["requests"], self.store)
        path = store.path("requests")
        return Messages(path if store.holds("requests") else self.table("requests"), "requests")

    def compared(self) -> Messages:
        """What is diagnosed: messages, or requests in the same form. Raises like ``table``."""
        if self.options.direction != REQUEST:
            return self.messages()
        from .requests.lifetimes import Lifetimes

        return Lifetimes(self.requests(), self.messages(), self.options.role)

    def path(self, name: str) -> Path:
        """The Parquet file of table ``name``, for callers that need only a part of it."""
        return self._fresh.get(MADE_BY[name], self.store).directory / f"{name}.parquet"

    def losses(self) -> pa.Table:
        """The ledgers of the recorder and of every stage, worst first."""
        parts = [self.manifest.losses().table()]
        for stage in self._stages:
            part = self._fresh.get(stage.name, self.store).load(_ledger(stage), "losses")
            if part is not None:
                parts.append(part)
        return losses.merge(parts)

    def _run(self, stage: Stage) -> None:
        with self._progress(stage.name), self.store.scratch() as scratch:
            made, lost = stage.run(self._context(scratch))
            tables = {name: _checked(SPECS.get(name, name), made[name]) for name in stage.tables}
            made_from = self._made_from(stage)
            self.store.save(stage.name, {**tables, _ledger(stage): lost}, made_from)
        self._fresh[stage.name] = self.store
        # Tables made from trace packets may hold most of the memory: later stages read only what they need.
        for name, table in tables.items():
            self._tables.pop(name, None)
            self._stored.pop(name, None)
            if name == "messages":
                self._messages = None
            if name not in IN_PARTS and not isinstance(table, Written):
                self._tables[name] = table

    def _context(self, scratch: Path | None = None) -> Context:
        other = self._other._context() if self._other else None
        return Context(
            self.capture,
            self.manifest,
            self.options,
            self.table,
            self.stored,
            self.messages,
            self.requests,
            self.compared,
            scratch,
            other,
        )

    def _find_fresh(self, stage: Stage) -> Store | None:
        made_from = self._made_from(stage)
        for store in self._stores:
            if store.entry(stage.name).get("made_from") != made_from:
                continue
            if store.holds(_ledger(stage), "losses") and all(
                store.holds(t, SPECS.get(t)) for t in stage.tables
            ):
                return store
        return None

    def _made_from(self, stage: Stage) -> dict[str, Any]:
        needs, options = stage.inputs(self.options)
        return {
            "schema": schema.SCHEMA_VERSION,
            "code": stage.identity,
            "files": {name: list(_stat(self.capture / name)) for name in stage.raw},
            "options": {name: self._choice(name) for name in options},
            "stages": {name: self._fresh.get(name, self.store).entry(name).get("run", "") for name in needs},
        }

    def _choice(self, name: str) -> object:
        """The value of an option; for a user's file also size and time, for a capture the runs of its stages."""
        value = getattr(self.options, name)
        if name == "against" and self._other:
            names = [stage.name for stage in self._other._stages]
            made = (self._other._fresh.get(name, self._other.store).entry(name) for name in names)
            return [value, *(entry.get("run", "") for entry in made)]
        if name in ("categories", "intervals") and value:
            return [value, *_stat(Path(value))]
        if name == "role" and self.options.direction != REQUEST:
            return None  # messages have none
        # A list of messages can be longer than everything else in the record.
        long = isinstance(value, str) and len(value) > _LONG
        return hashlib.sha256(value.encode()).hexdigest() if long else value


def _with_own_intervals(options: Options, capture: Path) -> Options:
    """``options`` with the capture's own file of intervals, unless the user names one."""
    own = capture / INTERVALS
    return (
        replace(options, intervals=str(own))
        if options.intervals is None and os.path.lexists(own)
        else options
    )


def _known(name: str) -> Stage:
    if name not in BY_NAME:
        raise BadInput(f"no stage {name!r}", "stages are: " + ", ".join(BY_NAME))
    return BY_NAME[name]


def _checked(spec: str, table: pa.Table | Written) -> pa.Table | Written:
    """``table`` with schema ``spec`` and without duplicate texts in dictionaries, which pandas refuses."""
    if isinstance(table, Written):
        return table
    table = schema.conform(spec, table).unify_dictionaries()
    for i, field in enumerate(table.schema):
        chunks = table.column(i).chunks
        if pa.types.is_dictionary(field.type) and chunks:
            words = chunks[0].dictionary
            if len(words) != len(words.unique()):
                column = table.column(i).cast(field.type.value_type).dictionary_encode()
                table = table.set_column(i, field, column.cast(field.type))
    return table


def _ledger(stage: Stage) -> str:
    return f"losses-{stage.name}"


def _stat(path: Path) -> Iterator[int]:
    """Size and modification time of a file, or of the files of a directory; nothing if it is absent."""
    for file in sorted(path.rglob("*")) if _is_directory(path) else [path]:
        try:
            status = file.stat()
        except OSError:
            continue
        yield from (status.st_size, status.st_mtime_ns)


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a directory that the user may not enter
        return False
