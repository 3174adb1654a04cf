# SPDX-License-Identifier: GPL-2.0-only
"""What the page shows before scrolling: which recording this is, then what, how much, confidence, what next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..coverage import only_located
from ..manifest import Manifest
from ..names import printable
from ..plots.figures import Sheet
from ..plots.style import DARK
from ..report_text import confidence, next_steps
from ..summary import MODE, Advice, Summary, advice, cause_with_subject, compared
from ..tables.data_frames import each
from ..units import counted, duration

BARS = 4  # causes drawn in the first screen
_NAME = 36  # letters of their names: two lines
_PORTS = 3


@dataclass(frozen=True)
class Bar:
    """One of the largest causes: ``share`` of the extra latency; ``told``: what it did to how many messages."""

    cause: str
    colour: str
    share: float
    told: str
    located: bool


@dataclass(frozen=True)
class Answer:
    """``kind``: what, much, sure or next. ``text``: a sentence, or advice."""

    kind: str
    question: str
    text: str | list[Advice]


def facts(sheet: Sheet) -> dict[str, str]:
    """Host, time, mode and workload of a recording, as far as they are known."""
    m = sheet.capture.manifest
    kernel, cores = m.text("host", "kernel"), m.text("host", "n_cpus")
    cores = cores and f"{cores} core{'' if cores == '1' else 's'}"
    host = (m.text("host", "hostname"), kernel and f"kernel {kernel}", cores)
    ports = [str(port) for port in sheet.messages["lport"].value_counts().index[:_PORTS]]
    work = (
        sheet.workload,
        ports and f"port {', '.join(ports)}",
        counted(sheet.summary.n, sheet.summary.thing),
    )
    found = {
        "Host": _listed(*host),
        "Recorded": _recorded(m),
        "Mode": MODE[sheet.summary.mode],
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
    """The summary in words; only "what" if there are no slow messages."""
    found = [Answer("what", f"What delayed the slow {s.thing}s?", compared(s))]
    if not s.n or not s.n_slow:
        return found
    extra = int(s.causes["total_deviation_ns"].sum()) if len(s.causes) else 0
    added = f"The causes add {duration(extra)} to {counted(s.n_slow, 'slow ' + s.thing)} in all."
    sure = " ".join([*confidence(s), f"Seen with {MODE[s.mode]}."])
    steps = " ".join(next_steps(s))
    none = f"No cause is large enough to act on: choose other {s.thing}s with --slow."
    return [
        *found,
        Answer("much", "By how much?", added if extra else ""),
        Answer("sure", "Confidence", sure),
        Answer("next", "What to do next", (advice(s.causes) or none) if len(s.causes) else steps),
    ]


def latencies(s: Summary) -> list[tuple[str, str]]:
    """The extra latency of a slow message; for all messages median, highest supported percentile, maximum."""
    known = [p for p in s.percentiles if p != 50.0]
    shown = [p for p in (50.0, *known[-1:]) if p in s.percentiles]
    found = [("median" if p == 50.0 else f"p{p:g}", duration(s.percentiles[p])) for p in shown]
    extra = [("extra, mean", f"+{duration(s.extra_ns / s.n_beyond_noise)}")] if s.n_beyond_noise else []
    return [*extra, *found, ("slowest", duration(s.max_ns))]


def bars(sheet: Sheet) -> list[Bar]:
    """The largest causes, the largest first."""
    return [
        Bar(
            _short(c), colour(sheet, str(c.cause)), float(c.share),
            f"{counted(c.n_messages, sheet.summary.thing)}, up to {duration(c.max_deviation_ns)}", only_located(c),
        )
        for c in each(sheet.summary.causes.head(BARS))
    ]  # fmt: skip


def _short(cause: Any) -> str:
    whole = cause_with_subject(cause)
    return whole if len(whole) <= _NAME else printable(cause.cause, _NAME)


def colour(sheet: Sheet, cause: str) -> str:
    """Colour of a cause, as a variable name of ``theme``."""
    look = sheet.look.get(cause)
    return (look.colour if look else DARK)[1:]
