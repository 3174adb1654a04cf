# SPDX-License-Identifier: GPL-2.0-only
"""Diagnose the requests of emulated captures in mode intel-pt, and report the accuracy: arrival to reply instead of arrival to read.

    emulated.py DIR        captures that make-capture wrote below DIR

The truth is when a cause acted, from the observer's log, cut by the request's lifetime. So a slow function counts in full for the
request that calls it, and for each request that waits meanwhile. The cause delays a request if it is at least half of the request's extra
latency without NSight's own cost. Top-1 is the share of these requests whose largest cause is a right answer for messages too, or names
a function or thread of the scenario's list. Head-of-line blocking is right only for a request that was unread during most of the cause.
``named``: the share whose largest cause names one; for head-of-line blocking, what the requests ahead did. The other scenarios delay
messages before the read: evaluation/truth/emulated.py scores them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    _ROOT = Path(__file__).resolve().parents[3]
    sys.path[:0] = [str(_ROOT / "tools/nsight-report"), str(_ROOT / "tests")]

import numpy as np
import pandas as pd
from machinery.pt_emulation.scenarios import truth as log_truth
from machinery.pt_emulation.scenarios.table import SCENARIOS
from nsight_report.anomalies import Recording, Selection, find
from nsight_report.api import Capture, open_capture
from nsight_report.attribution import attribute
from nsight_report.clocks import ClockMap
from nsight_report.losses import Ledger
from nsight_report.queuing import break_down
from nsight_report.selection.slices import Condition, Slice
from nsight_report.stage import REQUEST
from nsight_report.tables.data_frames import cause_names, to_pandas
from nsight_report.timeline.recording import granularity_ns, noise_of, seen
from nsight_report.waits.reasons import Explainer

from evaluation.truth import emulated, emulated_truth, table

#: Causes that delay requests after the read, or while they wait for one that they delay.
SCORED = ("fault", "mprotect", "lock", "slow-function", "many-calls", "hog", "kworker")


def score(directory: Path, work: Path) -> table.Row:
    """The row of the capture in ``directory``; tables go to ``work``."""
    symfs = directory / "symfs"
    capture = open_capture(
        directory / "capture.nsight",
        output=work,
        symfs=str(symfs.resolve()) if symfs.exists() else None,
        direction=REQUEST,
    )
    requests, scenario = emulated.served(capture), _scenario(directory)
    acted = _acted(directory, capture)
    inside, waiting = (_inside(requests, until, acted) for until in ("last_ns", "read_ns"))
    row = table.Row("requests", scenario, "intel-pt")
    cause = SCENARIOS[scenario].cause
    delayed = inside[inside >= log_truth.MIN_NS]
    slowest = requests.iloc[emulated.SLOWEST.rows(requests, 0)]["message_id"]
    wanted = sorted({*delayed.index.tolist(), *slowest.tolist()})
    kept, hol, coverage, baseline = _diagnosed(capture, wanted)
    of = coverage.set_index("message_id")
    row.n_slow = len(of)
    shares = table.attributed(of)
    row.coverage_median, row.coverage_min = float(shares.median()), float(shares.min())
    own = kept[kept["cause"].str.startswith(emulated.OWN_COST)].groupby("message_id")["deviation_ns"].sum()
    own = own.reindex(of.index).fillna(0)
    row.own_cost = float(own.sum() / max(of["deviation_ns"].sum(), 1))
    if cause is None:
        row.alarms = emulated._alarms(_sums(kept), of["deviation_ns"] - own)
        return row
    usual = inside.reindex(baseline).fillna(0).median()
    truth = (inside.reindex(of.index).fillna(0) - usual).clip(lower=0)
    rest = of["deviation_ns"] - own
    most = (truth > 0) & (truth >= rest / 2) & (rest > 0)
    row.n_injected, row.n_top = int((truth > 0).sum()), int(most.sum())
    sums = _sums(kept).sort_values("deviation_ns", ascending=False)
    named = emulated.names_one_of(kept, hol, cause.names).reindex(of.index, fill_value=False)
    others = sums[~sums["cause"].str.startswith(emulated.OWN_COST)].drop_duplicates("message_id")
    first = others.set_index("message_id")["cause"].reindex(of.index)
    held_up = (waiting >= inside / 2).reindex(of.index, fill_value=False)
    answers = emulated_truth.ANSWERS[scenario]
    right = named | first.isin(answers - emulated_truth.HELD_UP) | (first.isin(answers) & held_up)
    row.top, row.named = emulated._share(right[most]), emulated._share(named[most])
    for request, ns in truth[most & ~(right & named)].items():
        top = sums[sums["message_id"] == request].head(3)
        row.wrong.append(
            f"request {request}: {int(ns)} ns of {int(of['deviation_ns'][request])}: "
            + ", ".join(f"{r.cause} {r.deviation_ns}" for r in top.itertuples())
        )
    return row


def _scenario(directory: Path) -> str:
    return str(_told(directory)["scenario"])


def _told(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "capture.nsight" / "truth.json").read_text())
    return found


def _inside(requests: pd.DataFrame, until: str, acted: emulated_truth.Intervals) -> pd.Series:  # type: ignore[type-arg]
    """By request, the ns up to its time ``until`` in which the cause acted."""
    first, last = (requests[name].to_numpy(np.int64) for name in ("first_ns", until))
    return pd.Series(log_truth.share_ns(first, last, acted), index=requests["message_id"])


def _acted(directory: Path, capture: Capture) -> emulated_truth.Intervals:
    """When the cause acted and no program of the recording had the core; ns, monotonic."""
    told = _told(directory)
    cause = SCENARIOS[told["scenario"]].cause
    acted = emulated_truth.acted(directory, told, cause) if cause else []
    clock = ClockMap(capture.pipeline.table("clock_map"))
    wide = np.array(acted or [], np.int64).reshape(-1)
    ns = clock.convert(wide, "tsc", "monotonic")[0].reshape(-1, 2)
    turns = emulated_truth._turns(capture.frame("contexts"), emulated_truth.RECORDER)
    return emulated_truth._without([(int(a), int(b)) for a, b in ns], turns)


def _diagnosed(
    capture: Capture, wanted: list[int]
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.Series]:  # type: ignore[type-arg]
    """Anomalies with their causes, what head-of-line blocking consists of, coverage, and the requests of the baseline."""
    context = capture.pipeline._context()
    capture.pipeline.table("calls")
    options = Selection(
        slow=Slice((Condition("id", words=tuple(map(str, wanted))),)),
        granularity_ns=granularity_ns(context),
        direction=REQUEST,
    )
    recorded = Recording.of(context)._replace(
        noise=noise_of(context), explain=Explainer.of(context, Ledger("waits"))
    )
    compared, found, *_ = find(recorded, options)
    anomalies, coverage, *_ = attribute(found, compared, options)
    kept, rows = to_pandas(anomalies), to_pandas(compared)
    kept["cause"] = cause_names(kept)
    hol = to_pandas(break_down(recorded, anomalies, options, seen(context)))
    return kept, hol, to_pandas(coverage), rows["message_id"][rows["role"].astype(str) == "baseline"]


def _sums(kept: pd.DataFrame) -> pd.DataFrame:
    return kept.groupby(["message_id", "cause"])[["deviation_ns"]].sum().reset_index()


def main() -> int:
    """Print a row for each capture. Exit codes: 0, 1 a goal was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("captures", type=Path, metavar="DIR")
    args = parser.parse_args()
    rows = []
    for directory in emulated.directories(args.captures):
        name = directory.name
        if name not in SCORED and SCENARIOS[name].cause is not None:
            print(f"not scored: {name}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as work:
            rows.append(score(directory, Path(work)))
    print("\n".join(table.lines(rows)))
    return 1 if any(row.missed() for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
