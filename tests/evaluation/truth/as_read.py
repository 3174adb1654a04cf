# SPDX-License-Identifier: GPL-2.0-only
"""Compares what a user reads in a diagnosis with the truth of its run: the first cause, and the whole list.

The injection's log selects nothing here, and the diagnosis selects no messages: the first cause is the report's own, for all
its slow messages. ns are compared message by message. The true cost of an injection for a message is the time for which the
message's lifetime lies in the injection's log, limited to the message's excess over the median of the messages that the
injection did not meet.

An injection can act on a message before the hand-off (R) and after it (A). If the right causes of a scenario name both phases,
and its log says when it acted, each phase has its own cost, and a cause counts in its own phase only. The first cause is right if
it is of the phase that the injection delayed most. If the log says on which core it acted, it counts where a message was: on the
core that received or handed it off (R), on the one of its application (A). Whether the message was the one that was meant does not
matter: others that waited on that core count like it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from machinery.testbed.injections import merge
from nsight_demo.logs import overlap_ns

from .measure import Run
from .table import SHARE

#: Columns of messages between which each phase lies, and those of the cores on which a message was then.
PHASES = {"(R)": ("first_ns", "handoff_ns"), "(A)": ("handoff_ns", "last_ns")}
CORES = {"(R)": ["recv_cpu", "handoff_cpu"], "(A)": ["app_cpu"]}
WHOLE = ("first_ns", "last_ns")


@dataclass(frozen=True)
class AsRead:
    """Figures of one report; ns are sums over its slow messages.

    ``named_ns``: the ns that the list attributes to the injected causes; ``true_ns``: the cost of the injection; ``hit_ns``: the
    smaller of the two for each message. ``beside``: other causes with at least a tenth of the list.
    """

    first: str
    right: bool
    named_ns: int
    true_ns: int
    hit_ns: int
    beside: tuple[str, ...]

    @property
    def precision(self) -> float | None:
        """The share of the ns attributed to the injection that it really caused."""
        return self.hit_ns / self.named_ns if self.named_ns else None

    @property
    def recall(self) -> float | None:
        """The share of the ns caused by the injection that are attributed to it."""
        return self.hit_ns / self.true_ns if self.true_ns else None

    def figures(self) -> str:
        """As readable text."""
        share = [
            f"{what} {'-' if v is None else format(v, '.0%')}"
            for what, v in (("precision", self.precision), ("recall", self.recall))
        ]
        beside = f"; beside it {', '.join(self.beside)}" if self.beside else ""
        return (
            f"{self.first}: {self.named_ns / 1e6:.1f} ms named, {self.true_ns / 1e6:.1f} ms true, of ns "
            f"{', '.join(share)}{beside}"
        )


def phases(expected: tuple[str, ...], truth: str) -> dict[str, tuple[str, str]]:
    """What ends the causes of each phase that has a cost of its own, and the columns of messages between which it lies.

    ``truth``: of the scenario. Where it is not ``intervals``, nothing says when the injection acted.
    """
    is_both = truth == "intervals" and all(any(cause.endswith(end) for cause in expected) for end in PHASES)
    return PHASES if is_both else {"": WHOLE}


def met_ns(
    messages: pd.DataFrame,
    intervals: np.ndarray,
    cores: np.ndarray | None = None,
    between: tuple[str, str] = WHOLE,
) -> np.ndarray:
    """For how long each message was, in that part of its lifetime, where and when an injection acted; ``cores``: of each interval,
    None for all."""
    first, last = (messages[c].fillna(messages["first_ns"]).to_numpy(np.int64) for c in between)
    if cores is None:
        return overlap_ns(first, last, intervals)
    met = np.zeros(len(messages), np.int64)
    if between == WHOLE:
        for part in PHASES.values():
            met += met_ns(messages, intervals, cores, part)
        return met
    columns = next(CORES[end] for end, part in PHASES.items() if part == between)
    for core in np.unique(cores):
        there = messages[columns].eq(core).fillna(False).any(axis=1).to_numpy(bool)
        met[there] += overlap_ns(first[there], last[there], merge(intervals[cores == core]))
    return np.minimum(met, last - first)


def cost_ns(
    messages: pd.DataFrame,
    intervals: np.ndarray,
    cores: np.ndarray | None = None,
    between: tuple[str, str] = WHOLE,
) -> np.ndarray:
    """The cost of an injection for each message of a run; ``cores``: see ``met_ns``."""
    first, last = (messages[c].fillna(messages["first_ns"]).to_numpy(np.int64) for c in between)
    met = met_ns(messages, intervals, cores, between)
    usual = np.median((last - first)[met == 0]) if (met == 0).any() else 0
    return np.clip(np.minimum(met, last - first - usual), 0, None).astype(np.int64)


def judge(
    causes: list[dict[str, Any]],
    expected: tuple[str, ...],
    slow: pd.Series,
    anomalies: pd.DataFrame,
    cost: pd.DataFrame,
) -> AsRead:
    """``causes``: the report's list; ``slow``: the IDs of its messages; ``cost``: of each message of the run, by ID, with a column
    for each of ``phases``."""
    named = anomalies["category"].astype(str) + " (" + anomalies["side"].astype(str) + ")"
    true = cost.reindex(slow).fillna(0).astype(np.int64)
    given = pd.DataFrame(0, true.index, true.columns)
    for end in map(str, true):
        of = anomalies[named.isin(expected) & named.str.endswith(end) & anomalies["message_id"].isin(slow)]
        given[end] = of.groupby("message_id")["deviation_ns"].sum().reindex(slow).fillna(0).astype(np.int64)
    total = sum(int(c["total_deviation_ns"]) for c in causes)
    beside = [
        c["cause"]
        for c in causes
        if c["cause"] not in expected and c["total_deviation_ns"] >= SHARE * max(total, 1)
    ]
    first = causes[0]["cause"] if causes else "none"
    is_right = first in expected and first.endswith(str(true.sum().idxmax()))
    hit = np.minimum(given.to_numpy(), true.to_numpy())
    return AsRead(
        first, is_right, int(given.to_numpy().sum()), int(true.to_numpy().sum()), int(hit.sum()), tuple(beside)
    )  # fmt: skip


def as_read(run: Run, intervals: np.ndarray) -> AsRead:
    """Figures of one live run; ``intervals``: of its injection, or of all its bursts."""
    expected = run.scenario.causes
    ids = run.messages["message_id"].to_numpy(np.int64)
    cost = pd.DataFrame(
        {
            end: cost_ns(run.messages, intervals, run.cores, between)
            for end, between in phases(expected, run.scenario.truth).items()
        },
        ids,
    )
    return judge(run.summary["causes"], expected, run.coverage["message_id"], run.anomalies, cost)
