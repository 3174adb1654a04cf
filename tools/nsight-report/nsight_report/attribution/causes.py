# SPDX-License-Identifier: GPL-2.0-only
"""Root causes: every nanosecond of a message's deviation goes to at most one of them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
import pyarrow as pa

from ..losses import Ledger
from ..names import ARROW
from ..selection.options import Selection
from ..tables import schema
from ..units import duration
from .categories import FUNCTION, OWN, SIBLING, THREAD, Categories, categorise, load

# The paper counts messages with a lower coverage than this as badly explained (section 6.3).
LOW_COVERAGE = 0.87
#: From this share of a message's deviation on, steal time without a place matters.
HOST_SHARE = 0.1
# Category of time that the recording itself took (section 6.2).
OWN_COST = "NSight's own cost"
KERNEL = "[kernel.kallsyms]"
#: What a user could do about a cause: columns of ``causes``.
_TO_DO = ["advice", "command", "check"]
#: Categories that say where the time went, and not why; so does any other of the message's own work. A function says more.
PLACES = frozenset(
    [
        "Application processing",
        "Application waits",
        "CPU idle",
        "NIC delay",
        "NIC transmit delay",
        "Network and peer",
        "Other",
        "Other kernel work",
        "Receive processing",
        "Transmit processing",
        "Transmit queue",
        "Wake-up",
    ]
)


def attribute(
    anomalies: pa.Table,
    compared: pa.Table,
    options: Selection,
    programs: frozenset[str] = frozenset(),
    host_at_most: pd.Series | None = None,
) -> tuple[pa.Table, pa.Table, pa.Table, pa.Table]:
    """Turn anomalies into root causes (section 5.2 of the paper).

    Returns ``(anomalies with categories and trimmed to what they may claim, coverage, causes, losses)``.

    The intervals behind the anomalies of one message do not overlap, but their durations (``took_ns``) can
    add up to more than the message's own deviation, because it met less than usual of something else. The
    largest anomalies claim all of their duration from the deviation, the smallest claim the rest. ``programs``: names of the
    application's threads; advice to pin the application apart from them would be wrong. ``host_at_most``: ns by message (host_time.py).
    """
    ledger = Ledger("attribution")
    slow = compared.to_pandas()
    slow = slow[slow["role"] == "slow"].sort_values("message_id")
    ids = slow["message_id"].to_numpy(np.int64)
    latency, usual = (slow[c].to_numpy(np.int64) for c in ("latency_ns", "baseline_latency_ns"))
    total, noise = np.maximum(latency - usual, 0), slow["noise_ns"].to_numpy(np.int64)
    # A deviation that cannot be told from no delay has no cause.
    late = pd.Series(np.where(total > noise, total, 0), index=ids)

    frame = anomalies.to_pandas()
    frame = frame.sort_values(["message_id", "deviation_ns"], ascending=[True, False], kind="stable")
    claimed = frame.groupby("message_id")["deviation_ns"].cumsum() - frame["deviation_ns"]
    left = (frame["message_id"].map(late) - claimed).clip(lower=0)
    trimmed = np.minimum(frame["deviation_ns"], left).astype(np.int64)
    cut = (frame["deviation_ns"] - trimmed)[frame["message_id"].map(late) > 0]
    ledger.add("deviations_offset_by_savings", int((cut > 0).sum()), ns=int(cut.sum()))
    ledger.add("slow_messages_within_noise", int((late == 0).sum()))
    frame["deviation_ns"] = trimmed
    frame = frame[trimmed > 0].copy()

    rows = load(options.categories)
    what = ["kind", "subject", "dso"]
    frame = frame.astype(dict.fromkeys(what, str))
    pairs = frame[what].drop_duplicates()
    found = [
        categorise(rows, SIBLING if kind == THREAD and subject in programs else kind, subject, dso)
        for kind, subject, dso in pairs.itertuples(index=False)
    ]
    pairs["category"], pairs["advice"] = [c for c, _ in found], [a for _, a in found]
    pairs["located"] = (pairs["category"].isin(PLACES) & (pairs["kind"] != FUNCTION)) | (pairs["kind"] == OWN)
    steps = [
        rows.steps(kind, category) for kind, category in zip(pairs["kind"], pairs["category"], strict=True)
    ]
    pairs["command"], pairs["check"] = [c for c, _ in steps], [c for _, c in steps]
    frame = frame.drop(columns=["category", "located"]).merge(pairs, on=what)
    # The path of a wait names threads, which can have any name.
    path = frame["path"].astype(str).where(frame["kind"] != "wait", "")
    ours = path.isin(_through_probes(path.unique(), rows))
    ours_to_do = (rows.advice(OWN_COST), *rows.steps(OWN, OWN_COST))
    frame.loc[ours, ["category", *_TO_DO, "located"]] = OWN_COST, *ours_to_do, False
    frame = frame.sort_values(["message_id", "side", "deviation_ns"], ascending=[True, True, False])

    explained, located = (
        rows.groupby("message_id")["deviation_ns"].sum().reindex(ids).fillna(0).to_numpy(np.int64)
        for rows in (frame[~frame["located"]], frame[frame["located"]])
    )
    host = np.zeros(len(ids), np.int64)
    if host_at_most is not None:
        host = host_at_most.reindex(ids).fillna(0).to_numpy(np.int64)
        much = (total > noise) & (np.minimum(host, total) >= HOST_SHARE * total) & (host > noise)
        at_most, late_ns = (duration(int(np.minimum(ns, total)[much].sum())) for ns in (host, total))
        ledger.add("host_may_have_taken", int(much.sum()), at_most=at_most, late=late_ns)
    share = np.divide(explained, total, out=np.ones(len(ids)), where=total > noise)
    coverage = pd.DataFrame(
        {
            "message_id": ids,
            "latency_ns": latency,
            "baseline_latency_ns": usual,
            "deviation_ns": total,
            "explained_ns": explained,
            "located_ns": located,
            "coverage": share,
            "noise_ns": noise,
            "host_at_most_ns": np.minimum(host, total),
        }
    ).sort_values("message_id")
    ledger.add("slow_messages_poorly_explained", int((share < LOW_COVERAGE).sum()), low_coverage=LOW_COVERAGE)
    return (
        _table("anomalies", frame.drop(columns=_TO_DO)),
        _table("coverage", coverage),
        _table("causes", _causes(frame, int(late.sum()))),
        ledger.table(),
    )


def _through_probes(paths: Iterable[str], rows: Categories) -> list[str]:
    """Call paths through a BPF program of the recording, or what starts tracepoint programs: their helpers count as ours, too."""

    def ours(name: str) -> bool:
        if name.startswith("bpf_prog_"):
            return rows.find(FUNCTION, name, KERNEL)[0] == OWN_COST
        return name.startswith("bpf_trace_run")

    return [path for path in paths if "bpf_" in path and any(map(ours, path.split(ARROW)))]


def _causes(anomalies: pd.DataFrame, total_ns: int) -> pd.DataFrame:
    anomalies = anomalies.assign(located_ns=anomalies["deviation_ns"].where(anomalies["located"], 0))
    # Several anomalies of one message can have one category: a message counts once per cause.
    per_message = (
        anomalies.groupby(["category", "side", "message_id"], observed=True)
        .agg(
            deviation_ns=("deviation_ns", "sum"),
            located_ns=("located_ns", "sum"),
            **{name: (name, "first") for name in _TO_DO},
        )
        .reset_index()
    )
    groups = per_message.groupby(["category", "side"], observed=True)
    causes = groups.agg(
        n_messages=("message_id", "size"),
        median_deviation_ns=("deviation_ns", "median"),
        max_deviation_ns=("deviation_ns", "max"),
        total_deviation_ns=("deviation_ns", "sum"),
        located_ns=("located_ns", "sum"),
        **{name: (name, "first") for name in _TO_DO},
    ).reset_index()
    subjects = (
        anomalies.groupby(["category", "side", "subject"], observed=True)["deviation_ns"].sum().reset_index()
    )
    subjects = subjects.sort_values(["deviation_ns", "subject"], ascending=[False, True])
    most = subjects.drop_duplicates(["category", "side"])
    causes = causes.merge(
        most.rename(columns={"deviation_ns": "subject_ns"}), on=["category", "side"], how="left"
    )
    causes["subject_share"] = causes["subject_ns"] / causes["total_deviation_ns"].clip(lower=1)
    causes["cause"] = causes["category"].astype(str) + " (" + causes["side"].astype(str) + ")"
    causes["core"] = causes["side"]
    causes["median_deviation_ns"] = causes["median_deviation_ns"].round().astype(np.int64)
    causes["share"] = causes["total_deviation_ns"] / max(total_ns, 1)
    return causes.sort_values(["total_deviation_ns", "cause"], ascending=[False, True])


def _table(name: str, frame: pd.DataFrame) -> pa.Table:
    arrow = schema.TABLES[name].arrow()
    columns = [
        pa.array(
            frame[f.name].astype(object) if pa.types.is_dictionary(f.type) else frame[f.name],
            type=f.type.value_type if pa.types.is_dictionary(f.type) else f.type,
            from_pandas=True,
        )
        for f in arrow
    ]
    return schema.conform(name, pa.Table.from_arrays(columns, names=arrow.names))
