# SPDX-License-Identifier: GPL-2.0-only
"""How well a diagnosis agrees with the truth of its run.

A target message counts as truly affected when at least half of its deviation is covered by
the injection's own log: its lifetime lies that long inside the logged intervals. Precision is
the share of target messages with the injected cause as their largest that are truly affected;
recall is the share of truly affected target messages that have it as their largest.

Without injection nothing should be accused. A virtual machine has slow messages of its own, and
naming what delayed those is right, so silence is not asked for: a cause has *weight* when a
user would act on it, which we put at more than half of the target's deviation on at least ten
messages and a median of ``WEIGHT_NS`` each. Injections here cost milliseconds; the floor is a
fifth of the weakest. A cause with weight that is a program from outside the testbed is the
machine's own noise, told apart and reported, but not a false accusation.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from testbed.logs import overlap_ns

from .measure import Run

WEIGHT_NS = 300_000
OURS = {"hog", "flood", "nginx", "redis-server", "memcached", "mc-worker", "load-client", "Application stopped",
        "Head-of-line blocking", "Receive processing", "NSight's own cost"}  # fmt: skip


@dataclass
class Score:
    """One row of the table."""

    scenario: str
    server: str
    expected: list[str]
    top_cause: str
    top_share: float
    right: bool
    n_target: int
    n_affected: int
    n_blamed: int
    precision: float | None
    recall: float | None
    coverage_median: float | None
    target_median_us: float
    n_requests: int
    n_messages: int
    seconds: float
    causes: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        return asdict(self)


def cause_of(anomalies: pd.DataFrame) -> pd.Series:
    """Largest root cause of each message, by message_id."""
    name = anomalies.category.astype(str) + " (" + anomalies.side.astype(str) + ")"
    sums = anomalies.deviation_ns.groupby([anomalies.message_id, name]).sum()
    top = sums.sort_values(ascending=False, kind="stable").reset_index()
    top.columns = pd.Index(["message_id", "cause", "deviation_ns"])
    return top.drop_duplicates("message_id").set_index("message_id")["cause"]


def burst_intervals(load: pd.DataFrame) -> np.ndarray:
    """From the first byte sent to the last answer of every burst."""
    bursts = load[(load.kind == "burst") & (load.recv_ns > 0)].groupby("intended_ns")
    return np.column_stack([bursts.send_ns.min(), bursts.recv_ns.max()])


def affected(run: Run, target: pd.DataFrame) -> np.ndarray:
    """Which target messages the injection truly delayed."""
    if run.scenario.truth == "lports":
        return target.rport.isin(run.lports).to_numpy()
    intervals = burst_intervals(run.load) if run.scenario.truth == "bursts" else run.intervals
    met = overlap_ns(target.first_ns.to_numpy(), target.last_ns.to_numpy(), intervals)
    return met >= 0.5 * target.deviation_ns.to_numpy()


def score(run: Run) -> Score:
    """Compare."""
    scenario = run.scenario
    columns = ["message_id", "deviation_ns"]
    target = run.messages.merge(run.coverage[columns], on="message_id")
    cause = cause_of(run.anomalies).reindex(target.message_id)
    blamed = cause.isin(scenario.causes).to_numpy()
    truth = affected(run, target) if scenario.causes else np.zeros(len(target), bool)
    causes = run.summary["causes"]
    top: dict[str, Any] = causes[0] if causes else {"cause": "none", "total_deviation_ns": 0}
    total = max(int(target.deviation_ns.sum()), 1)
    n_hit = int((blamed & truth).sum())
    note = scenario.note
    if scenario.causes:
        right = top["cause"] in scenario.causes
    else:
        heavy = [c for c in causes if has_weight(c, total)]
        right = not [c for c in heavy if c["category"] in OURS]
        note = "; ".join(f"machine's own: {c['cause']}" for c in heavy if c["category"] not in OURS)
    return Score(
        scenario=scenario.name,
        server=scenario.server,
        expected=list(scenario.causes),
        top_cause=top["cause"],
        top_share=top["total_deviation_ns"] / total,
        right=right,
        n_target=len(target),
        n_affected=int(truth.sum()),
        n_blamed=int(blamed.sum()),
        precision=n_hit / int(blamed.sum()) if blamed.any() else None,
        recall=n_hit / int(truth.sum()) if truth.any() else None,
        coverage_median=run.summary["coverage"]["median"],
        target_median_us=float(target.deviation_ns.median()) / 1000 if len(target) else 0.0,
        n_requests=len(run.load),
        n_messages=len(run.messages),
        seconds=run.seconds,
        causes=causes[:5],
        note=note,
    )


def has_weight(cause: dict[str, Any], total_ns: int) -> bool:
    """Would a user act on it? See the module's description.

    >>> has_weight({"total_deviation_ns": 60, "n_messages": 10, "median_deviation_ns": 300_000}, 100)
    True
    """
    return bool(
        cause["total_deviation_ns"] > total_ns / 2
        and cause["n_messages"] >= 10
        and cause["median_deviation_ns"] >= WEIGHT_NS
    )
