# SPDX-License-Identifier: GPL-2.0-only
"""What really delayed the messages of an emulated capture, and which part of it lies inside their lifetimes.

``truth.json`` gives the part of a cause that lies between a client's send and its receive. A message's lifetime begins
when the packet is handed to the (virtual) NIC and ends when the server's read returns. What an application does after
the read is not part of it, and delays only the messages that wait meanwhile. So the intervals of causes are taken from
the observer's log (marks, executions of functions, wake-ups, the timer that ends a deferred interrupt) and intersected
with lifetimes. For a cause inside one task, only the time in which that task had the core counts: if the recorder's own
program preempts a marked function, the recorder is the cause. If a cause is that another thread has the core, or the wait
for that, perf's switch records say which thread had the core. The committed captures have no log, but the intervals from
it. If neither exists, the client's times are used.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from machinery.pt_emulation.scenarios import truth as log_truth
from machinery.pt_emulation.scenarios.acted import intervals
from machinery.pt_emulation.scenarios.base import Cause
from machinery.pt_emulation.scenarios.table import SCENARIOS
from nsight_report.clocks import ClockMap
from nsight_report.timeline.occupancy import READS, WAITS

Int = npt.NDArray[np.int64]
Intervals = list[tuple[int, int]]

WALK = Path(__file__).resolve().parents[3] / "build" / "cargo" / "release" / "pt-walk"

BOTH = ("R", "A")


def _either(*categories: str) -> frozenset[str]:
    return frozenset(f"{c} ({side})" for c in categories for side in BOTH)


#: Causes of waiting while the application serves another message.
HELD_UP = frozenset(["Head-of-line blocking (A)"])
#: Root causes, as the report writes them, that correctly name a scenario's cause; on one core R and A are the same.
ANSWERS: dict[str, frozenset[str]] = {
    "hog": _either("hog"),
    "kworker": _either("OS threads"),
    "head-of-line": HELD_UP,
    # Work of the application after its read delays the messages that wait meanwhile.
    "fault": HELD_UP,
    "mprotect": HELD_UP,
    "slow-function": HELD_UP,
    "many-calls": HELD_UP,
    # The holder is a thread of the same program; when the server wakes it, it takes the only core before the server can wait.
    "lock": HELD_UP | {"Lock wait (A)", "pt-app (A)"},
    "netfilter": frozenset(["Netfilter (R)", "Head-of-line blocking (R)"]),
    "retransmission": frozenset(["Retransmission (R)"]),
    "coalescing": frozenset(["Interrupt coalescing (R)"]),
    "neighbour": _either("redis-server", "redis-server receive"),
    # Some turns of the core end not in its halt but in the timer's interrupt, at a write to the APIC.
    "wake-up": frozenset(["CPU idle (A)", "Timer interrupt (A)"]),
}
#: Causes for which mode tracepoints has another name.
AT_TRACE = {"netfilter": frozenset(["Receive processing (R)", "Head-of-line blocking (R)"])}
#: Causes that act while other tasks have the core: the task's name, or None for any task except the recorder's.
OF_OTHERS = {"lock": None, "neighbour": "redis-server"}
#: Threads of the recording.
RECORDER = ("bpftrace", "perf", "perf-exec", "nsight-clock", "nsight-record")
#: Programs that a scenario's load and disturbance run beside the server: naming them is right on a control too.
PRESENT = _either("load-client") | {"python3 (A)", "python3 (R)"}
#: A shorter wait for the timer cannot be distinguished from the usual one.
DEFERRED_NS = 100_000


@dataclass(frozen=True)
class Truth:
    """The truth of one capture. ``exact``: from intervals of the log, else from the client's times or switch records.

    ``every``: by message_id, the ns of the cause in the lifetime; ``ns``: the same, only for messages that it delays. ``slack_ns``: by
    message, how much more a right diagnosis may report, since a message that waits for others also waits for their ordinary service.
    ``scorable``: the cause can lie in a lifetime that the tables have.
    """

    scenario: str
    expect: str
    ns: dict[int, int]
    exact: bool
    slack_ns: dict[int, int] = field(default_factory=dict)
    scorable: bool = True
    every: dict[int, int] = field(default_factory=dict)

    def answers(self, mode: str) -> frozenset[str]:
        """Root causes that are right."""
        if mode == "tracepoints" and self.scenario in AT_TRACE:
            return AT_TRACE[self.scenario]
        return ANSWERS.get(self.scenario, frozenset())


def read(directory: Path, messages: pd.DataFrame, tables: dict[str, pd.DataFrame], clock: ClockMap) -> Truth:
    """The truth of the capture in ``directory``; ``clock`` converts the times of its ``messages`` to TSC."""
    told: dict[str, Any] = json.loads((directory / "capture.nsight" / "truth.json").read_text())
    name, cause = told["scenario"], SCENARIOS[told["scenario"]].cause
    if not cause:
        return Truth(name, told["expect"], {}, True)
    if name not in ANSWERS:
        return Truth(name, told["expect"], {}, False, scorable=False)
    both = match(told["requests"], messages)
    # For any message, not only those whose own request was marked: a cause delays all that wait.
    chosen = messages[messages["message_id"].isin(both["message_id"])]
    ids, first, last, arrival = (
        chosen[c].to_numpy(np.int64) for c in ("message_id", "first_ns", "last_ns", "arrival_ns")
    )
    low, high, until = (clock.convert(t, "monotonic", "tsc")[0] for t in (first, last, arrival))
    found, exact, least = acted(directory, told, cause), True, log_truth.MIN_NS
    log = directory / "observer.log"
    if cause.id == "coalescing" and log.exists():
        inside, least = _deferred(directory, low, until), DEFERRED_NS
    elif cause.id in OF_OTHERS:
        turn = _turns(tables["contexts"], (who,) if (who := OF_OTHERS[cause.id]) else RECORDER)
        exact = who is None and found is not None
        if who:
            inside = log_truth.share_ns(first, last, turn)
        else:
            wide = found or []
            ns = clock.convert(np.array(wide, np.int64).reshape(-1), "tsc", "monotonic")[0].reshape(-1, 2)
            inside = log_truth.share_ns(first, last, _without([(int(a), int(b)) for a, b in ns], turn))
    elif found is not None:
        inside = log_truth.share_ns(low, high, found)
    else:
        exact = False
        inside = np.zeros(len(ids), np.int64)
    if not exact and not inside.any():
        # A message whose lifetime is at least as long as the client's share of the cause contains all of it.
        held = both[(both["cause_ns"] > 0) & (both["latency_ns"] >= both["cause_ns"])]
        ns_of = dict(zip(held["message_id"].astype(int), held["cause_ns"].astype(int)))
    else:
        if cause.evidence == "wake-ups":
            least = cause.above
        ns_of = {int(i): int(n) for i, n in zip(ids, inside) if n >= least}
    slack = _service(messages, tables["calls"]) if ANSWERS[name].issuperset(HELD_UP) else {}
    every = {int(i): int(n) for i, n in zip(ids, inside)} | ns_of
    return Truth(name, told["expect"], ns_of, exact, slack, every=every)


def _deferred(directory: Path, since: Int, until: Int) -> Int:
    """From the NIC (``since``, TSC) to the timer that makes NAPI look, if it lies before the arrival; hard interrupts aside.

    While one of these is handled, the NIC's interrupt could not be, deferred or not: the tick, irq_work, and the last timer's own entry.
    """
    symbols = log_truth.read_symbols(directory / "capture.nsight" / "perf.data" / "kcore_dir" / "kallsyms")
    log = directory / "observer.log"
    argv = [str(WALK), "entries", str(log), "--function", symbols["napi_watchdog"]]
    out = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    fired = np.sort([int(line.split("\t")[2]) for line in out.splitlines()])
    if not len(fired):
        return np.zeros(len(since), np.int64)
    outer = tuple(name for name in symbols if re.fullmatch(r"sysvec_\w+|common_interrupt", name))
    inner = tuple(name for name in symbols if re.fullmatch(r"__(sysvec_\w+|common_interrupt)", name))
    softirq = tuple(name for name in ("handle_softirqs", "__do_softirq") if name in symbols)
    whole, handler, soft = (log_truth._functions(WALK, log, symbols, n) for n in (outer, inner, softirq))
    # On its way out an interrupt runs softirqs, with interrupts on.
    return deferred(since, until, fired, log_truth.merged(handler + _without(whole, soft)))


def deferred(since: Int, until: Int, fired: Int, interrupts: Intervals) -> Int:
    """For each [since, until), the time before the last of ``fired`` in it that is in no interrupt.

    The timer of 90 fires in an interrupt that began at 88, and another one took from 30 to 35:

    >>> deferred(np.array([10, 95]), np.array([99, 99]), np.array([5, 90]), [(30, 35), (88, 94)]).tolist()
    [73, 0]
    """
    last = np.searchsorted(fired, until, "right") - 1
    at = np.where(last >= 0, fired[np.maximum(last, 0)], since)
    at = np.maximum(at, since)
    return at - since - log_truth.share_ns(since, at, interrupts)


def _turns(contexts: pd.DataFrame, comms: tuple[str, ...]) -> Intervals:
    """When these threads had a core, from perf's switch records (ns); the captures that need it have one core."""
    mine = contexts[contexts["comm"].isin(comms)]
    return log_truth.merged(list(zip(mine["start_ns"].astype(int), mine["end_ns"].astype(int))))


