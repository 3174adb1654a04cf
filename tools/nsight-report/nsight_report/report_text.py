# SPDX-License-Identifier: GPL-2.0-only
"""Confidence of a report, and what the reader should do next, in sentences."""

from __future__ import annotations

from .coverage import Covered
from .names import printable
from .requests.figures import NAMES, OF_CLIENT, Figures
from .summary import Summary, advice
from .tables.data_frames import each
from .units import counted, duration, percent

#: Fewer slow messages than this show single events, not a pattern.
FEW = 10
_GOOD = 0.9  # coverage from which a diagnosis counts as complete
_PERVASIVE = 0.5
_MUCH = 0.3  # share of the extra time of requests that is worth a hint
BEHIND = "service"  # the phase after the read
_TOLD = 0.01  # share of the extra latency that is worth a sentence


def confidence(s: Summary) -> list[str]:
    """What supports the result and what weakens it; empty if there is no result."""
    if not s.n_slow:
        return []
    if not s.n_beyond_noise:
        return _losses(s)
    said = []
    if s.covered is not None:
        said.extend(coverage(s.covered, s.thing))
    if s.n_slow < FEW:
        said.append(
            f"There are only {counted(s.n_slow, f'slow {s.thing}')}: one delay need not be a pattern."
        )
    if len(s.causes):
        first = next(each(s.causes.head(1)))
        if s.n_slow >= FEW and first.n_messages < _PERVASIVE * s.n_beyond_noise:
            said.append(
                f"{printable(first.cause)} delayed {first.n_messages:,} of them: others have other causes."
            )
    return said + _losses(s)


def coverage(c: Covered, thing: str) -> list[str]:
    """How much is explained of the extra latency of all slow messages, which is what the shares of causes are of."""
    explained, located, unexplained = c.whole.percentages()
    parts = [f"The causes explain {explained}% of the extra latency"]
    if located:
        parts.append(f"for {located}% they show where the time went, but not why")
    if unexplained:
        parts.append(f"{unexplained}% is unexplained")
    said = ["; ".join(parts) + "."]
    if c.least < _GOOD:
        said.append(
            f"Of the median {thing}'s they explain {percent(c.median)}, of the worst's {percent(c.least)}."
        )
    return said


def requests_told(f: Figures, thing: str = "request") -> list[str]:
    """Number of requests and how long they took, as a title and sentences; ``thing``: what is diagnosed."""
    done = "sent by the application" if f.role == "client" else "received and answered"
    said = [f"Requests: {f.n:,} {done}"]
    parts = [f"p{p:g} {duration(ns)}" for p, ns in f.percentiles.items()]
    if f.n:
        said.append(f"latency: {', '.join([*parts, f'max {duration(f.max_ns)}'])}")
    if f.n_certain < f.n:
        said.append(
            f"{counted(f.n - f.n_certain, 'request')} may be parts of one or several in one: see the losses"
        )
    if f.tail is not None:
        phase, share = f.tail
        said.append(
            f"{percent(share)} of what the requests of {f.slow} take more than those of {f.usual} is {phase}"
        )
        if thing != "request" and (phase, share >= _MUCH) == (BEHIND, True):
            said.append("--latency request shows why: what is explained here ends at the read")
    if f.others:
        other = (
            "--role server: the requests that it received"
            if f.role == "client"
            else "--role client: the requests that it sent"
        )
        said.append(f"{other} ({f.others:,})")
    return said


def slowest_told(f: Figures) -> list[str]:
    """The slowest requests, one sentence each."""
    return [
        f"request {one.request_id}: {duration(one.latency_ns)} ("
        + ", ".join(f"{name} {duration(one.phases_ns[name])}" for name in phase_columns(f))
        + ")"
        for one in f.slowest
    ]


def phase_columns(f: Figures) -> tuple[str, ...]:
    """Names of the phases in time order, for that role."""
    return OF_CLIENT if f.role == "client" else NAMES


def no_cause(coverage: float | None) -> str:
    """Why a slow message has no causes; ``coverage`` as in the table: 1 if there was nothing to explain."""
    return "within measurement noise" if coverage == 1 else "no cause found"


def _losses(s: Summary) -> list[str]:
    said = []
    severity = s.losses["severity"].astype(str)
    n_errors, n_warnings = int((severity == "error").sum()), int((severity == "warning").sum())
    if n_errors:
        said.append(f"{counted(n_errors, 'loss', 'losses')} can make it wrong (errors below).")
    if n_warnings or s.cut:
        what = (
            f"{counted(n_warnings, 'loss', 'losses')} can hide something (warnings below)"
            if n_warnings
            else "It was cut"
        )
        said.append(what + ".")
    if not n_errors and not n_warnings and not s.cut:
        said.append("Nothing was lost that changes it.")
    return said


def next_steps(s: Summary) -> list[str]:
    """What to do now: the advice for the important causes, or what to try if there is none."""
    if not s.n:
        return [
            "Check --app, --port and --latency; nsight-report top CAPTURE --by message lists the slow messages."
        ]
    if not s.n_slow:
        return [f"Choose slow messages differently: --slow {s.slow} selects none."]
    if not s.n_beyond_noise:
        if s.by_clocks:
            return [
                "Record again while the machine is less busy, or with cores for the recording alone (--cpus): its clocks were "
                "read too late to say more."
            ]
        return [
            "Nothing. To look at others: --slow for slower messages, --baseline or --against for faster ones."
        ]
    if not len(s.causes):
        return ["Compare with a capture of a better time (--against), or choose other messages (--slow)."]
    return [
        f"{', '.join(a.names)}: {a.change}"
        + (f" Command: {a.command}. It helped if: {a.check}." if a.command else "")
        for a in advice(s.causes)
    ]
