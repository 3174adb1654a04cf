# SPDX-License-Identifier: GPL-2.0-only
"""Which messages are diagnosed, and against which."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from ..errors import BadInput, NoSlowMessages
from ..interval_joins import Int
from ..losses import Ledger
from ..tables import schema
from ..tables.messages import Messages
from .options import Selection
from .slices import Slice

# Windows cost memory.
MAX_SLOW = 20_000
# A median of fewer says little.
MIN_BASELINE = 10


#: What times of messages, from begin to end (ns), cannot be told from others by, in ns.
Noise = Callable[[Int, Int], Int]

_OF_APP = ("message_id", "direction", "lport", "rport", "pid", "comm")
_COMPARED = ("message_id", "conn_id", "first_ns", "last_ns", "tid", "comm", "request_type")


class App(NamedTuple):
    """Messages of one application: their numbers, ascending, the connection of each, and which threads they had."""

    ids: Int
    conn: Int
    tids: Int

    @staticmethod
    def of(messages: pd.DataFrame) -> App:
        """By rows in the table's order: message_id, conn_id, tid."""
        ids, conn, tid = (messages[c].to_numpy(np.int64) for c in ("message_id", "conn_id", "tid"))
        return App(ids, conn, np.unique(tid))


@dataclass(frozen=True)
class Population:
    """Comparable messages of one application, and the two slices of them.

    ``messages``: those of the slices, with the columns of table ``messages``; ``slow`` and ``baseline`` are row
    positions in it. ``group``: number of each one's request type: messages are compared with their like. ``app``: all
    that the slices were chosen from. ``others``, ``others_group``, ``others_app``: of another capture, if the baseline
    is of that one.
    """

    name: str
    app: App
    messages: pd.DataFrame
    slow: np.ndarray
    baseline: np.ndarray
    group: np.ndarray
    others: pd.DataFrame | None = None
    others_group: np.ndarray | None = None
    others_app: App | None = None

    def groups(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Slow and baseline rows that are compared, by request type."""
        other_group = self.group if self.others_group is None else self.others_group
        for value in np.unique(self.group[self.slow]):
            yield (
                self.slow[self.group[self.slow] == value],
                self.baseline[other_group[self.baseline] == value],
            )

    def with_noise(self, noise: Noise, noise_of_others: Noise | None = None) -> Population:
        """The same with ``noise_ns``: up to what a deviation of each message is ignored."""
        messages = _with_noise(self.messages, noise)
        if self.others is None or noise_of_others is None:
            return replace(self, messages=messages)
        others = _with_noise(self.others, noise_of_others)
        for rows, by in self.groups():
            # Known no better than what they are compared with.
            theirs = int(others["noise_ns"].iloc[by].median()) if len(by) else 0
            messages.loc[rows, "noise_ns"] = messages.loc[rows, "noise_ns"].clip(lower=theirs)
        return replace(self, messages=messages, others=others)

    def table(self) -> pa.Table:
        """Table ``compared`` of schema.py."""
        baseline_of = self.messages if self.others is None else self.others
        parts = []
        for rows in self.groups():
            usual = int(np.median(baseline_of["latency_ns"].to_numpy(np.int64)[rows[1]]))
            for role, messages, of in zip(("slow", "baseline"), (self.messages, baseline_of), rows):
                chosen = messages.iloc[of][["message_id", "latency_ns", "noise_ns"]].astype(np.int64)
                parts.append(chosen.assign(role=role, baseline_latency_ns=usual))
        frame = pd.concat(parts).sort_values(["role", "message_id"], ascending=[False, True])
        return schema.conform("compared", pa.Table.from_pandas(frame, preserve_index=False))


def _with_noise(messages: pd.DataFrame, noise: Noise) -> pd.DataFrame:
    first, last = (messages[name].to_numpy(np.int64) for name in ("first_ns", "last_ns"))
    return messages.assign(noise_ns=noise(first, last))


def choose_app(messages: Messages, options: Selection) -> Int:
    """Numbers of the messages of one application (process) in one direction.

    Without ``options.app`` and ``options.port``: of all processes the one that serves, that is
    the one whose own port more peers talk to than it talks to itself; ties by message count.
    """
    every = messages.columns(_OF_APP)
    chosen = (every["direction"] == options.direction).to_numpy(bool)
    if options.port is not None:
        chosen = chosen & (every["lport"] == options.port).to_numpy(bool)
    if options.app is not None:
        by_pid = options.app.isdigit()
        of = every["pid"] == int(options.app) if by_pid else every["comm"] == options.app
        chosen = chosen & of.to_numpy(bool)
    if not chosen.any():
        raise BadInput(
            "no complete message matches the selection",
            "see the losses, and which applications, ports and directions the capture has: "
            + (", ".join(_apps(every)) or "none"),
        )
    if options.app is None:
        # One listening port serves many peer ports; a client uses many own ports for one peer port.
        groups = (
            every.loc[chosen, ["pid", "lport", "rport"]]
            .groupby("pid")
            .agg(
                n=("pid", "size"), own=("lport", "nunique"), peers=("rport", "nunique"), low=("lport", "min")
            )
        )
        groups["serves"] = groups["own"] <= groups["peers"]
        groups = groups.sort_values(["serves", "n", "low"], ascending=[False, False, True])
        best = groups.iloc[0]
        same = groups[(groups["serves"] == best["serves"]) & (groups["low"] == best["low"])]
        # Worker processes of one server (nginx) listen on one port: they are one application.
        chosen = chosen & np.isin(every["pid"].to_numpy(), same.index.to_numpy())
    return every["message_id"].to_numpy()[chosen]


def of_app(messages: Messages, options: Selection, names: Sequence[str]) -> pd.DataFrame:
    """Some columns (as ``Messages.columns`` has them) of the messages of the application that ``choose_app`` chooses."""
    ids = choose_app(messages, options)
    return messages.columns(["message_id", *names], lambda rows: np.isin(rows["message_id"].to_numpy(), ids))


def select(
    messages: Messages, options: Selection, ledger: Ledger, seen: tuple[int, int] | None = None
) -> Population:
    """Choose application, slow slice and baseline slice, of messages in the time ``seen`` if it is given.

    Raises BadInput when a slice is empty. Slices that are larger than what is needed are
    thinned evenly over time; the ledger says so.
    """
    chosen, origin = _chosen(
        messages, options, options.slow.columns() + options.baseline.columns(), ledger, seen
    )
    slow = _slow(chosen, origin, options, ledger)
    baseline = _thinned(np.setdiff1d(options.baseline.rows(chosen, origin), slow), options, ledger)
    _not_empty(baseline, chosen, "baseline", options.baseline)
    group = _groups(chosen["request_type"], slow, baseline, ledger)
    rows = np.union1d(slow, baseline)
    return Population(
        _name(chosen), App.of(chosen), messages.rows(chosen["message_id"].to_numpy()[rows]),
        np.searchsorted(rows, slow), np.searchsorted(rows, baseline), group[rows],
    )  # fmt: skip


def select_against(
    messages: Messages,
    others: Messages,
    options: Selection,
    ledger: Ledger,
    seen: tuple[int, int] | None = None,
    others_seen: tuple[int, int] | None = None,
) -> Population:
    """The same with the baseline slice from the messages of another capture."""
    chosen, origin = _chosen(messages, options, options.slow.columns(), ledger, seen)
    usual, others_origin = _chosen(
        others, options, options.baseline.columns(), ledger, others_seen, " of the other capture"
    )
    slow = _slow(chosen, origin, options, ledger)
    baseline = _thinned(options.baseline.rows(usual, others_origin), options, ledger)
    _not_empty(baseline, usual, "baseline", options.baseline)
    types = pd.concat([of["request_type"].astype(object) for of in (chosen, usual)], ignore_index=True)
    group, others_group = np.split(_groups(types, slow, len(chosen) + baseline, ledger), [len(chosen)])
    return Population(
        _name(chosen), App.of(chosen), messages.rows(chosen["message_id"].to_numpy()[slow]),
        np.arange(len(slow)), np.arange(len(baseline)), group[slow],
        others.rows(usual["message_id"].to_numpy()[baseline]), others_group[baseline], App.of(usual),
    )  # fmt: skip


def looked_at(messages: Messages, options: Selection, seen: tuple[int, int] | None = None) -> Int:
    """Numbers of the messages that ``select`` chooses, and ``select_against`` of either capture, ascending.

    An empty slice adds none: of a capture that another one is held against, slow messages need not exist. Raises
    NoSlowMessages when both are.
    """
    told = Ledger("anomalies")  # by who compares them
    chosen, origin = _chosen(
        messages, options, options.slow.columns() + options.baseline.columns(), told, seen
    )
    slow = _slowest(options.slow.rows(chosen, origin), chosen, told)
    usual = options.baseline.rows(chosen, origin)
    apart = np.setdiff1d(usual, slow)
    rows = np.concatenate([slow, *(_thinned(of, options, told) for of in (usual, apart))])
    _not_empty(rows, chosen, "slow", options.slow)
    return chosen["message_id"].to_numpy(np.int64)[np.unique(rows)]


def slices_overlap(messages: Messages, options: Selection) -> bool:
    """Whether a message is among the slow messages and in the baseline slice."""
    names = options.slow.columns() + options.baseline.columns()
    chosen, origin = _chosen(messages, options, names, Ledger("anomalies"), None)
    both = np.intersect1d(options.slow.rows(chosen, origin), options.baseline.rows(chosen, origin))
    return bool(len(both))


def _chosen(
    messages: Messages,
    options: Selection,
    names: list[str],
    ledger: Ledger,
    seen: tuple[int, int] | None,
    whose: str = "",
) -> tuple[pd.DataFrame, int]:
    """Messages of the application that can be compared, and when its first one began."""
    chosen = of_app(messages, options, [*_COMPARED, *names])
    origin = int(chosen["first_ns"].min())
    return (chosen if seen is None else _within(chosen, seen, ledger, whose)), origin


def _slow(chosen: pd.DataFrame, origin: int, options: Selection, ledger: Ledger) -> np.ndarray:
    slow = options.slow.rows(chosen, origin)
    _not_empty(slow, chosen, "slow", options.slow)
    return _slowest(slow, chosen, ledger)


def _slowest(slow: np.ndarray, chosen: pd.DataFrame, ledger: Ledger) -> np.ndarray:
    if len(slow) > MAX_SLOW:
        ledger.add("slow_messages_left_out", len(slow) - MAX_SLOW)
        latency = chosen["latency_ns"].to_numpy(np.int64)[slow]
        slow = np.sort(slow[np.argsort(latency, kind="stable")[-MAX_SLOW:]])
    return slow


def _thinned(baseline: np.ndarray, options: Selection, ledger: Ledger) -> np.ndarray:
    enough = options.max_baseline
    if len(baseline) <= enough:
        return baseline
    ledger.add("baseline_messages_left_out", len(baseline) - enough, enough=enough)
    return baseline[np.linspace(0, len(baseline) - 1, enough).astype(np.int64)]


def _not_empty(rows: np.ndarray, chosen: pd.DataFrame, name: str, spec: Slice) -> None:
    if not len(rows):
        latency = chosen["latency_ns"]
        raise (NoSlowMessages if name == "slow" else BadInput)(
            f"the {name} slice {spec} holds none of {len(chosen)} messages",
            f"latencies go from {latency.min()} to {latency.max()} ns: choose another --{name}",
        )


def _name(chosen: pd.DataFrame) -> str:
    return str(chosen["comm"].value_counts().index[0])


def _within(messages: pd.DataFrame, seen: tuple[int, int], ledger: Ledger, whose: str) -> pd.DataFrame:
    first, last = (messages[name].to_numpy(np.int64) for name in ("first_ns", "last_ns"))
    inside = (first >= seen[0]) & (last <= seen[1])
    ledger.add("messages_outside_trace", int((~inside).sum()), whose=whose)
    if not inside.any():
        raise BadInput(
            "no message lies in the time that perf traced",
            "perf.data is cut or of another recording: record again",
        )
    return messages[inside].reset_index(drop=True)


def _groups(
    request_type: pd.Series[Any], slow: np.ndarray, baseline: np.ndarray, ledger: Ledger
) -> np.ndarray:
    """Number of each message's request type; 0: compared with all that have 0.

    A type without enough baseline messages is compared with every other of that kind.
    """
    types = request_type.astype("category").cat
    group = types.codes.to_numpy().astype(np.int64) + 1
    counts = np.bincount(group[baseline], minlength=len(types.categories) + 1)
    few = counts[group] < MIN_BASELINE
    if few.all() or not few[slow].any():
        return np.where(few, 0, group)
    ledger.add("request_types_with_few_messages", len(np.unique(group[slow[few[slow]]])))
    # Then all types are one: a baseline of only the rare ones would be none.
    return np.zeros(len(group), np.int64)


def _apps(messages: pd.DataFrame) -> list[str]:
    if messages.empty:
        return []
    counts = messages.groupby(["comm", "pid", "lport", "direction"], observed=True).size()
    top = counts.sort_values(ascending=False).head(5)
    rows = top.rename("n").reset_index()
    return [f"{r.comm}[{r.pid}] port {r.lport} {r.direction} ({r.n})" for r in rows.itertuples()]  # five
