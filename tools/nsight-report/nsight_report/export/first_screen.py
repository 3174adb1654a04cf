# SPDX-License-Identifier: GPL-2.0-only
"""What the page shows before anybody scrolls: which recording this is, then what, how much, how sure, what next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..manifest import Manifest
from ..names import printable
from ..plots.figures import Sheet
from ..plots.style import DARK
from ..report_text import how_sure, next_steps
from ..summary import GRADE, MODE, Summary, advice, verdict
from ..tables.data_frames import each
from ..units import counted, duration

BARS = 4  # causes drawn above the fold
_PORTS = 3


@dataclass(frozen=True)
class Answer:
    """``kind``: what, much, sure or next. ``text``: a sentence, or for each piece of advice its causes and words."""

    kind: str
    question: str
    text: str | list[tuple[list[str], str]]


def facts(sheet: Sheet) -> dict[str, str]:
    """Host, time, mode and workload of a recording, as far as they are known."""
    m = sheet.capture.manifest
    kernel, cores = m.text("host", "kernel"), m.text("host", "n_cpus")
    cores = cores and f"{cores} core{'' if cores == '1' else 's'}"
    host = (m.text("host", "hostname"), kernel and f"kernel {kernel}", cores)
    ports = [str(port) for port in sheet.messages["lport"].value_counts().index[:_PORTS]]
    work = (sheet.workload, ports and f"port {', '.join(ports)}", counted(sheet.summary.n, "message"))
    found = {
        "Host": _listed(*host),
        "Recorded": _recorded(m),
        "Mode": MODE[sheet.summary.grade],
        "Workload": _listed(*work),
    }
    return {name: value for name, value in found.items() if value}


def _listed(*parts: Any) -> str:
    return printable(", ".join(str(part) for part in parts if part), 200)


def _recorded(m: Manifest) -> str:
    start, begin, end = (
        m.ns("start", "realtime_ns"),
        m.ns("start", "monotonic_ns"),
        m.ns("stop", "monotonic_ns"),
    )
    when = pd.Timestamp(start, unit="ns").strftime("%Y-%m-%d %H:%M:%S UTC") if start else ""
    return _listed(when, duration(end - begin) if begin is not None and end is not None else "")


def answers(s: Summary) -> list[Answer]:
    """The summary in words; only what, and what next, where there is no result."""
    found = [Answer("what", "What delayed the slow messages?", verdict(s))]
    if not s.n or not s.n_target:
        return found
    if not s.n_slower:
        return [*found, Answer("next", "What to do next", " ".join(next_steps(s)))]
    extra = int(s.causes["total_deviation_ns"].sum()) if len(s.causes) else 0
    added = f"The causes below add {duration(extra)} to {counted(s.n_target, 'message')} in all."
    sure = " ".join([*how_sure(s), f"Seen with {GRADE[s.grade]}."])
    none = "No cause is large enough to act on: choose other messages with --target."
    return [
        *found,
        Answer("much", "By how much?", added),
        Answer("sure", "Confidence", sure),
        Answer("next", "What to do next", advice(s.causes) or none),
    ]


def latencies(s: Summary) -> list[tuple[str, str]]:
    """What a slow message took more than usual; of all messages median, highest percentile that is known, maximum."""
    known = [p for p in s.percentiles if p != 50.0]
    shown = [p for p in (50.0, *known[-1:]) if p in s.percentiles]
    found = [("median" if p == 50.0 else f"p{p:g}", duration(s.percentiles[p])) for p in shown]
    extra = f"+{duration(s.extra_ns / s.n_slower)}" if s.n_slower else duration(None)
    return [("extra, mean", extra), *found, ("slowest", duration(s.max_ns))]


def bars(sheet: Sheet) -> list[tuple[str, str, float]]:
    """Name, colour and share of the largest causes."""
    rows = each(sheet.summary.causes.head(BARS))
    return [(printable(c.cause), colour(sheet, str(c.cause)), float(c.share)) for c in rows]


def colour(sheet: Sheet, cause: str) -> str:
    """Of a cause, as the variables of ``theme`` name it."""
    look = sheet.look.get(cause)
    return (look.colour if look else DARK)[1:]
