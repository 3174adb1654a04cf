# SPDX-License-Identifier: GPL-2.0-only
"""How the scores change when a part of the diagnosis, or its input, is broken on purpose.

    .venv/bin/python tests/evaluation/truth/ablation.py [--messages N] [--seed N] [--only STREAM]

Streams (made_up/stream.py) with up to three causes per message, of 1 to 20 us each and of 1 us to 100 ms, and one in which slow
functions slow their callers, too, are diagnosed unchanged, and with one thing broken at a time. Printed: how often the largest cause is named first, which share of the
attributed ns is right (precision), and which share of the injected ns is attributed rightly (recall), over all slow messages,
with equal weight; and which share of the causes named, however small, was injected (named). If the scores of no stream show a
break, they are useless as a check: exit code 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools/nsight-report")]

from machinery.made_up.stream import CAUSES, World, world  # noqa: E402
from nsight_report.anomalies import Selection, Slice, deviation, find  # noqa: E402
from nsight_report.attribution import attribute  # noqa: E402

from evaluation.truth.synthetic_scores import GRANULARITY_NS, recorded  # noqa: E402

MOST = 3
#: How long each cause takes: similar to usual times, and up to far longer; and which share of it a slow function's caller takes.
STREAMS = {
    "1 to 20 us": (1_000, 20_000, 0.0),
    "1 us to 100 ms": (1_000, 100_000_000, 0.0),
    "slower callers": (10_000, 300_000, 0.1),
}
CLOCK_OFF_NS = 10_000
#: At least one of the figures falls by this much. Both results are from the same stream: nothing else differs.
NOTICED = 0.01
#: Columns of ``messages`` that are times.
STAMPS = ("first_ns", "last_ns", "nic_ns", "arrival_ns", "arrival_last_ns", "handoff_ns", "call_ns", "app_ns")

Tables = dict[str, pa.Table]
finding = sys.modules["nsight_report.anomalies.find"]  # the function of this name hides the module
Patch = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Score:
    """Shares from 0 to 1, over all slow messages."""

    top: float
    precision: float
    recall: float
    named: float

    def lost(self, broken: Score) -> float:
        """The largest fall of any figure."""
        return max(mine - its for mine, its in zip(astuple(self), astuple(broken), strict=True))


def score(made: World, mode: str, change: Callable[[Tables], Tables] = dict, **options: Any) -> Score:
    """Diagnose ``made`` from changed tables, and compare the ns of each cause in each message with what was injected."""
    names, expected = list(CAUSES), made.expected(mode)
    share = 100 * (made.cause >= 0).mean()
    chosen = {"slow": Slice.parse(f"p{100 - share:.6f}-100"), "granularity_ns": GRANULARITY_NS, **options}
    tables = (made if mode == "intel-pt" else made.at_trace()).tables
    how = Selection(**chosen)
    compared, found, *_ = find(recorded(change(tables)), how)
    kept, coverage, _, _ = (t.to_pandas() for t in attribute(found, compared, how))
    kept["is"] = list(zip(kept["kind"].astype(str), kept["subject"].astype(str), kept["side"].astype(str)))
    blamed = kept.groupby(["message_id", "is"])["deviation_ns"].sum()
    message, number = np.nonzero(made.added)
    true = pd.DataFrame(
        {"message_id": message, "is": [expected[names[c]] for c in number], "ns": made.added[message, number]}
    )
    # The slowest messages are diagnosed: a message with small causes is not among them, and others may be.
    true = true[true["message_id"].isin(coverage["message_id"])].groupby(["message_id", "is"])["ns"].sum()
    both = pd.DataFrame({"blamed": blamed, "true": true}).fillna(0)
    right = np.minimum(both["blamed"], both["true"])

    # Every message counts the same, whether its delay is microseconds or milliseconds.
    def shares(of: str) -> float:
        by = both[of].groupby("message_id").sum()
        return float((right.groupby("message_id").sum() / by)[by > 0].mean())

    largest = {
        of: both[of].groupby("message_id").idxmax()[both[of].groupby("message_id").sum() > 0] for of in both
    }
    ids = largest["true"].index
    top = float((largest["blamed"].reindex(ids) == largest["true"]).mean())
    named = both["blamed"] > 0
    return Score(top, shares("blamed"), shares("true"), float((both["true"] > 0)[named].mean()))


def clock_off(tables: Tables) -> Tables:
    """Shift the timestamps of messages by CLOCK_OFF_NS, relative to calls."""
    messages = tables["messages"]
    for name in STAMPS:
        later = pa.compute.add(messages[name], pa.scalar(CLOCK_OFF_NS, pa.int64()))
        messages = messages.set_column(messages.column_names.index(name), messages.field(name), later)
    return tables | {"messages": messages}


def no_overlaps(tables: Tables) -> Tables:
    """Each message is alone: other messages on the same connection are unknown."""
    messages = tables["messages"]
    at, field = messages.column_names.index("conn_id"), messages.field("conn_id")
    return tables | {"messages": messages.set_column(at, field, pa.array(range(len(messages)), field.type))}


@contextmanager
def nothing_usual() -> Iterator[None]:
    """Everything that took time is an anomaly, however long it usually takes."""
    median = deviation.baseline_medians
    # Of so many messages most had none of it.
    with mock.patch.object(finding, "baseline_medians", lambda exposure, _n: median(exposure, 1 << 30)):
        yield


@dataclass(frozen=True)
class Broken:
    """What is broken: in the tables, in the options, in the code."""

    change: Callable[[Tables], Tables] = dict
    options: tuple[tuple[str, Any], ...] = ()
    code: Patch = nullcontext
    modes: tuple[str, ...] = ("intel-pt", "tracepoints")


BROKEN: dict[str, Broken] = {
    "clock off by 10 us": Broken(clock_off),
    "no overlaps": Broken(no_overlaps),
    "baseline of slow messages": Broken(options=(("baseline", Slice.parse("p95-99.9")),)),
    "nothing is usual": Broken(code=nothing_usual),
    "only innermost functions": Broken(options=(("explained", 0.0),), modes=("intel-pt",)),
    "no 80 % rule": Broken(options=(("explained", 1e9),), modes=("intel-pt",)),
}


@dataclass(frozen=True)
class Row:
    """One of the table: ``broken`` is empty for the diagnosis as it is."""

    broken: str
    mode: str
    stream: str
    score: Score
    lost: float


def rows(n_messages: int, seed: int, streams: tuple[str, ...] = tuple(STREAMS)) -> Iterator[Row]:
    """The table, stream by stream."""
    for stream in streams:
        least, longest, callers = STREAMS[stream]
        made = world(n_messages, seed, 0.02, most=MOST, between=(least, longest), callers=callers)
        for mode in ("intel-pt", "tracepoints"):
            whole = score(made, mode)
            yield Row("", mode, stream, whole, 0.0)
            for name, broken in BROKEN.items():
                if mode in broken.modes:
                    with broken.code():
                        s = score(made, mode, broken.change, **dict(broken.options))
                    yield Row(name, mode, stream, s, whole.lost(s))


def unnoticed(table: list[Row]) -> list[tuple[str, str]]:
    """Breaks, with their mode, that no stream's scores show."""
    most: dict[tuple[str, str], float] = {}
    for row in table:
        if row.broken:
            key = row.broken, row.mode
            most[key] = max(most.get(key, 0.0), row.lost)
    return [key for key, lost in most.items() if lost < NOTICED]


def main() -> int:
    """Parse arguments, diagnose, print. Exit code 1 where a break is not noticed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=20_000, metavar="N", help="default: 20000")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument("--only", choices=STREAMS, metavar="STREAM", help="one stream (default: all)")
    args = parser.parse_args()
    print(
        f"{'causes of':15} {'mode':11} {'broken':27} {'top-1':>6} {'precision':>10} {'recall':>7} {'named':>6}"
    )
    table = []
    for row in rows(args.messages, args.seed, (args.only,) if args.only else tuple(STREAMS)):
        s = row.score
        print(
            f"{row.stream:15} {row.mode:11} {row.broken or '-':27} {s.top:6.1%} {s.precision:10.1%} {s.recall:7.1%} {s.named:6.1%}",
            flush=True,
        )
        table.append(row)
    missed = unnoticed(table)
    for name, mode in missed:
        print(f"not noticed at mode {mode}: {name}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
