# SPDX-License-Identifier: GPL-2.0-only
"""What ran on which core during slow and during normal messages (Fig. 20 of the paper)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from ..attribution.categories import Categories, load
from ..interval_joins import Int, distinct, overlaps
from ..names import thread_name
from ..recorder import named
from ..selection.application import of_app
from ..selection.options import Selection
from ..tables import schema
from ..tables.data_frames import column
from ..tables.intervals import union
from ..timeline import detours, sections
from ..timeline.recording import Recording

ROLES = ("slow", "baseline", "all")
#: Contexts in drawing order.
CONTEXTS = (
    "application",
    "thread",
    "softirq",
    "hardirq",
    "exception",
    "recording",
    "idle",
    "host",
    "untraced",
)
#: Category of the recording's own programs.
OWN_COST = "NSight's own cost"


_CONTEXTS = ("cpu", "start_ns", "end_ns", "kind", "symbol", "comm", "pid")
#: (context, name, category)
Label = tuple[str, str, str]


_EVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max
#: Sums of so many pairs of core and label are kept for any number of contexts.
_FEW = 1 << 16


class _Asked(NamedTuple):
    """Intervals in which contexts count: of the cores ``cpu``, or of every core; with the column and the role to which they add.

    In order of begin; ``by_then``: the latest end of each and of those before it.
    """

    role: str
    into: str
    cpu: Int | None
    start: Int
    end: Int
    by_then: Int

    @staticmethod
    def of(role: str, into: str, cpu: Int | None, start: Int, end: Int) -> _Asked:
        """Intervals in any order."""
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        by_then = np.maximum.accumulate(end) if len(end) else end
        return _Asked(role, into, None if cpu is None else cpu[order], start, end, by_then)

    def on(self, cores: Int, low: int = _EVER[0], high: int = _EVER[1]) -> tuple[Int, Int, Int]:
        """Core, begin and end of each, on some cores; at least of those that overlap [low, high)."""
        near = slice(int(np.searchsorted(self.by_then, low, "right")), int(np.searchsorted(self.start, high)))
        start, end = self.start[near], self.end[near]
        if self.cpu is None:
            n = len(start)
            return np.repeat(cores, n), np.tile(start, len(cores)), np.tile(end, len(cores))
        cpu = self.cpu[near]
        here = np.isin(cpu, cores)
        return cpu[here], start[here], end[here]


def summarise(compared: pa.Table, here: Recording, there: Recording, options: Selection) -> pa.Table:
    """Table ``cores``: for each role and core, the time of each context.

    ``there``: the capture of the baseline messages, which may be the same. A core's time of a role is the time in
    which at least one of its messages was in progress, on that core or another; where it is not recorded what
    the core did, its context is ``untraced``.
    """
    rows = load(options.categories)
    chosen = compared.to_pandas()
    role = chosen["role"].astype(str)
    ids = {name: chosen.loc[role == name, "message_id"].to_numpy(np.int64) for name in ROLES[:2]}
    of_here = _Cores(here, options, rows)
    asked = [*of_here.around("slow", ids["slow"]), *of_here.always()]
    if there is here or there == here:
        frame = of_here.times([*asked, *of_here.around("baseline", ids["baseline"])])
    else:
        of_there = _Cores(there, options, rows)
        frame = pd.concat(
            [of_here.times(asked), of_there.times(of_there.around("baseline", ids["baseline"]))]
        )
    rank = frame["role"].map({name: i for i, name in enumerate(ROLES)})
    frame = frame.assign(rank=rank).sort_values(
        ["rank", "cpu", "ns", "context", "name"], ascending=[True, True, False, True, True]
    )
    text = ["role", "context", "name", "category"]
    frame = frame.drop(columns="rank").astype(dict.fromkeys(text, "category"))
    return schema.conform("cores", pa.Table.from_pandas(frame, preserve_index=False))


class _Cores:
    """One capture: its cores' contexts, with names. They are read once, a row group at a time."""

    def __init__(self, recording: Recording, options: Selection, rows: Categories) -> None:
        self._messages, self._contexts = recording.compared(), recording.activity("contexts")
        self._recorder = recording.recorder
        self._own = np.unique(of_app(self._messages, options, ["pid"])["pid"].to_numpy())
        self._rows = rows
        self._labels: dict[Label, int] = {_UNTRACED: 0}
        self._named: dict[tuple[str, str, str, str], int] = {}

    def around(self, role: str, ids: Int) -> list[_Asked]:
        """The time while any of these messages was in progress, and the places where it was."""
        messages = self._messages.rows(ids)
        where = sections(messages, detours(messages, self._contexts))
        whole = union(column(messages["first_ns"]), column(messages["last_ns"]))
        return [
            _Asked.of(role, "ns", None, *whole),
            _Asked.of(role, "lifetime_ns", where.cpu, where.start, where.end),
        ]

    def always(self) -> list[_Asked]:
        """From the first to the last time that is known of any core."""
        begin, end = self._contexts.span() or (0, 0)
        return [_Asked.of("all", "ns", None, np.array([begin]), np.array([end]))]

    def times(self, asked: list[_Asked]) -> pd.DataFrame:
        """Time of each context on each core in each of the requested intervals: rows of table ``cores``."""
        parts: list[tuple[Int, ...]] = []
        cores: set[int] = set()
        for batch in self._contexts.batches(_CONTEXTS):
            cpu, start, end = (batch[c].to_numpy().astype(np.int64) for c in _CONTEXTS[:3])
            label = self._label(batch)
            here, times = distinct(cpu), (int(start.min(initial=_EVER[1])), int(end.max(initial=_EVER[0])))
            cores.update(here.tolist())
            for number, of in enumerate(asked):
                _, item, low, high = overlaps(*of.on(here, *times), cpu, start, end)
                parts.append(_added(number, cpu[item], label[item], high - low))
        none = np.zeros(0, np.int64)
        seen = _frame([(none, none, none, none), *parts])
        every = np.array(sorted(cores), np.int64)
        for number, of in enumerate(asked):
            on, low, high = of.on(every if of.cpu is None else np.unique(of.cpu[of.cpu >= 0]))
            _, cpu, label, whole = _added(number, on, np.zeros(len(on), np.int64), high - low)
            known = seen[seen["asked"] == number].groupby("cpu")["ns"].sum()
            untraced = whole - known.reindex(cpu).fillna(0).to_numpy(np.int64)
            parts.append((np.full(len(cpu), number), cpu, label, untraced))
        frame = _frame(parts)
        frame["role"] = np.array([of.role for of in asked], object)[frame["asked"]]
        frame["into"] = np.array([of.into for of in asked], object)[frame["asked"]]
        sums = frame[frame["ns"] > 0].groupby(["role", "cpu", "label", "into"])["ns"].sum()
        wide = pd.DataFrame(sums.unstack("into")).reindex(columns=["ns", "lifetime_ns"])
        return self._table(wide.fillna(0).astype(np.int64).reset_index())

    def _label(self, batch: pa.Table) -> Int:
        """Numbers of the labels of contexts; few are distinct, and each is named once."""
        words: list[list[Any]] = [["other", "application", "recording"]]
        pid = batch["pid"].to_numpy()
        key = np.isin(pid, self._own).astype(np.int64)
        key[self._recorder.among(pid, batch["comm"].to_pandas())] = 2
        for name in ("comm", "symbol", "kind"):
            of = batch[name].unify_dictionaries().combine_chunks()
            words.append(of.dictionary.to_pylist())
            key = key * len(words[-1]) + of.indices.to_numpy()
        code, unique = pd.factorize(key)
        numbers = np.zeros(len(unique), np.int64)
        for i, at in enumerate(zip(*np.unravel_index(unique, [len(w) for w in words]), strict=True)):
            whose, comm, symbol, kind = (w[n] for w, n in zip(words, at, strict=True))
            if (kind, symbol, comm, whose) not in self._named:
                label = _label(kind, symbol, comm, whose, self._rows)
                self._named[kind, symbol, comm, whose] = self._labels.setdefault(label, len(self._labels))
            numbers[i] = self._named[kind, symbol, comm, whose]
        return numbers[code]

    def _table(self, frame: pd.DataFrame) -> pd.DataFrame:
        labels = np.array([*self._labels, ("", "", "")], object)[frame["label"].to_numpy(np.int64)]
        whole = frame.groupby(["role", "cpu"])["ns"].transform("sum").to_numpy(float)
        lived = frame.groupby("role")["lifetime_ns"].transform("sum").to_numpy(float)
        return pd.DataFrame(
            {
                "role": frame["role"].to_numpy(object),
                "cpu": frame["cpu"].to_numpy(np.int32),
                "context": labels[:, 0],
                "name": labels[:, 1],
                "category": labels[:, 2],
                "ns": frame["ns"].to_numpy(np.int64),
                "share": frame["ns"].to_numpy(float) / np.maximum(whole, 1),
                "lifetime_ns": frame["lifetime_ns"].to_numpy(np.int64),
                "lifetime_share": frame["lifetime_ns"].to_numpy(float) / np.maximum(lived, 1),
            }
        )


