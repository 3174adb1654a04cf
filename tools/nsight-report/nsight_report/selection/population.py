# SPDX-License-Identifier: GPL-2.0-only
"""Which messages are diagnosed, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from ..errors import BadInput, NoSlowMessages
from ..interval_joins import Int
from ..losses import Ledger
from ..tables import schema
from ..tables.messages import Messages
from .application import App, of_app
from .options import Selection
from .slices import Slice

# Windows cost memory.
MAX_SLOW = 20_000
# A median of fewer values means little.
MIN_BASELINE = 10


#: Resolution (ns) of the times of messages, from their begin and end (ns).
Noise = Callable[[Int, Int], Int]

_COMPARED = (
    "message_id",
    "conn_id",
    "first_ns",
    "last_ns",
    "pid",
    "tid",
    "begin_tid",
    "comm",
    "request_type",
)


class Members(NamedTuple):
    """Messages of one capture that are compared.

    ``messages``: with the columns of table ``messages``; ``group``: number of each one's request type, since messages are
    compared within their type. ``app``: all messages that they were chosen from.
    """

    messages: pd.DataFrame
    group: Int
    app: App


class Population(NamedTuple):
    """Comparable messages of one application, and two slices of them.

    ``of``: those of the capture, or those of the slow messages' capture and of the baseline's. ``slow`` and ``baseline`` are row
    positions in the first and in the last of them.
    """

    of: tuple[Members, ...]
    slow: Int
    baseline: Int

    def groups(self) -> Iterator[tuple[Int, Int]]:
        """Slow and baseline rows that are compared, by request type."""
        slow, baseline = self.of[0].group[self.slow], self.of[-1].group[self.baseline]
        for value in np.unique(slow):
            yield self.slow[slow == value], self.baseline[baseline == value]

    def with_noise(self, noise: Sequence[Noise]) -> Population:
        """The same with ``noise_ns``, by capture: the size up to which a deviation of each message is ignored."""
        of = tuple(
            m._replace(messages=_with_noise(m.messages, n)) for m, n in zip(self.of, noise, strict=True)
        )
        if len(of) > 1:
            slow, theirs = (m.messages for m in of)
            for rows, by in self.groups():
                # The baseline's own precision also limits the comparison.
                least = int(theirs["noise_ns"].iloc[by].median()) if len(by) else 0
                slow.loc[rows, "noise_ns"] = slow.loc[rows, "noise_ns"].clip(lower=least)
        return self._replace(of=of)

    def table(self) -> pa.Table:
        """Table ``compared`` of the schema."""
        both = self.of[0].messages, self.of[-1].messages
        parts = []
        for rows in self.groups():
            usual = int(np.median(both[1]["latency_ns"].to_numpy(np.int64)[rows[1]]))
            for role, messages, of in zip(("slow", "baseline"), both, rows):
                chosen = messages.iloc[of][["message_id", "latency_ns", "noise_ns"]].astype(np.int64)
                parts.append(chosen.assign(role=role, baseline_latency_ns=usual))
        frame = pd.concat(parts).sort_values(["role", "message_id"], ascending=[False, True])
        return schema.conform("compared", pa.Table.from_pandas(frame, preserve_index=False))


def _with_noise(messages: pd.DataFrame, noise: Noise) -> pd.DataFrame:
    first, last = (messages[name].to_numpy(np.int64) for name in ("first_ns", "last_ns"))
    return messages.assign(noise_ns=noise(first, last))


def select(
    captures: Sequence[Messages],
    options: Selection,
    ledger: Ledger,
    seen: Sequence[tuple[int, int] | None] = (None, None),
) -> Population:
    """Choose application, slow slice and baseline slice from one capture, or from the slow messages' capture and another one.

    ``seen``: by capture, the time span that messages must lie in, if given. Raises BadInput when a slice is empty. Slices
    larger than needed are thinned evenly over time; the ledger says so.
    """
    of_slow, of_baseline = options.slow.columns(), options.baseline.columns()
    if len(captures) == 1:
        chosen, origin = usual, usual_origin = _chosen(
            captures[0], options, of_slow + of_baseline, ledger, seen[0]
        )
    else:
        chosen, origin = _chosen(captures[0], options, of_slow, ledger, seen[0])
        usual, usual_origin = _chosen(
            captures[1], options, of_baseline, ledger, seen[1], " of the other capture"
        )
    slow = _slow(chosen, origin, options, ledger)
    baseline = options.baseline.rows(usual, usual_origin)
    baseline = _thinned(
        np.setdiff1d(baseline, slow, assume_unique=True) if usual is chosen else baseline, options, ledger
    )
    _not_empty(baseline, usual, "baseline", options.baseline)
    if usual is chosen:
        group = _groups(chosen["request_type"], slow, baseline, ledger)
        rows = np.union1d(slow, baseline)
        one = _members(captures[0], chosen, rows, group)
        return Population((one,), np.searchsorted(rows, slow), np.searchsorted(rows, baseline))
    types = pd.concat([of["request_type"].astype(object) for of in (chosen, usual)], ignore_index=True)
    group, usual_group = np.split(_groups(types, slow, len(chosen) + baseline, ledger), [len(chosen)])
    both = _members(captures[0], chosen, slow, group), _members(captures[1], usual, baseline, usual_group)
    return Population(both, np.arange(len(slow)), np.arange(len(baseline)))


def _members(messages: Messages, chosen: pd.DataFrame, rows: Int, group: Int) -> Members:
    return Members(messages.rows(chosen["message_id"].to_numpy()[rows]), group[rows], App.of(chosen))


def looked_at(messages: Messages, options: Selection, seen: tuple[int, int] | None = None) -> Int:
    """Numbers of the messages that ``select`` chooses from this capture, whether it is the only one or one of two, ascending.

    An empty slice adds none: a capture that is only a baseline need not have slow messages. Raises
    NoSlowMessages if both are empty.
    """
    told = Ledger("anomalies")  # the stage that compares them reports the losses
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
    """Messages of the application that can be compared, and when its first message began."""
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


def _within(messages: pd.DataFrame, seen: tuple[int, int], ledger: Ledger, whose: str) -> pd.DataFrame:
    first, last = (messages[name].to_numpy(np.int64) for name in ("first_ns", "last_ns"))
    inside = (first >= seen[0]) & (last <= seen[1])
    ledger.add("messages_outside_trace", int((~inside).sum()), whose=whose)
    if not inside.any():
        raise BadInput(
            "no message lies in the time that perf traced",
            "perf.data is cut or of another recording: record again",
        )
    # It grows with the recording: copied only if some messages are left out.
    return messages if inside.all() else messages[inside].reset_index(drop=True)


def _groups(
    request_type: pd.Series[Any], slow: np.ndarray, baseline: np.ndarray, ledger: Ledger
) -> np.ndarray:
    """Number of each message's request type; messages with number 0 are compared with each other.

    A type without enough baseline messages is compared with all other such types.
    """
    types = request_type.astype("category").cat
    group = types.codes.to_numpy().astype(np.int64) + 1
    counts = np.bincount(group[baseline], minlength=len(types.categories) + 1)
    few = counts[group] < MIN_BASELINE
    if few.all() or not few[slow].any():
        return np.where(few, 0, group)
    ledger.add("request_types_with_few_messages", len(np.unique(group[slow[few[slow]]])))
    # Then all types are merged: a baseline of only the rare ones would be too small.
    return np.zeros(len(group), np.int64)
