# SPDX-License-Identifier: GPL-2.0-only
"""Diagnose emulated captures in both modes, and report the accuracy.

Mode intel-pt uses the capture unchanged. Mode tracepoints is derived from the same recording: from the decoded data it keeps only
what the recorder's tracepoints would have recorded (which thread had the core, system calls, softirqs, hard interrupts, idle time),
without functions, stalls or exceptions, at the tracepoints' granularity. The guest recorded no tracepoints beside Intel PT, so
wake-ups and the states in which threads left their cores come from switch records, as in mode intel-pt. The overhead of
tracepoints is not included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from machinery.pt_emulation.scenarios.table import SCENARIOS
from nsight_report.anomalies import Recording, Selection, find
from nsight_report.api import Capture, open_capture
from nsight_report.attribution import attribute
from nsight_report.calls.innermost import nearest
from nsight_report.clocks import ClockMap
from nsight_report.queuing import break_down
from nsight_report.recorder import Recorder
from nsight_report.selection.slices import Condition, Slice
from nsight_report.tables import schema
from nsight_report.tables.data_frames import cause_names, to_pandas
from nsight_report.timeline.recording import TRACEPOINT_NOISE_NS, granularity_ns, host, noise_of

from . import emulated_truth
from .emulated_truth import PRESENT, Truth
from .table import SHARE, Row, attributed

OWN_COST = "NSight's own cost"
#: A cause of a control has weight from here on: the median over at least this many messages, and the share of the whole delay.
WEIGHT_NS, WEIGHT_MESSAGES = 10_000, 3
#: Not from the log, but accurate enough for ns: a loss costs a fifth of a second, and perf knows which thread has the core.
CLIENT_KNOWS = ("retransmission", "neighbour")
#: Among the messages without an injection, the slowest are checked too.
SLOWEST = Slice.parse("p90-100")


def directories(of: Path) -> list[Path]:
    """Captures below a directory, as make-capture writes them."""
    return sorted(p.parent.parent for p in of.glob("*/capture.nsight/truth.json"))


def scores(directory: Path, work: Path) -> Iterator[Row]:
    """Rows for the capture in ``directory`` in both modes; tables go to ``work``."""
    symfs = directory / "symfs"
    capture = open_capture(
        directory / "capture.nsight", output=work, symfs=str(symfs.resolve()) if symfs.exists() else None
    )
    tables = {name: capture.frame(name) for name in ("contexts", "calls")}
    told = emulated_truth.read(
        directory, served(capture), tables, ClockMap(capture.pipeline.table("clock_map"))
    )
    for mode in ("intel-pt", "tracepoints"):
        yield score(capture, told, mode)


def served(capture: Capture) -> pd.DataFrame:
    """Messages of the diagnosed application that lie in the trace."""
    from nsight_report.summary import selected

    messages = selected(capture)
    trace = capture.frame("trace").iloc[0]
    inside = (messages["first_ns"] >= trace["begin_ns"]) & (messages["last_ns"] <= trace["end_ns"])
    return messages[inside]


def score(capture: Capture, told: Truth, mode: str) -> Row:
    """Compare the diagnosis of the delayed messages, and of the slowest, with the truth."""
    tables = {t: capture.pipeline.table(t) for t in ("messages", "calls", "contexts", "thread_states")}
    context = capture.pipeline._context()
    noise = noise_of(context)(*(tables["messages"][c].to_numpy() for c in ("first_ns", "last_ns")))
    granularity = max(granularity_ns(context), int(noise.max(initial=0)))
    if mode == "tracepoints":
        tables |= at_trace(tables["calls"], tables["contexts"])
        granularity = max(granularity, TRACEPOINT_NOISE_NS)
    messages = served(capture)
    slowest = messages.iloc[SLOWEST.rows(messages, 0)]["message_id"]
    wanted = sorted({*told.ns, *slowest.tolist()})
    options = Selection(
        slow=Slice((Condition("id", words=tuple(map(str, wanted))),)), granularity_ns=granularity
    )
    trace = capture.frame("trace").iloc[0]
    seen = int(trace["begin_ns"]), int(trace["end_ns"])
    recorded = Recording(
        *tables.values(), seen, host(context.manifest), recorder=Recorder.of(context.manifest)
    )
    compared, found, *_ = find(recorded, options)
    anomalies, *rest = attribute(found, compared, options)
    kept, coverage = to_pandas(anomalies), to_pandas(rest[0])
    kept["cause"] = cause_names(kept)
    sums = kept.groupby(["message_id", "cause"])[["deviation_ns", "took_ns"]].sum().reset_index()
    of = coverage.set_index("message_id")
    own = sums[sums["cause"].str.startswith(OWN_COST)].groupby("message_id")["deviation_ns"].sum()
    own = own.reindex(of.index).fillna(0)
    row = Row("emulated", told.scenario, mode, n_slow=len(of))
    named = attributed(of)
    row.coverage_median, row.coverage_min = float(named.median()), float(named.min())
    row.own_cost = float(own.sum() / max(of["deviation_ns"].sum(), 1))
    if not told.scorable:
        row.note = f"not scored: {told.expect}"
        return row
    if not told.answers(mode):
        row.alarms = _alarms(sums, of["deviation_ns"] - own)
        return row
    answers = told.answers(mode)
    delayed = pd.Series(told.ns, dtype=float).reindex(of.index).fillna(0) > 0
    # A deviation is the amount by which a message exceeds the baseline.
    every = pd.Series(told.every, dtype=float)
    usual = every.reindex(_references(compared)).fillna(0).median()
    truth = (every.reindex(of.index).fillna(0) - usual).clip(lower=0).where(delayed, 0)
    right = sums[sums["cause"].isin(answers)].groupby("message_id")["deviation_ns"].sum()
    right = right.reindex(of.index).fillna(0)
    others = sums[~sums["cause"].str.startswith(OWN_COST) & ~sums["cause"].isin(answers)]
    largest = others.groupby("message_id")["deviation_ns"].max().reindex(of.index).fillna(0)
    rest = of["deviation_ns"] - own
    # The injected cause is the largest of a message only where it is most of what there is to explain.
    most = (truth > 0) & (truth >= rest / 2) & (rest > 0)
    hit = right > largest
    row.n_injected, row.n_top = int((truth > 0).sum()), int(most.sum())
    row.top = _share(hit[most])
    # As a reader of the report sees it: anything else may be larger, including the recording's own cost.
    blamed = sums[~sums["cause"].isin(answers)].groupby("message_id")["deviation_ns"].max()
    row.first = _share((right > blamed.reindex(of.index).fillna(0))[truth > 0])
    if mode == "intel-pt":
        cause = SCENARIOS[told.scenario].cause
        assert cause is not None  # else it has no answers
        hol = to_pandas(break_down(recorded, anomalies, options, seen))
        row.named = _share(names_one_of(kept, hol, cause.names).reindex(of.index, fill_value=False)[most])
    weighty = (truth >= SHARE * of["deviation_ns"]) & (truth > granularity) & (of["deviation_ns"] > 0)
    reported = right >= np.maximum(SHARE * of["deviation_ns"], granularity)
    row.recall = _share(reported[weighty])
    row.precision = _share((truth > 0)[reported])
    # A message that waits for other messages also waits for their ordinary service.
    slack = pd.Series(told.slack_ns, dtype=float).reindex(of.index).fillna(0)
    took = sums[sums["cause"].isin(answers)].groupby("message_id")["took_ns"].sum()
    took = took.reindex(of.index).fillna(0)
    aside = (took - took.clip(truth, truth + slack))[most].abs()
    bound = np.maximum(0.05 * truth[most], 2 * granularity)
    if told.exact or told.scenario in CLIENT_KNOWS:
        row.error_median = float((aside / truth[most]).median()) if most.any() else None
        row.within = _share(aside <= bound)
        row.off = [
            f"message {message}: {int(took[message])} of {int(truth[message])} ns"
            for message in aside.index[aside > bound]
        ]
    row.exact = told.exact
    row.note = (
        "" if row.n_top else f"no lifetime in the trace holds it{': ' if told.expect else ''}{told.expect}"
    )
    for message, t in truth[most & ~hit].items():
        top = sums[sums["message_id"] == message].sort_values("deviation_ns", ascending=False).head(3)
        row.wrong.append(
            f"message {message}: {int(t)} ns of {int(of['deviation_ns'][message])}: "
            + ", ".join(f"{r.cause} {r.deviation_ns}" for r in top.itertuples())
        )
    return row


def names_one_of(kept: pd.DataFrame, hol: pd.DataFrame, words: tuple[str, ...]) -> pd.Series:  # type: ignore[type-arg]
    """By message: whether its largest cause (NSight's own cost aside) names one of ``words``.

    For head-of-line blocking the report also names the main activity of the messages ahead, and its callers.
    """
    others = kept[~kept["cause"].str.startswith(OWN_COST)]
    sums = others.groupby(["message_id", "cause"])["deviation_ns"].sum().sort_values(ascending=False)
    largest = sums.reset_index().drop_duplicates("message_id")[["message_id", "cause"]]
    rows = others.merge(largest, on=["message_id", "cause"])
    held_up = largest["message_id"][largest["cause"].isin(emulated_truth.HELD_UP)]
    ahead = hol[hol["message_id"].isin(held_up)].sort_values("deviation_ns", ascending=False)
    ahead = ahead.drop_duplicates("message_id").rename(columns={"callers": "path"})
    rows = pd.concat([rows, ahead], ignore_index=True)
    text = rows["category"].astype(str) + " " + rows["subject"].astype(str) + " " + rows["path"].astype(str)
    return text.str.contains("|".join(map(re.escape, words))).groupby(rows["message_id"]).any()


def _references(compared: pa.Table) -> pd.Series:  # type: ignore[type-arg]
    rows = to_pandas(compared)
    return rows["message_id"][rows["role"].astype(str) == "baseline"]


def _share(of: pd.Series) -> float | None:  # type: ignore[type-arg]
    return float(of.mean()) if len(of) else None


def _alarms(sums: pd.DataFrame, rest: pd.Series) -> list[str]:  # type: ignore[type-arg]
    """Causes with weight on a control, except programs that really run there beside the server."""
    total = max(int(rest.clip(lower=0).sum()), 1)
    alarms = []
    for cause, group in sums.groupby("cause"):
        ns = group["deviation_ns"]
        heavy = len(ns) >= WEIGHT_MESSAGES and ns.median() >= WEIGHT_NS and ns.sum() >= SHARE * total
        if heavy and not str(cause).startswith(OWN_COST) and cause not in PRESENT:
            alarms.append(f"{cause}: {len(ns)} messages, {int(ns.median())} ns")
    return alarms


def at_trace(calls: pa.Table, contexts: pa.Table) -> dict[str, pa.Table]:
    """``calls`` and ``contexts`` as tracepoints would record them; see the module's description."""
    inner, every = to_pandas(contexts), to_pandas(calls)
    ids = every["call_id"].to_numpy(np.int64)  # a call's ID is its row index
    known = inner[inner["call_id"] >= 0].drop_duplicates("call_id").set_index("call_id")
    kinds = known["kind"].astype(str).reindex(ids).fillna("").to_numpy(object)
    stays = np.isin(kinds, ["thread", "idle", "syscall", "softirq", "hardirq", "gap"])
    at = nearest(stays, every["parent_id"].to_numpy(np.int64))
    of = inner["call_id"].to_numpy(np.int64)
    inside = np.where(of >= 0, at[np.maximum(of, 0)], -1)
    change = (inner["kind"].astype(str) == "exception").to_numpy() & (inside >= 0)
    for name in ("kind", "symbol"):
        words = inner[name].astype(str).to_numpy(object)
        words[change] = known[name].astype(str).reindex(inside[change]).to_numpy(object)
        inner[name] = words
    inner.loc[change, "call_id"] = inside[change]
    kept = every[stays].assign(kind=kinds[stays], before="", gap_cause="", dso="")
    return {
        "calls": schema.conform("calls", pa.Table.from_pandas(kept, preserve_index=False)),
        "contexts": schema.conform("contexts", pa.Table.from_pandas(inner, preserve_index=False)),
    }