def _added(asked: int, cpu: Int, label: Int, ns: Int) -> tuple[Int, Int, Int, Int]:
    """Sum of ``ns`` by core and label, per request: (asked, core, label, ns)."""
    size, low, high = int(label.max(initial=0)) + 1, int(cpu.min(initial=0)), int(cpu.max(initial=0))
    key = (cpu - low) * size + label
    if (high - low + 1) * size <= len(cpu) + _FEW:
        n, at, used = (high - low + 1) * size, key, None
    else:  # a hostile table: cores are numbered from 0 on
        used, at = np.unique(key, return_inverse=True)
        n, at = len(used), at.reshape(-1)
    sums = np.zeros(n, np.int64)
    np.add.at(sums, at, ns)
    if used is None:
        used = np.flatnonzero(np.bincount(at, minlength=n))
        sums = sums[used]
    return np.full(len(used), asked), used // size + low, used % size, sums


def _frame(parts: list[tuple[Int, ...]]) -> pd.DataFrame:
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return pd.DataFrame(dict(zip(("asked", "cpu", "label", "ns"), columns, strict=True)))


_UNTRACED: Label = ("untraced", "", "Not recording")


def _label(kind: str, symbol: str, comm: str, whose: str, rows: Categories) -> tuple[str, str, str]:
    """(context, name, category) of an interval of a core."""
    if kind == "gap":
        return _UNTRACED
    if kind == "idle":
        return "idle", "", "Idle"
    if kind == "absent":
        return "host", "steal", rows.find("host", "steal")[0]
    if kind in ("softirq", "hardirq", "exception"):
        return kind, symbol, rows.find(kind, symbol)[0]
    if whose == "recording":
        return "recording", named(comm), OWN_COST
    name = thread_name(comm)
    return ("application" if whose == "application" else "thread"), name, rows.find("thread", name)[0]
