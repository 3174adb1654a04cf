# SPDX-License-Identifier: GPL-2.0-only
"""Diagnose synthetic call streams and print the accuracy.

    .venv/bin/python tests/evaluation/truth/synthetic_scores.py [--messages N] [--seeds N]

In each mode: whether the largest cause of each message is the injected one, precision and recall of the causes that have
at least a tenth of a message's deviation, the error of their ns, coverage (by causes and places), and what is found if nothing was injected.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools/nsight-report")]

from machinery.made_up.stream import CAUSES, World, world  # noqa: E402
from nsight_report.anomalies import Recording, Selection, Slice, find  # noqa: E402
from nsight_report.attribution import attribute  # noqa: E402

from evaluation.truth.table import attributed  # noqa: E402

#: Below this share of a message's deviation a cause is not counted as reported.
SHARE = 0.1
#: Sum of the packets' time steps and the clocks' bounds in these streams, ns.
GRANULARITY_NS = 150
#: A cause has weight when a user would act on it: this much in the median of at least ten messages.
WEIGHT_NS, WEIGHT_MESSAGES = 10_000, 10


@dataclass
class Score:
    """Scores of one stream in one mode; shares from 0 to 1."""

    mode: str
    n_calls: int
    n_slow: int
    n_injected: int
    top: float
    precision: float
    recall: float
    error_median: float
    within: float
    coverage_median: float
    coverage_min: float
    coverages_below_87: int
    weighty: list[str]
    wrong: pd.DataFrame


def score(made: World, mode: str, against: World | None = None) -> Score:
    """Diagnose the slowest messages of ``made``: as many as have a cause, or 2 %; compare with another stream's if given."""
    n = len(made.cause)
    share = 100 * max((made.cause >= 0).mean(), 0.02)
    options = Selection(slow=Slice.parse(f"p{100 - share:.6f}-100"), granularity_ns=GRANULARITY_NS)
    tables = (made if mode == "intel-pt" else made.at_trace()).tables
    others = against and (against if mode == "intel-pt" else against.at_trace()).tables
    compared, found, *_ = find(recorded(tables), options, recorded(others) if others else None)
    kept, coverage, causes, _ = (t.to_pandas() for t in attribute(found, compared, options))
    names, expected = list(CAUSES), made.expected(mode)
    kept["is"] = list(zip(kept["kind"].astype(str), kept["subject"].astype(str), kept["side"].astype(str)))
    kept = kept.groupby(["message_id", "is"], as_index=False)[["deviation_ns", "took_ns"]].sum()
    of = coverage.set_index("message_id")
    told = attributed(of)
    cause = made.cause[of.index]
    injected = of.index[cause >= 0]
    wanted = pd.Series([expected[names[c]] for c in cause[cause >= 0]], index=injected)
    reported = kept[kept["deviation_ns"] >= SHARE * kept["message_id"].map(of["deviation_ns"])]
    reported = reported[reported["message_id"].isin(injected)]
    right = reported["is"] == reported["message_id"].map(wanted)
    largest = (
        kept.sort_values("deviation_ns", ascending=False)
        .drop_duplicates("message_id")
        .set_index("message_id")
    )
    top = largest["is"].reindex(injected)
    is_top = np.array([a == b for a, b in zip(top, wanted)])
    ns = (
        kept[kept["is"] == kept["message_id"].map(wanted)]
        .set_index("message_id")["took_ns"]
        .reindex(injected)
        .fillna(0)
    )
    truth = made.ns[injected]
    off = np.abs(ns.to_numpy() - truth)
    wrong = pd.DataFrame(
        {"injected": [names[c] for c in made.cause[injected]], "ns": truth, "largest": top.to_numpy()}
    )
    heavy = causes[(causes["median_deviation_ns"] >= WEIGHT_NS) & (causes["n_messages"] >= WEIGHT_MESSAGES)]
    return Score(
        mode,
        tables["calls"].num_rows,
        len(of),
        len(injected),
        float(is_top.mean()) if len(injected) else np.nan,
        float(right.mean()) if len(reported) else np.nan,
        float(reported[right]["message_id"].nunique() / len(injected)) if len(injected) else np.nan,
        float(np.median(off / truth)) if len(injected) else np.nan,
        float((off <= np.maximum(0.05 * truth, 2 * GRANULARITY_NS)).mean()) if len(injected) else np.nan,
        float(told.median()),
        float(told.min()),
        int((told < 0.87).sum()),
        [f"{c.cause}: {c.n_messages} messages, {c.median_deviation_ns} ns" for c in heavy.itertuples()]
        if n
        else [],
        wrong[~is_top] if len(injected) else wrong,
    )


def recorded(tables: dict[str, pa.Table]) -> Recording:
    return Recording(*(tables[t] for t in ("messages", "calls", "contexts", "thread_states")))


HEAD = "stream      mode       calls  slow  top-1  precision  recall  ns off  within 5 %  coverage median, min  <87 %"


def line(name: str, s: Score) -> str:
    """One row under ``HEAD``."""
    if not s.n_injected:
        return f"{name:11} {s.mode:6} {s.n_calls:10,} {s.n_slow:7}  causes of weight: {', '.join(s.weighty) or 'none'}"
    return (
        f"{name:11} {s.mode:6} {s.n_calls:10,} {s.n_slow:7} {s.top:6.1%} {s.precision:10.1%} {s.recall:7.1%}"
        f" {s.error_median:7.2%} {s.within:11.1%} {s.coverage_median:16.1%} {s.coverage_min:5.1%} {s.coverages_below_87:5}"
    )


def main() -> int:
    """Parse arguments, diagnose, print. Exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--messages", type=int, default=20_000, metavar="N", help="of each stream (default: 20000)"
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="streams of each kind (default: 3)")
    args = parser.parse_args()
    print(HEAD)
    met = True
    for seed in range(1, args.seeds + 1):
        for name, share in (("injected", 0.02), ("control", 0.0)):
            made = world(args.messages, seed, share)
            for mode in ("intel-pt", "tracepoints"):
                s = score(made, mode)
                print(line(f"{name} {seed}", s), flush=True)
                for row in s.wrong.head(5).itertuples() if s.n_injected else ():
                    print(f"    wrong: {row.injected} of {row.ns} ns: {row.largest}")
                good = (
                    s.top >= 0.95 and s.coverage_median >= 0.99 and s.coverage_min >= 0.9 and s.within >= 0.95
                )
                met &= not s.weighty if share == 0 else good
    print(
        f"goals (top-1 >= 95 %, within 5 %, coverage median >= 99 %, min >= 90 %, no cause on controls): {'met' if met else 'MISSED'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
