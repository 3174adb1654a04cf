# SPDX-License-Identifier: GPL-2.0-only
"""Scores of the diagnosis on a recording of steps into which one known cause of jitter was injected."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import nsight_report
import numpy as np

#: Which of the steps meet their cause, and the slowest of them, as far as every one can be affected.
EVERY = 50
SLOW = f"p{100 - 100 / EVERY:g}-100"
_SAFEPOINT = re.compile(r"^\[(\d+)ns\] Safepoint .*Total:\s*(\d+) ns", re.MULTILINE)


@dataclass(frozen=True)
class Cause:
    """``right``: a pattern of causes that name it; ``wrong``: a pattern of causes that must not come first. With neither it is not judged."""

    name: str
    right: str = ""
    note: str = ""
    wrong: str = ""


@dataclass
class Score:
    """One run. ``right``: None if not judged; ``share``: of right causes in the extra time of affected slow steps; None without any."""

    cause: str
    first: str
    right: bool | None
    share: float | None
    n_affected: int
    n_slow: int
    usual_us: float
    slow_us: float
    stolen_ms: int
    with_controls: bool  # by the rule from before, by which what is not judged was right unless it was affected and called a lock


def acted(file: Path) -> np.ndarray:
    """Begin and end of each interval in which the cause acted."""
    log = Path(f"{file}.gc")
    if log.exists():
        found = [(int(end) - int(took), int(end)) for end, took in _SAFEPOINT.findall(log.read_text())]
    else:
        found = [tuple(map(int, line.split())) for line in Path(f"{file}.log").read_text().splitlines()]
    return np.array(found, np.int64).reshape(-1, 2)


def score(cause: Cause, capture: Path, file: Path, stolen: int) -> Score:
    """Diagnose a recording and compare."""
    opened = nsight_report.open(
        capture, intervals=str(file), direction="interval", slow=SLOW, baseline="p25-75"
    )
    causes, steps = opened.causes, opened.messages
    steps = steps[(steps["direction"] == "interval").to_numpy(bool)].set_index("message_id")
    coverage = opened.coverage
    slow = steps.loc[coverage["message_id"].to_numpy(np.int64)]
    begin, end = (slow[of].to_numpy(np.int64) for of in ("first_ns", "last_ns"))
    hit = np.zeros(len(slow), bool)
    for low, high in acted(file):
        hit |= (begin < high) & (end > low)
    found = opened.anomalies
    names = found["category"].astype(str) + " (" + found["side"].astype(str) + ")"
    right = names.str.fullmatch(cause.right) if cause.right else names == ""
    ids = slow.index.to_numpy()[hit]
    mine = np.isin(found["message_id"].to_numpy(np.int64), ids)
    whole = int(coverage.loc[np.isin(coverage["message_id"].to_numpy(np.int64), ids), "deviation_ns"].sum())
    first = str(causes["cause"].iloc[0]) if len(causes) else "-"
    judged = None
    if cause.right:
        judged = bool(re.fullmatch(cause.right, first))
    elif cause.wrong and hit.any():
        judged = not re.fullmatch(cause.wrong, first)
    return Score(
        cause.name, first, judged,
        int(found.loc[mine & right.to_numpy(bool), "deviation_ns"].sum()) / whole if whole and cause.right else None,
        int(hit.sum()), len(slow), float(steps["latency_ns"].median()) / 1000, float(slow["latency_ns"].median()) / 1000, stolen,
        bool(re.fullmatch(cause.right, first)) if cause.right else not (hit.any() and "Lock wait" in first),
    )  # fmt: skip


def lines(scores: list[Score]) -> list[str]:
    """The table."""
    head = (
        "injected",
        "first cause",
        "right",
        "share of extra time",
        "affected/slow",
        "usual us",
        "slow us",
        "host absent ms",
    )
    rows = [
        (s.cause, s.first, {True: "yes", False: "NO", None: "-"}[s.right], "-" if s.share is None else f"{s.share:.2f}",
         f"{s.n_affected}/{s.n_slow}", f"{s.usual_us:.0f}", f"{s.slow_us:.0f}", str(s.stolen_ms))
        for s in scores
    ]  # fmt: skip
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    told = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]
    judged = [s for s in scores if s.right is not None]
    verdict = f"first cause right: {sum(bool(s.right) for s in judged)} of {len(judged)}"
    return [
        *told,
        "",
        f"{verdict} (with controls, as counted before: {sum(s.with_controls for s in scores)} of {len(scores)})",
    ]
