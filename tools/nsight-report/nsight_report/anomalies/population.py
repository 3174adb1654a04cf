# SPDX-License-Identifier: GPL-2.0-only
"""Which messages are diagnosed, and against which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from .. import schema
from ..errors import BadInput
from ..losses import Ledger
from .options import Options

# Windows cost memory.
MAX_TARGET = 20_000
# A median of fewer says little.
MIN_REFERENCE = 10


@dataclass(frozen=True)
class Population:
    """Comparable messages of one application, and the two slices of them.

    ``messages`` has the columns of ``schema.MESSAGES``; ``target`` and ``reference`` are
    row positions in it. ``group``: number of each message's request type: messages are compared with their like.
    """

    app: str
    messages: pd.DataFrame
    target: np.ndarray
    reference: np.ndarray
    group: np.ndarray

    def groups(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Target and reference rows that are compared, by request type."""
        for value in np.unique(self.group[self.target]):
            yield (
                self.target[self.group[self.target] == value],
                self.reference[self.group[self.reference] == value],
            )

    def table(self) -> pa.Table:
        """Table ``compared`` of schema.py."""
        latency = self.messages["latency_ns"].to_numpy(np.int64)
        ids = self.messages["message_id"].to_numpy(np.int64)
        parts = []
        for target, reference in self.groups():
            rows = np.append(target, reference)
            parts.append(
                pd.DataFrame(
                    {
                        "message_id": ids[rows],
                        "role": np.repeat(["target", "reference"], [len(target), len(reference)]),
                        "latency_ns": latency[rows],
                        "reference_latency_ns": int(np.median(latency[reference])),
                    }
                )
            )
        frame = pd.concat(parts).sort_values("message_id")
        return schema.conform("compared", pa.Table.from_pandas(frame, preserve_index=False))


def choose_app(messages: pd.DataFrame, options: Options) -> pd.DataFrame:
    """The messages of one application (process) in one direction.

    Without ``options.app`` and ``options.port``: of all processes the one that serves, that is
    the one whose own port more peers talk to than it talks to itself; ties by message count.
    """
    chosen = messages[(messages["direction"] == options.direction) & messages["latency_ns"].notna()]
    if options.port is not None:
        chosen = chosen[chosen["lport"] == options.port]
    if options.app is not None:
        by_pid = options.app.isdigit()
        chosen = chosen[chosen["pid"] == int(options.app) if by_pid else chosen["comm"] == options.app]
    if chosen.empty:
        raise BadInput(
            "no complete message matches the selection",
            "see the losses, and which applications, ports and directions the capture has: "
            + (", ".join(_apps(messages)) or "none"),
        )
    if options.app is None:
        # One listening port serves many peer ports; a client uses many own ports for one peer port.
        groups = chosen.groupby("pid").agg(
            n=("pid", "size"), own=("lport", "nunique"), peers=("rport", "nunique"), low=("lport", "min")
        )
        groups["serves"] = groups["own"] <= groups["peers"]
        groups = groups.sort_values(["serves", "n", "low"], ascending=[False, False, True])
        best = groups.iloc[0]
        same = groups[(groups["serves"] == best["serves"]) & (groups["low"] == best["low"])]
        # Worker processes of one server (nginx) listen on one port: they are one application.
        chosen = chosen[chosen["pid"].isin(same.index)]
    return chosen


def select(
    messages: pd.DataFrame, options: Options, ledger: Ledger, seen: tuple[int, int] | None = None
) -> Population:
    """Choose application, target slice and reference slice, of messages in the time ``seen`` if it is given.

    Raises BadInput when a slice is empty. Slices that are larger than what is needed are
    thinned evenly over time; the ledger says so.
    """
    chosen = choose_app(messages, options).sort_values("message_id").reset_index(drop=True)
    if seen is not None:
        chosen = _within(chosen, seen, ledger)
    latency = chosen["latency_ns"].to_numpy(np.int64)
    target = options.target.rows(chosen)
    reference = np.setdiff1d(options.reference.rows(chosen), target)
    for name, rows, spec in (("target", target, options.target), ("reference", reference, options.reference)):
        if not len(rows):
            raise BadInput(
                f"the {name} slice {spec} holds none of {len(latency)} messages",
                f"latencies go from {latency.min()} to {latency.max()} ns: choose another --{name}",
            )
    if len(target) > MAX_TARGET:
        ledger.add(
            "target messages not analysed",
            len(target) - MAX_TARGET,
            "info",
            f"the slowest {MAX_TARGET} of the target slice were analysed",
            "choose a narrower --target",
        )
        target = np.sort(target[np.argsort(latency[target], kind="stable")[-MAX_TARGET:]])
    enough = max(options.max_reference, len(target))
    if len(reference) > enough:
        reference = reference[np.linspace(0, len(reference) - 1, enough).astype(np.int64)]
    comms = chosen["comm"].value_counts()
    return Population(
        str(comms.index[0]), chosen, target, reference, _groups(chosen, target, reference, ledger)
    )


def _within(messages: pd.DataFrame, seen: tuple[int, int], ledger: Ledger) -> pd.DataFrame:
    first, last = (messages[name].to_numpy(np.int64) for name in ("first_ns", "last_ns"))
    inside = (first >= seen[0]) & (last <= seen[1])
    ledger.add(
        "messages outside of the trace",
        int((~inside).sum()),
        "warning",
        "nothing says what the cores did then: these messages were not compared",
        "record as long as the load runs",
    )
    if not inside.any():
        raise BadInput(
            "no message lies in the time that perf traced",
            "perf.data is cut or of another recording: record again",
        )
    return messages[inside].reset_index(drop=True)


def _groups(messages: pd.DataFrame, target: np.ndarray, reference: np.ndarray, ledger: Ledger) -> np.ndarray:
    """Number of each message's request type; 0: compared with all that have 0.

    A type without enough reference messages is compared with every other of that kind.
    """
    types = messages["request_type"].astype("category").cat
    group = types.codes.to_numpy().astype(np.int64) + 1
    counts = np.bincount(group[reference], minlength=len(types.categories) + 1)
    few = counts[group] < MIN_REFERENCE
    if few.all() or not few[target].any():
        return np.where(few, 0, group)
    ledger.add(
        "request types without enough messages to compare with",
        len(np.unique(group[target[few[target]]])),
        "info",
        f"fewer than {MIN_REFERENCE} of the reference are of their type: compared with those of every type",
        "choose a wider --reference, or record longer",
    )
    # Then all types are one: a reference of only the rare ones would be none.
    return np.zeros(len(group), np.int64)


def _apps(messages: pd.DataFrame) -> list[str]:
    if messages.empty:
        return []
    counts = messages.groupby(["comm", "pid", "lport", "direction"], observed=True).size()
    top = counts.sort_values(ascending=False).head(5)
    rows = top.rename("n").reset_index()
    return [f"{r.comm}[{r.pid}] port {r.lport} {r.direction} ({r.n})" for r in rows.itertuples()]  # five
