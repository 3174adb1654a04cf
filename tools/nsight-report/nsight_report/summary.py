# SPDX-License-Identifier: GPL-2.0-only
"""What a report says in words and numbers, computed once for terminal, JSON and HTML."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from .attribution.causes import LOW_COVERAGE
from .frames import cause_names, each
from .names import printable
from .stages import analysis_options
from .units import duration, percent, percentile, supported

if TYPE_CHECKING:
    from .api import Capture

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99)
N_SLOWEST = 5
N_WORST = 5
_ACT = 0.05  # share of the delay from which a cause is worth acting on
_MOST_SEARCHED = 500  # target messages looked at for them

GRADE = {
    "trace": "scheduler, interrupt and system call tracepoints (no Intel PT)",
    "pt": "Intel PT: every function call and return on every core",
}
BLIND = {
    "trace": (
        "Functions inside the application and the kernel are not seen: a context that took longer is "
        "named, but not what it was doing.",
        "Locks in user space, cache misses, CPU frequency and memory bandwidth show only as a longer "
        "thread, system call or softirq.",
        "Time that the hypervisor or firmware took from a core is not marked: it looks like a longer "
        "context.",
    ),
    "pt": (
        "What a function waited for inside the hardware (cache, memory, devices) is not seen, only how long it took.",
        "Code whose image was not saved (some BPF and JIT code) appears as a gap.",
    ),
}


@dataclass(frozen=True)
class SlowMessage:
    """One of the slowest target messages with its own causes, largest first."""

    row: pd.Series[Any]
    coverage: float | None
    reference_ns: int | None
    causes: list[tuple[str, int]]


@dataclass(frozen=True)
class Summary:
    """The numbers of a report. Durations in ns."""

    grade: str
    cut: bool
    n: int
    percentiles: dict[float, int]
    unsupported: list[float]
    max_ns: int | None
    target: str
    n_target: int
    reference: str
    coverage_median: float | None
    coverage_min: float | None
    worst_covered: pd.DataFrame
    causes: pd.DataFrame
    losses: pd.DataFrame
    slowest: list[SlowMessage]


def selected(capture: Capture) -> pd.DataFrame:
    """The messages of the diagnosed application and direction: what the numbers are about."""
    from .anomalies.population import choose_app

    return choose_app(capture.messages, analysis_options(capture.options))


def summarise(capture: Capture) -> Summary:
    """Everything the exports print, from the tables of an analysed capture."""
    messages = selected(capture)
    latencies = messages["latency_ns"].to_numpy(dtype=np.int64)
    n = len(latencies)
    known = {p: value for p in PERCENTILES if (value := percentile(latencies, p)) is not None}
    coverage = capture.coverage
    shares = coverage["coverage"].dropna().to_numpy(dtype=float)
    return Summary(
        grade=capture.manifest.grade,
        cut=capture.manifest.cut,
        n=n,
        percentiles=known,
        unsupported=[p for p in PERCENTILES if not supported(n, p)],
        max_ns=int(latencies.max()) if n else None,
        target=capture.options.target,
        n_target=len(coverage),
        reference=_reference(capture),
        coverage_median=float(np.median(shares)) if len(shares) else None,
        coverage_min=float(shares.min()) if len(shares) else None,
        worst_covered=worst_covered(coverage),
        causes=capture.causes,
        losses=capture.losses,
        slowest=slowest(capture, N_SLOWEST),
    )


def worst_covered(coverage: pd.DataFrame) -> pd.DataFrame:
    """Rows of ``coverage`` of the messages that are explained least, the worst first."""
    low = coverage[coverage["coverage"] < LOW_COVERAGE]
    return low.sort_values(["coverage", "message_id"]).head(N_WORST)


def _reference(capture: Capture) -> str:
    against = capture.options.against
    of = f" of {Path(against).name}" if against else ""
    return capture.options.reference + of


def advice(causes: pd.DataFrame) -> list[tuple[list[str], str]]:
    """What to check, with the causes it is for: once for each text, for causes that are worth acting on."""
    texts: dict[str, list[str]] = {}
    for row in each(causes[causes["share"] >= _ACT]):
        texts.setdefault(str(row.advice), []).append(printable(row.cause))
    return [(names, printable(text, 600)) for text, names in texts.items() if text]


def verdict(s: Summary) -> str:
    """The report in one or two sentences."""
    if not s.n:
        return "No message matches the options, so there is nothing to explain."
    if not s.n_target:
        return f"{s.n:,} messages were seen, but none lies in the target {s.target}."
    begin = (
        f"Of {s.n:,} messages, the {s.n_target:,} of {s.target} were compared with those of {s.reference}."
    )
    if not len(s.causes):
        return f"{begin} No cause for their extra latency was found."
    parts = [
        f"{printable(c.cause)} ({percent(c.share)} of the extra latency, {c.n_messages:,} messages, up to "
        f"{duration(c.max_deviation_ns)})"
        for c in each(s.causes.head(3))
    ]
    return f"{begin} What delayed them most: {'; '.join(parts)}."


def slowest(capture: Capture, count: int) -> list[SlowMessage]:
    """The ``count`` slowest target messages, one for each episode, with their causes by deviation.

    Messages that were delayed together say the same five times: one that overlaps a slower one
    already taken, and has the same largest cause, is left out.
    """
    coverage = capture.coverage.sort_values("latency_ns", ascending=False, kind="stable")
    messages = capture.messages.set_index("message_id", drop=False)
    anomalies = capture.anomalies.set_index("message_id", drop=False)
    taken: list[SlowMessage] = []
    for target in each(coverage.head(_MOST_SEARCHED)):
        if len(taken) == count:
            break
        row = messages.loc[target.message_id]
        own = anomalies.loc[anomalies.index == target.message_id]
        sums = own["deviation_ns"].groupby(cause_names(own)).sum().sort_values(ascending=False, kind="stable")
        causes = [(str(name), int(total)) for name, total in sums.items()]
        if any(_same_episode(row, causes, other) for other in taken):
            continue
        covered = None if pd.isna(target.coverage) else float(target.coverage)
        taken.append(SlowMessage(row, covered, int(target.reference_latency_ns), causes))
    return taken


def _same_episode(row: pd.Series[Any], causes: list[tuple[str, int]], other: SlowMessage) -> bool:
    overlap = row["first_ns"] < other.row["last_ns"] and other.row["first_ns"] < row["last_ns"]
    return bool(overlap) and [c for c, _ in causes[:1]] == [c for c, _ in other.causes[:1]]
