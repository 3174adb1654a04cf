# SPDX-License-Identifier: GPL-2.0-only
"""What performance counters say about the work on slow messages and on baseline messages."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

CYCLES, INSTRUCTIONS = "cycles", "instructions"
_PER = 1_000


class Counted(NamedTuple):
    """A figure of the median slow and baseline message, None where there is none; ``name``: what is counted, and per what."""

    name: str
    slow: float | None
    baseline: float | None


def of_messages(counts: pd.DataFrame, compared: pd.DataFrame) -> list[Counted]:
    """Figures from ``counts`` (table ``message_counters``) for the messages that were ``compared``; empty if nothing was counted.

    A counter without counts for a message is 0 for it. If no counter has any, its core had no counters: the message has no figure.
    """
    names = sorted(counts["counter"].astype(str).unique())
    by_role = []
    for role in ("slow", "baseline"):
        ids = compared.loc[compared["role"].astype(str) == role, "message_id"]
        of = counts[counts["role"].astype(str) == role].astype({"counter": str})
        wide = of.pivot_table(index="message_id", columns="counter", values="count", aggfunc="sum")
        wide = wide.reindex(columns=names).fillna(0.0)
        by_role.append(wide.reindex(index=ids.unique()))
    found = []
    for name in names:
        found.append((f"{name} per message", *(frame[name] for frame in by_role)))
        if name == INSTRUCTIONS and CYCLES in names:
            found.append(("instructions per cycle", *(_ratio(frame, name, CYCLES) for frame in by_role)))
        elif name not in (CYCLES, INSTRUCTIONS) and INSTRUCTIONS in names:
            rates = (_PER * _ratio(frame, name, INSTRUCTIONS) for frame in by_role)
            found.append((f"{name} per 1,000 instructions", *rates))
    return [Counted(name, *map(_median, each)) for name, *each in found]


def _ratio(frame: pd.DataFrame, name: str, per: str) -> pd.Series[float]:
    return frame[name] / frame[per].where(frame[per] > 0)


def _median(of: pd.Series[float]) -> float | None:
    return float(of.median()) if of.notna().any() else None


def figure(value: float | None) -> str:
    """Three significant digits; all digits before the point are kept.

    >>> figure(0.61234), figure(1234.6), figure(12.345), figure(0), figure(None)
    ('0.612', '1,235', '12.3', '0', '-')
    """
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 or not value else f"{value:.3g}"