def _without(intervals: Intervals, other: Intervals) -> Intervals:
    """The parts of intervals that no other one covers.

    >>> _without([(0, 10)], [(2, 3), (9, 20)])
    [(0, 2), (3, 9)]
    """
    left = []
    for begin, end in intervals:
        for a, b in other:
            if b <= begin or a >= end:
                continue
            if a > begin:
                left.append((begin, a))
            begin = b
        if begin < end:
            left.append((begin, end))
    return left


def _service(messages: pd.DataFrame, calls: pd.DataFrame) -> dict[int, int]:
    """By message, the ordinary service of the messages that its thread served while it waited; see ``service``."""
    again = calls[(calls["kind"] == "syscall") & calls["symbol"].isin([*WAITS, *READS])]
    found: dict[int, int] = {}
    lengths, ahead = [], []
    for tid, group in messages.groupby("tid"):
        begins = np.sort(again["start_ns"][again["tid"] == tid].to_numpy(np.int64))
        group = group.sort_values("app_ns")
        read = group["app_ns"].to_numpy(np.int64)
        at = np.searchsorted(begins, read)
        known = at < len(begins)
        done = np.where(known, begins[np.minimum(at, max(len(begins) - 1, 0))] if len(begins) else read, read)
        lengths.append((done - read)[known])
        ahead.append((group["message_id"], served_ahead(group["first_ns"].to_numpy(np.int64), read, done)))
    every = np.concatenate(lengths) if lengths else np.zeros(0)
    usual = int(np.median(every)) if len(every) else 0
    for ids, count in ahead:
        found |= {int(i): int(n) * usual for i, n in zip(ids, count)}
    return found


