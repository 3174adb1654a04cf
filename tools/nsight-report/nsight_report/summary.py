# SPDX-License-Identifier: GPL-2.0-only
"""What a report says in words and numbers, computed once for terminal, JSON and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from . import counters, drops
from .attribution.causes import OWN_COST
from .coverage import Covered, beyond_noise, covered, only_located
from .names import printable
from .requests.figures import Figures, figures
from .selection.options import Selection
from .selection.slices import Slice
from .stage import thing
from .tables.data_frames import cause_names, each
from .timeline.recording import TRACEPOINT_NOISE_NS
from .units import counted, duration, percent, percentile, supported
from .waits.reasons import is_explained

if TYPE_CHECKING:
    from .capture_tables import CaptureTables

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99)
N_SLOWEST = 5
_TAIL = "p99-100"
_WORTH = 0.01  # minimum share of the delay for a cause after the first to be named in the first sentence
_ACT = 0.05  # minimum share of the delay for a cause to be worth acting on
_FEW_SLOWER = 0.5  # below this share of the slow messages, sentences are about the slower ones only
LOCATED = "only located: "  # a cause that shows where the time went, but not why
_MOST_SEARCHED = 500  # slow messages that are searched for the slowest ones

MODE = {"tracepoints": "tracepoints", "intel-pt": "Intel PT"}
RECORDED_WITH = {
    "tracepoints": "tracepoints of scheduler, interrupts and system calls (no Intel PT)",
    "intel-pt": "Intel PT: every function call and return on every core",
}
LIMITATIONS = {
    "tracepoints": (
        "Functions inside the application and the kernel are not seen: a context that took longer is "
        "named, but not what it was doing.",
        "Locks in user space, cache misses and memory bandwidth show only as a longer thread, system call or softirq.",
        "Time that firmware took from a core is not marked, nor time that a hypervisor other than KVM took between two timer ticks: "
        "it looks like a longer context.",
    ),
    "waits": (
        "System calls are seen where a thread waited in one, and not those it worked in, nor when send calls began: --syscalls "
        "messages records both.",
    ),
    "no frequencies": (
        "The frequency of the cores is not known: at a lower one, all that they do looks longer.",
    ),
    "no counters": (
        "This machine has no hardware counters: whether a function was slower by cache misses, or by more instructions, cannot be told.",
    ),
    "intel-pt": (
        "What a function waited for inside the hardware (cache, memory, devices) is not seen, only how long it took.",
        "Code whose image was not saved (some BPF and JIT code) appears as a gap.",
    ),
}


@dataclass(frozen=True)
class SlowMessage:
    """One of the slowest messages with its own causes, largest first."""

    row: pd.Series[Any]
    coverage: float | None
    baseline_ns: int | None
    causes: list[tuple[str, int]]


@dataclass(frozen=True)
class WaitChain:
    """What most of a cause's time was spent waiting for, and through which threads; ``n``: in how many messages."""

    text: str
    n: int


@dataclass(frozen=True)
class OwnCost:
    """What the recording itself cost the slow messages: ns in the median one, share of their whole delay."""

    median_ns: int
    share: float


@dataclass(frozen=True)
class Summary:
    """The numbers of a report. Durations in ns."""

    mode: str
    cut: bool
    n: int
    percentiles: dict[float, int]
    unsupported: list[float]
    max_ns: int | None
    slow: str
    n_slow: int
    n_beyond_noise: int  # of them, slower than the baseline by more than the recording can resolve
    noise_ns: int  # smallest difference that the recording can resolve, for the median slow message
    by_clocks: bool  # the limit comes from its clocks, not from its packets or tracepoints
    extra_ns: int  # extra latency of these messages in total
    baseline: str
    covered: Covered | None  # None: none took longer
    causes: pd.DataFrame
    losses: pd.DataFrame
    slowest: list[SlowMessage]
    blocking: pd.DataFrame
    drops: pd.DataFrame  # as drops.of_messages returns them
    counted: list[counters.Counted]  # counts of the messages' own work
    own_cost: OwnCost | None = None
    only_waits: bool = False  # system calls are recorded only where a thread waited
    no_counters: bool = False  # the machine has no PMU
    no_frequencies: bool = False  # core frequencies are unknown
    requests: Figures | None = None  # None: no requests, as in a recording of one direction
    thing: str = "message"  # what is diagnosed, in one word
    chains: dict[str, WaitChain] = field(
        default_factory=dict
    )  # for causes that are waits of requests, by name

    @property
    def limitations(self) -> tuple[str, ...]:
        """What the capture cannot show, in sentences."""
        found = LIMITATIONS["waits"] if self.only_waits else ()
        missing = ("no frequencies", self.no_frequencies), ("no counters", self.no_counters)
        return (
            found + LIMITATIONS[self.mode] + sum((LIMITATIONS[name] for name, is_so in missing if is_so), ())
        )


