# SPDX-License-Identifier: GPL-2.0-only
"""Root causes: every nanosecond of a message's deviation goes to at most one of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from .. import schema
from ..anomalies import Options
from ..losses import Ledger
from .categories import categorise, load

# The paper counts messages covered less than this as badly explained (section 6.3).
LOW_COVERAGE = 0.87


def attribute(
    anomalies: pa.Table, compared: pa.Table, options: Options
) -> tuple[pa.Table, pa.Table, pa.Table, pa.Table]:
    """Turn anomalies into root causes (section 5.2 of the paper).

    Returns ``(anomalies with categories and trimmed to what they may claim, coverage, causes, losses)``.

    The stretches behind the anomalies of one message do not overlap, but their deviations can
    add up to more than the message's own, because it may have spent less time than usual elsewhere. The
    largest are kept whole, the smallest give way.
    """
    ledger = Ledger("attribution")
    target = compared.to_pandas()
    target = target[target["role"] == "target"].sort_values("message_id")
    ids = target["message_id"].to_numpy(np.int64)
    latency, usual = (target[c].to_numpy(np.int64) for c in ("latency_ns", "reference_latency_ns"))
    own_deviation = pd.Series(np.maximum(latency - usual, 0), index=ids)

    frame = anomalies.to_pandas()
    frame = frame.sort_values(["message_id", "deviation_ns"], ascending=[True, False], kind="stable")
    claimed = frame.groupby("message_id")["deviation_ns"].cumsum() - frame["deviation_ns"]
    left = (frame["message_id"].map(own_deviation) - claimed).clip(lower=0)
    trimmed = np.minimum(frame["deviation_ns"], left).astype(np.int64)
    ledger.add(
        "deviations made up for elsewhere",
        int((trimmed < frame["deviation_ns"]).sum()),
        "info",
        f"{int((frame['deviation_ns'] - trimmed).sum())} ns were trimmed so that no message's causes "
        "exceed its own deviation",
    )
    frame["deviation_ns"] = trimmed
    frame = frame[trimmed > 0].copy()

    rows = load(options.categories)
    what = ["kind", "subject", "dso"]
    frame = frame.astype(dict.fromkeys(what, str))
    pairs = frame[what].drop_duplicates()
    found = [categorise(rows, *pair) for pair in pairs.itertuples(index=False)]
    pairs["category"], pairs["advice"] = [c for c, _ in found], [a for _, a in found]
    frame = frame.drop(columns="category").merge(pairs, on=what)
    frame = frame.sort_values(["message_id", "side", "deviation_ns"], ascending=[True, True, False])

    explained = frame.groupby("message_id")["deviation_ns"].sum().reindex(ids).fillna(0).astype(np.int64)
    total = own_deviation.to_numpy(np.int64)
    share = np.divide(explained.to_numpy(), total, out=np.ones(len(ids)), where=total > 0)
    coverage = pd.DataFrame(
        {
            "message_id": ids,
            "latency_ns": latency,
            "reference_latency_ns": usual,
            "deviation_ns": total,
            "explained_ns": explained.to_numpy(),
            "coverage": np.clip(share, 0.0, 1.0),
        }
    ).sort_values("message_id")
    ledger.add(
        f"target messages explained to less than {LOW_COVERAGE:.0%}",
        int((share < LOW_COVERAGE).sum()),
        "info",
        "the rest of their deviation is unexplained",
        "record with Intel PT to see inside the contexts",
    )
    return (
        _table("anomalies", frame.drop(columns="advice")),
        _table("coverage", coverage),
        _table("causes", _causes(frame, int(total.sum()))),
        ledger.table(),
    )


def _causes(anomalies: pd.DataFrame, total_ns: int) -> pd.DataFrame:
    # Several anomalies of one message can be of one category: a message counts once per cause.
    per_message = (
        anomalies.groupby(["category", "side", "message_id"], observed=True)
        .agg(deviation_ns=("deviation_ns", "sum"), advice=("advice", "first"))
        .reset_index()
    )
    groups = per_message.groupby(["category", "side"], observed=True)
    causes = groups.agg(
        n_messages=("message_id", "size"),
        median_deviation_ns=("deviation_ns", "median"),
        max_deviation_ns=("deviation_ns", "max"),
        total_deviation_ns=("deviation_ns", "sum"),
        advice=("advice", "first"),
    ).reset_index()
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