def served_ahead(first: Int, read: Int, done: Int) -> Int:
    """How many other messages a thread worked on between the ``first`` timestamp and the ``read`` of each; ``read`` ascends.

    The third was there when the first was still worked on (until 30), and the second was next:

    >>> served_ahead(np.array([0, 5, 20]), np.array([10, 40, 60]), np.array([30, 50, 70])).tolist()
    [0, 1, 2]
    """
    return np.arange(len(read)) - np.searchsorted(np.maximum.accumulate(done), first, "right").clip(
        max=np.arange(len(read))
    )


def match(requests: list[dict[str, Any]], messages: pd.DataFrame) -> pd.DataFrame:
    """Requests with the message that holds their first byte: same connection, bytes in order."""
    rows = []
    of_peer = dict(iter(messages.groupby("rport")))
    for request in requests:
        group = of_peer.get(request["lport"])
        if group is None:
            continue
        begin = request["bytes"][0]
        hit = group[(group["byte_start"] <= begin) & (group["byte_end"] > begin)]
        for message in hit.itertuples():
            rows.append(
                (message.message_id, message.latency_ns, sum(request["cause_ns"].values()), request["number"])
            )
    return pd.DataFrame(rows, columns=["message_id", "latency_ns", "cause_ns", "number"])


def acted(directory: Path, told: dict[str, Any], cause: Cause) -> Intervals | None:
    """When the cause acted, TSC: as truth.json has it from the observer's log, else from that log; None if neither has it."""
    if "acted" in told:
        return [(a, b) for a, b in told["acted"]] if told["acted"] is not None else None
    log = directory / "observer.log"
    if not log.exists() or not WALK.exists():
        return None
    return intervals(WALK, log, directory / "capture.nsight" / "perf.data" / "kcore_dir" / "kallsyms", cause)