def selected(capture: CaptureTables, names: Sequence[str] | None = None) -> pd.DataFrame:
    """The messages of the diagnosed application and direction: the base of all numbers.

    ``names``: read only message_id and some columns (as ``Messages.columns`` returns them), not whole rows.
    """
    from .selection.application import choose_app, of_app

    every, options = capture.diagnosed_messages, Selection.of(capture.options)
    return every.rows(choose_app(every, options)) if names is None else of_app(every, options, names)


def summarise(capture: CaptureTables) -> Summary:
    """Everything that the exports print, from the tables of an analysed capture."""
    chosen = selected(capture, ["latency_ns", "pid"])
    latencies = chosen["latency_ns"].to_numpy()
    n = len(latencies)
    known = {p: value for p in PERCENTILES if (value := percentile(latencies, p)) is not None}
    coverage = capture.coverage
    traces = capture.pipeline.table("trace").to_pylist()
    slower = beyond_noise(coverage)
    noise = int(coverage["noise_ns"].median()) if len(coverage) else 0
    return Summary(
        mode=capture.manifest.mode,
        only_waits=capture.manifest.raw.get("syscalls") == "waits",
        no_counters=capture.manifest.mapping("host").get("pmu") is False,
        no_frequencies=not capture.pipeline.table("frequencies").num_rows,
        cut=capture.manifest.cut,
        n=n,
        percentiles=known,
        unsupported=[p for p in PERCENTILES if not supported(n, p)],
        max_ns=int(latencies.max()) if n else None,
        slow=capture.options.slow,
        n_slow=len(coverage),
        n_beyond_noise=len(slower),
        noise_ns=noise,
        by_clocks=noise > max((t["p99_step_ns"] for t in traces), default=TRACEPOINT_NOISE_NS),
        extra_ns=int(slower["deviation_ns"].sum()),
        baseline=_baseline(capture),
        covered=covered(slower),
        causes=capture.causes,
        losses=capture.losses,
        slowest=slowest(capture, N_SLOWEST),
        own_cost=own_cost(capture),
        blocking=blocking(capture.hol),
        requests=_requests(capture, chosen["pid"].unique()),
        thing=thing(capture.options.direction),
        chains=wait_chains(capture.anomalies),
        counted=counters.of_messages(capture.message_counters, capture.compared),
        # Without drops it does not matter who owns the ports, and the lookup takes time.
        drops=drops.of_messages(
            capture.drops,
            selected(capture, ["proto", "lport"])
            if len(capture.drops)
            else chosen[:0].assign(proto=0, lport=0),
        ),
    )


def _requests(capture: CaptureTables, pids: npt.NDArray[np.int64]) -> Figures | None:
    """Figures of the same slices as for messages, but by the latency of requests."""
    options = capture.options
    # The default slice is the tail; its surroundings show whether the tail begins there.
    more = ("p90-99", options.slow, "p99.9-100") if options.slow == _TAIL else (options.slow,)
    slices = [(name, Slice.parse(name).rows) for name in dict.fromkeys((options.baseline, *more))]
    return figures(
        capture.stored_requests, options.role, pids, options.port, slices, options.baseline, options.slow
    )


