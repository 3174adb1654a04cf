# SPDX-License-Identifier: GPL-2.0-only
"""One row of the truth table, for any family of captures, and its goals."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd

#: Below this share of a message's deviation a cause is not counted as reported.
SHARE = 0.1

#: Goals: column, at least.
GOALS = {"top": 0.95, "named": 0.95, "within": 0.95, "coverage_median": 0.99, "coverage_min": 0.90}


@dataclass
class Row:
    """Scores of one capture or stream in one mode; shares from 0 to 1, None if there is nothing to score.

    ``n_injected``: messages with the cause inside their lifetime; ``n_top``: those where it is most of the
    delay, less NSight's own cost; ``top``, ``error_median`` and ``within`` (5 %, or the clock bound) refer to
    these. ``first``: the part of ``n_injected``, with nothing excluded, whose largest cause is the injected one. ``named``: the part
    of ``n_top`` whose largest cause names a function or thread of the scenario's list (mode intel-pt). ``alarms``: causes with
    weight on a control; None: it is no control. ``exact``: ns are from the log's intervals.
    """

    family: str
    name: str
    mode: str
    n_slow: int = 0
    n_injected: int = 0
    n_top: int = 0
    top: float | None = None
    first: float | None = None
    named: float | None = None
    precision: float | None = None
    recall: float | None = None
    error_median: float | None = None
    within: float | None = None
    coverage_median: float | None = None
    coverage_min: float | None = None
    own_cost: float | None = None
    alarms: list[str] | None = None
    exact: bool = True
    note: str = ""
    wrong: list[str] = field(default_factory=list)
    off: list[str] = field(default_factory=list)

    def missed(self) -> list[str]:
        """Goals that are missed."""
        if self.alarms is not None:
            return ["alarms"] if self.alarms else []
        if self.top is None:
            return []  # nothing to score
        values = {name: getattr(self, name) for name in GOALS}
        return [name for name, least in GOALS.items() if (v := values[name]) is not None and v < least]

    def as_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        return {**asdict(self), "missed": self.missed()}


HEAD = (
    "family", "scenario or stream", "mode", "slow", "delayed", "first", "top-1 of", "top-1", "named", "precision", "recall", "ns off",
    "within", "coverage", "min", "own cost", "goals",
)  # fmt: skip


def cells(row: Row) -> tuple[str, ...]:
    """The row under HEAD."""
    missed = row.missed()
    verdict = (
        "MISSED: " + ", ".join(missed)
        if missed
        else "met"
        if row.top is not None or row.alarms is not None
        else "-"
    )
    is_control = row.alarms is not None
    return (
        row.family, row.name, row.mode, f"{row.n_slow:,}",
        *(("control",) + ("",) * 8 if is_control else (
            f"{row.n_injected:,}", _percent(row.first), f"{row.n_top:,}", _percent(row.top), _percent(row.named), _percent(row.precision), _percent(row.recall),
            _percent(row.error_median, 1), _percent(row.within) + ("" if row.exact else "~"),
        )),
        _percent(row.coverage_median, 1), _percent(row.coverage_min), _percent(row.own_cost), verdict,
    )  # fmt: skip


def _percent(value: float | None, digits: int = 0) -> str:
    return "-" if value is None or value != value else f"{value:.{digits}%}"


def lines(rows: list[Row]) -> list[str]:
    """The table as text, with the faults below each row."""
    body = [cells(row) for row in rows]
    widths = [max(len(line[i]) for line in (HEAD, *body)) for i in range(len(HEAD))]
    out = [_joined(HEAD, widths)]
    for row, line in zip(rows, body, strict=True):
        out.append(_joined(line, widths))
        out += [f"    note: {row.note}"] if row.note else []
        out += [f"    false alarm: {text}" for text in row.alarms or []]
        out += [f"    wrong: {text}" for text in row.wrong[:5]]
        out += [f"    ns off: {text}" for text in row.off[:3]]
    return out


def _joined(line: tuple[str, ...], widths: list[int]) -> str:
    left = 3
    return "  ".join(
        cell.ljust(w) if i < left else cell.rjust(w)
        for i, (cell, w) in enumerate(zip(line, widths, strict=True))
    ).rstrip()


def verdict(rows: list[Row]) -> str:
    """Totals of one family: by message for top-1 and ns, by row for the rest."""
    scored = [r for r in rows if r.top is not None and r.n_top]
    controls = [r for r in rows if r.alarms is not None]
    total = sum(r.n_top for r in scored)
    parts = []
    if total:
        parts.append(f"top-1 {sum((r.top or 0) * r.n_top for r in scored) / total:.1%} of {total:,} messages")
    exact = [r for r in scored if r.within is not None]
    if exact:
        n = sum(r.n_top for r in exact)
        parts.append(
            f"within 5 % or the clock bound {sum((r.within or 0) * r.n_top for r in exact) / n:.1%} of {n:,}"
        )
    covered = [r.coverage_median for r in rows if r.coverage_median is not None]
    least = [r.coverage_min for r in rows if r.coverage_min is not None]
    if covered:
        parts.append(f"coverage median lowest {min(covered):.1%}")
    if least:
        parts.append(f"minimum {min(least):.1%}")
    parts.append(f"false alarms on {sum(bool(r.alarms) for r in controls)} of {len(controls)} controls")
    return f"{rows[0].family if rows else ''}: " + ", ".join(parts)


def attributed(coverage: pd.DataFrame) -> pd.Series:
    """For each message, the share of its deviation that has a name (a cause or only a place); 1 if it has no deviation."""
    named = coverage["explained_ns"] + coverage["located_ns"]
    share = named.to_numpy(float) / np.maximum(coverage["deviation_ns"].to_numpy(float), 1)
    nothing = (coverage["coverage"] == 1) & (named == 0)
    return pd.Series(np.where(nothing, 1.0, share), index=coverage.index)
