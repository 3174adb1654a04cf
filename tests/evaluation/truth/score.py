# SPDX-License-Identifier: GPL-2.0-only
"""How well a diagnosis agrees with the truth of its run.

The first figures are what a user reads (as_read.py): the report's own first cause, and the ns of its whole list. The figures of
this module are about the messages that the injection's log selects.

A slow message counts as truly affected when at least half of its deviation is covered by
the injection's own log: its lifetime lies that long inside the logged intervals. Precision is
the share of slow messages with the injected cause as their largest that are truly affected;
recall is the share of truly affected slow messages that have it as their largest. For the affected messages an answer is
right if the injected cause has most of their delay: if the host takes the cores of a virtual machine away for 20 ms, some slow
messages have another cause, and there is no truth for those. If the injection met fewer than ``LEAST_AFFECTED`` slow messages
of a recording, there is no right answer: 30 ms of steal time make up the whole slowest percent of 3 s.

Without an injection, no cause should be blamed. But a virtual machine has slow messages of its own, and
naming their cause is right. So the report may name causes, but none with *weight*: a user would act on
it, which we define as more than half of the slow messages' deviation on at least ten
messages and a median of ``WEIGHT_NS`` each. Injections here cost milliseconds; the floor is a
fifth of the weakest. An injection that by the kernel's own count never acted (``witness``) makes a control, too: its causes may
not be named at all. A cause with weight that is a program from outside the testbed is the
machine's own noise: it is reported separately, and is not a false alarm.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from machinery.testbed.injections import merge

from .as_read import as_read, met_ns
from .measure import Run

WEIGHT_NS = 300_000
#: Such a run had counted as wrong before the kernel's own count was looked at.
NEVER = "the injection never acted: as the scenario that was meant, this run is wrong"
#: An injection that met fewer slow messages does not count as one.
LEAST_AFFECTED = 5
#: Time error of tracepoints in mode tracepoints, at both ends.
TRACE_BOUND_NS = 2_000
OURS = {"hog", "flood", "nginx", "redis-server", "memcached", "mc-worker", "load-client", "Application stopped",
        "Head-of-line blocking", "Accept queue", "Receive processing", "NSight's own cost"}  # fmt: skip


@dataclass
class Score:
    """One row of the table; ``top_cause`` and its share: of the affected messages; without an injection, of all slow messages.

    ``right``: the report's first cause is an injected one; for a control, that no cause of OURS has weight.
    ``right_of_affected``: whether ``top_cause`` is an injected one. ``as_read``: figures of as_read.py.
    ``stolen_ms``: steal time, both cores together. ``witness``: what the kernel itself counted of the injection.
    """

    scenario: str
    server: str
    expected: list[str]
    top_cause: str
    top_share: float
    right: bool
    right_of_affected: bool
    as_read: dict[str, Any]
    n_slow: int
    n_affected: int
    n_blamed: int
    precision: float | None
    recall: float | None
    coverage_median: float | None
    slow_median_us: float
    n_requests: int
    n_messages: int
    seconds: float
    causes: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""
    coverage_min: float | None = None
    error_median: float | None = None
    within: float | None = None
    stolen_ms: int = 0
    n_lost: int = 0
    witness: dict[str, int] = field(default_factory=dict)

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


def largest(anomalies: pd.DataFrame, ids: pd.Series) -> tuple[str, int]:
    """Root cause with the largest delay of some messages, and that delay; ("none", 0) if nothing delayed them."""
    of = anomalies[anomalies.message_id.isin(ids)]
    sums = of.deviation_ns.groupby(of.category.astype(str) + " (" + of.side.astype(str) + ")").sum()
    return ("none", 0) if sums.empty else (str(sums.idxmax()), int(sums.max()))


def bursts(load: pd.DataFrame) -> np.ndarray:
    """When a burst was under way: from its first byte sent to its last answer."""
    by = load[(load.kind == "burst") & (load.recv_ns > 0)].groupby("intended_ns")
    return merge(np.column_stack([by.send_ns.min(), by.recv_ns.max()]))


def affected(run: Run, slow: pd.DataFrame, intervals: np.ndarray) -> np.ndarray:
    """Which slow messages the injection truly delayed."""
    return met_ns(slow, intervals, run.cores) >= 0.5 * slow.deviation_ns.to_numpy()


def score(run: Run) -> Score:
    """Compare."""
    scenario = run.scenario
    intervals = bursts(run.load) if scenario.truth == "bursts" else run.intervals
    columns = ["message_id", "deviation_ns"]
    slow = run.messages.merge(run.coverage[columns], on="message_id")
    cause = cause_of(run.anomalies).reindex(slow.message_id)
    blamed = cause.isin(scenario.causes).to_numpy()
    truth = affected(run, slow, intervals) if scenario.causes else np.zeros(len(slow), bool)
    causes = run.summary["causes"]
    judged = slow[truth] if scenario.causes else slow
    top_cause, top_ns = largest(run.anomalies, judged.message_id)
    n_hit = int((blamed & truth).sum())
    note = scenario.note
    read = as_read(run, intervals)
    if scenario.causes:
        right = read.right
        right_of_affected = top_cause in scenario.causes and len(judged) >= LEAST_AFFECTED
    else:
        total = max(int(slow.deviation_ns.sum()), 1)
        heavy = [c for c in causes if has_weight(c, total)]
        never = [c["cause"] for c in causes if c["cause"] in scenario.without]
        alarms = OURS - set(scenario.beside)
        right = right_of_affected = not never and not [c for c in heavy if c["category"] in alarms]
        notes = [f"machine's own: {c['cause']}" for c in heavy if c["category"] not in OURS]
        note = "; ".join([*notes, *([NEVER] if scenario.without else [])])
    return Score(
        scenario=scenario.name,
        server=scenario.server,
        expected=list(scenario.causes),
        top_cause=top_cause,
        top_share=top_ns / max(int(judged.deviation_ns.sum()), 1),
        right=right,
        right_of_affected=right_of_affected,
        as_read={
            **asdict(read),
            "precision": read.precision,
            "recall": read.recall,
            "figures": read.figures(),
        },
        n_slow=len(slow),
        n_affected=int(truth.sum()),
        n_blamed=int(blamed.sum()),
        precision=n_hit / int(blamed.sum()) if blamed.any() else None,
        recall=n_hit / int(truth.sum()) if truth.any() else None,
        coverage_median=run.summary["coverage"]["median"],
        slow_median_us=float(slow.deviation_ns.median()) / 1000 if len(slow) else 0.0,
        n_requests=len(run.load),
        n_messages=len(run.messages),
        seconds=run.seconds,
        causes=causes[:5],
        note=note,
        coverage_min=run.summary["coverage"]["min"],
        stolen_ms=run.stolen_ms,
        n_lost=run.n_lost,
        witness=run.witness,
        **_ns(run, slow, truth & blamed),
    )


def _ns(run: Run, slow: pd.DataFrame, hit: np.ndarray) -> dict[str, float]:
    """Error of the attributed ns, if the injection's log has intervals and the injection was named.

    The log covers only the program's own work; context switches to and from it belong to it too.
    """
    if run.scenario.truth != "intervals" or not hit.any():
        return {}
    met = met_ns(slow, run.intervals, run.cores)[hit]
    name = run.anomalies.category.astype(str) + " (" + run.anomalies.side.astype(str) + ")"
    own = run.anomalies[name.isin(run.scenario.causes)].groupby("message_id").took_ns.sum()
    off = np.abs(own.reindex(slow.message_id[hit]).fillna(0).to_numpy() - met)
    return {
        "error_median": float(np.median(off / met)),
        "within": float((off <= np.maximum(0.05 * met, TRACE_BOUND_NS)).mean()),
    }


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