def own_cost(capture: CaptureTables) -> OwnCost | None:
    """Cost over all slow messages, including those without any; None if there are no slow messages."""
    coverage, anomalies = capture.coverage, capture.anomalies
    if not len(coverage):
        return None
    own = anomalies[anomalies["category"].astype(str) == OWN_COST]
    ns = own.groupby("message_id")["deviation_ns"].sum().reindex(coverage["message_id"]).fillna(0)
    total = max(int(beyond_noise(coverage)["deviation_ns"].sum()), 1)
    return OwnCost(int(ns.median()), float(ns.sum()) / total)


def own_cost_line(cost: OwnCost, thing: str) -> str:
    """The cost in words; ``thing``: what was diagnosed.

    >>> own_cost_line(OwnCost(574_000, 0.64), "message")
    "NSight's own cost: 574 us in the median slow message, 64% of the delay"
    """
    return f"{OWN_COST}: {duration(cost.median_ns)} in the median slow {thing}, {percent(cost.share)} of the delay"


def blocking(hol: pd.DataFrame) -> pd.DataFrame:
    """What head-of-line blocking consists of, by category of what the messages ahead did, largest first.

    cause (``Head-of-line blocking: <category> (A)``), subject (function or context with most of it), its callers, n_messages (messages that waited for it), total_deviation_ns,
    share (of all head-of-line blocking), observed_ns, fastest_ns (what the same number of the fastest messages takes) and beyond_ns (what the messages
    ahead took beyond that: they were slow, not only many).
    """
    text = hol.astype(dict.fromkeys(("category", "side", "subject", "callers"), str))
    frame = text.assign(cause="Head-of-line blocking: " + text["category"] + " (" + text["side"] + ")")
    rows = (
        frame.groupby("cause")
        .agg(
            n_messages=("message_id", "nunique"),
            total_deviation_ns=("deviation_ns", "sum"),
            observed_ns=("observed_ns", "sum"),
            fastest_ns=("fastest_ns", "sum"),
            beyond_ns=("beyond_ns", "sum"),
        )
        .reset_index()
    )
    most = frame.groupby(["cause", "subject", "callers"])["deviation_ns"].sum().rename("ns").reset_index()
    most["whole"] = most.groupby(["cause", "subject"])["ns"].transform("sum")
    most = most.sort_values(["whole", "subject", "ns", "callers"], ascending=[False, True, False, True])
    rows = rows.merge(most.drop_duplicates("cause")[["cause", "subject", "callers"]], on="cause")
    rows["share"] = rows["total_deviation_ns"].astype(float) / max(int(rows["total_deviation_ns"].sum()), 1)
    return rows.sort_values(["total_deviation_ns", "cause"], ascending=[False, True]).reset_index(drop=True)


def wait_chains(anomalies: pd.DataFrame) -> dict[str, WaitChain]:
    """Wait chains by cause, for causes that are waits of requests."""
    text = anomalies[["message_id", "deviation_ns"]].assign(
        cause=cause_names(anomalies), path=anomalies["path"].astype(str)
    )
    text = text[
        anomalies["subject"].astype(str).map(is_explained).to_numpy(bool)
        & (text["path"] != "").to_numpy(bool)
    ]
    sums = text.groupby(["cause", "path"]).agg(ns=("deviation_ns", "sum"), n=("message_id", "nunique"))
    most = sums.reset_index().sort_values(["ns", "path"], ascending=[False, True]).drop_duplicates("cause")
    return {str(row.cause): WaitChain(str(row.path), int(row.n)) for row in each(most)}


def _baseline(capture: CaptureTables) -> str:
    against = capture.options.against
    of = f" of {capture.other.name if capture.other else Path(against).name}" if against else ""
    return capture.options.baseline + of


def cause_with_subject(row: Any) -> str:
    """Name of a cause, with the subject that took most of its time unless the name or a wait chain contains it already."""
    name, subject = printable(row.cause), printable(row.subject)
    return name if not subject or subject == row.category or is_explained(subject) else f"{name}: {subject}"


class Advice(NamedTuple):
    """What to do about some causes; ``command`` and ``check`` are '' for categories that the user defined."""

    names: list[str]
    change: str
    command: str
    check: str


def advice(causes: pd.DataFrame) -> list[Advice]:
    """What to check, each text once with the causes that it is for; only for causes that are worth acting on."""
    texts: dict[tuple[str, str, str], list[str]] = {}
    for row in each(causes[causes["share"] >= _ACT]):
        if row.advice:
            said = (printable(row.advice, 600), printable(row.command, 300), printable(row.check, 300))
            texts.setdefault(said, []).append(printable(row.cause))
    return [Advice(names, *said) for said, names in texts.items()]


def compared(s: Summary) -> str:
    """What was compared with what, and how many messages were not slower."""
    if not s.n:
        return f"No {s.thing} matches the options, so there is nothing to explain."
    if not s.n_slow:
        return f"{s.n:,} {s.thing}s were seen, but none is selected by --slow {s.slow}."
    were = "was" if s.n_slow == 1 else "were"
    begin = f"Of {s.n:,} {s.thing}s, the {s.n_slow:,} of {s.slow} {were} compared with those of {s.baseline}."
    if not s.n_beyond_noise:
        why = f", since its clocks are known to {duration(s.noise_ns // 2)} only" if s.by_clocks else ""
        return (
            f"{begin} None of them took longer by more than this recording can tell from nothing (about "
            f"{duration(s.noise_ns)}{why})."
        )
    if _few(s):
        begin += f" Only {s.n_beyond_noise:,} of them took longer by more than this recording can tell (about {duration(s.noise_ns)})."
    return begin if len(s.causes) else f"{begin} No cause for their extra latency was found."


def _few(s: Summary) -> bool:
    return s.n_beyond_noise < _FEW_SLOWER * s.n_slow


def verdict(s: Summary) -> str:
    """The report in one or two sentences."""
    begin, few = compared(s), _few(s)
    if not s.n_beyond_noise or not len(s.causes):
        return begin
    parts = [
        f"{printable(c.cause)} ({LOCATED if only_located(c) else ''}{percent(c.share)} of the extra latency, {counted(c.n_messages, s.thing)}, up to "
        f"{duration(c.max_deviation_ns)})"
        for i, c in enumerate(each(s.causes.head(3)))
        if i == 0 or c.share >= _WORTH
    ]
    whole = f" of {duration(s.extra_ns)} in all" if few else ""
    parts[0] = parts[0].replace("of the extra latency", f"of the extra latency{whole}", 1)
    return f"{begin} What delayed {'these' if few else 'them'} most: {'; '.join(parts)}."


def peer_of(message: Any) -> str:
    """Where a message (a row of ``messages``) came from or went to, unescaped; for an interval, its name."""
    if message.direction == "interval":
        return str(message.request_type)
    return f"{message.raddr}:{message.rport}"


def slowest(capture: CaptureTables, count: int) -> list[SlowMessage]:
    """The ``count`` slowest messages, one per episode, with their causes by deviation.

    Messages that were delayed together repeat the same facts: a message that overlaps a slower one
    already taken, and has the same largest cause, is left out.
    """
    coverage = capture.coverage.sort_values("latency_ns", ascending=False, kind="stable")
    searched = coverage.head(_MOST_SEARCHED)
    messages = capture.diagnosed_messages.rows(searched["message_id"].to_numpy(np.int64))
    messages = messages.set_index("message_id", drop=False)
    anomalies = capture.anomalies.set_index("message_id", drop=False)
    taken: list[SlowMessage] = []
    for slow in each(searched):
        if len(taken) == count:
            break
        row = messages.loc[slow.message_id]
        own = anomalies.loc[anomalies.index == slow.message_id]
        sums = own["deviation_ns"].groupby(cause_names(own)).sum().sort_values(ascending=False, kind="stable")
        causes = [(str(name), int(total)) for name, total in sums.items()]
        if any(_same_episode(row, causes, other) for other in taken):
            continue
        covered = None if pd.isna(slow.coverage) else float(slow.coverage)
        taken.append(SlowMessage(row, covered, int(slow.baseline_latency_ns), causes))
    return taken


def _same_episode(row: pd.Series[Any], causes: list[tuple[str, int]], other: SlowMessage) -> bool:
    overlap = row["first_ns"] < other.row["last_ns"] and other.row["first_ns"] < row["last_ns"]
    return bool(overlap) and [c for c, _ in causes[:1]] == [c for c, _ in other.causes[:1]]
