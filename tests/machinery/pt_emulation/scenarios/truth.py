# SPDX-License-Identifier: GPL-2.0-only
"""Which messages were delayed, by what, and for how many ns: only from the observer's log.

A request is in flight from the mark that the load client executes before it sends to the mark
after it received. The log shows the intervals of a cause by marks or by executions of functions.
The part of the cause that lies within a request's flight is its share, in ns of the guest: one
instruction each. Nothing of the product's own analysis is used.
"""

from __future__ import annotations

import csv
import json
import statistics
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .base import Cause, Scenario

I64 = npt.NDArray[np.int64]

SENT, RECEIVED, BEGIN, END = 16, 17, 18, 19
#: A share below this, of the flight and in ns, is too small to be a cause: scheduling edges, timers.
MIN_SHARE, MIN_NS = 0.02, 1000


@dataclass
class Marks:
    """Marks of one log: request -> (sent, received), disturbance -> intervals; TSC."""

    flights: dict[tuple[int, int], tuple[int, int]]
    disturbances: dict[int, list[tuple[int, int]]]
    first: int
    last: int


def parse_marks(text: str) -> Marks:
    """Marks from the output of ``pt-walk marks``.

    >>> marks = parse_marks("0\\t5\\tmark\\t16\\t0x500000002\\t0x0\\n0\\t9\\tmark\\t17\\t0x500000002\\t0x0\\n")
    >>> marks.flights
    {(5, 2): (5, 9)}
    """
    sent: dict[int, int] = {}
    flights = {}
    open_: dict[tuple[int, int], int] = {}
    disturbances: dict[int, list[tuple[int, int]]] = defaultdict(list)
    times = []
    for line in text.splitlines():
        _, tsc_text, what, *rest = line.split("\t")
        tsc = int(tsc_text)
        times.append(tsc)
        if what != "mark":
            continue
        kind, first, second = int(rest[0]), int(rest[1], 16), int(rest[2], 16)
        if kind == SENT:
            sent[first] = tsc
        elif kind == RECEIVED and first in sent:
            flights[first >> 32, first & 0xFFFFFFFF] = (sent[first], tsc)
        elif kind == BEGIN:
            open_[first, second] = tsc
        elif kind == END and (first, second) in open_:
            disturbances[first].append((open_.pop((first, second)), tsc))
    for (cause, _), begin in open_.items():
        disturbances[cause].append((begin, times[-1]))  # still active when the log ended
    return Marks(flights, dict(disturbances), min(times, default=0), max(times, default=0))


def share_ns(start: I64, end: I64, intervals: list[tuple[int, int]]) -> I64:
    """For each [start, end), how many of its ns lie in the intervals.

    >>> share_ns(np.array([0, 100]), np.array([50, 200]), [(40, 60), (150, 155)]).tolist()
    [10, 5]
    """
    total = np.zeros(len(start), np.int64)
    for begin, stop in intervals:
        total += np.maximum(np.minimum(end, stop) - np.maximum(start, begin), 0)
    return total


def merged(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Union of intervals, so that no ns counts twice.

    >>> merged([(5, 9), (0, 2), (8, 12)])
    [(0, 2), (5, 12)]
    """
    out: list[list[int]] = []
    for begin, end in sorted(intervals):
        if out and begin <= out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        else:
            out.append([begin, end])
    return [(begin, end) for begin, end in out]


def _functions(
    walk: Path, log: Path, symbols: dict[str, str], names: tuple[str, ...]
) -> list[tuple[int, int]]:
    """When the outermost executions of kernel functions ran, without the time of other tasks."""
    argv = [str(walk), "intervals", str(log), "--switch", symbols["__switch_to_asm"]]
    for name in names:
        argv += ["--function", symbols[name]]
    out = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    rows = []
    for line in out.splitlines():
        _, _, _, start, end = line.split("\t")
        rows.append((int(start), int(end)))
    return merged([row for row in rows if row[1] > row[0]])


#: Where the kernel begins to wake another core, and where that core begins to handle it.
KICKS = ("native_smp_send_reschedule", "native_send_call_func_single_ipi")
KICKED = ("asm_sysvec_reschedule_ipi", "asm_sysvec_call_function_single")


def wake_ups(entries: list[tuple[int, int, str]], core: int, least: int) -> list[tuple[int, int]]:
    """From another core's interrupt to ``core`` until it runs, where that took ``least`` ns.

    ``entries``: (tsc, cpu, symbol) of KICKS and KICKED. Of several kicks before it runs, the
    first counts.

    >>> wake_ups([(5, 1, KICKS[0]), (9, 1, KICKS[0]), (90, 0, KICKED[0]), (95, 0, KICKS[0])], 0, 50)
    [(5, 90)]
    """
    found = []
    since: int | None = None
    for tsc, cpu, symbol in sorted(entries):
        if cpu != core and symbol in KICKS:
            since = tsc if since is None else since
        elif cpu == core and symbol in KICKED and since is not None:
            if tsc - since >= least:
                found.append((since, tsc))
            since = None
    return found


def _entries(walk: Path, log: Path, symbols: dict[str, str]) -> list[tuple[int, int, str]]:
    argv = [str(walk), "entries", str(log)]
    names = {int(symbols[name], 16): name for name in (*KICKS, *KICKED)}
    for address in names:
        argv += ["--function", f"{address:x}"]
    out = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    rows = (line.split("\t") for line in out.splitlines())
    return [(int(tsc), int(cpu), names[int(address, 16)]) for cpu, address, tsc in rows]


def read_symbols(kallsyms: Path) -> dict[str, str]:
    """First address of each kernel symbol, as hex text."""
    symbols: dict[str, str] = {}
    with kallsyms.open() as file:
        for line in file:
            address, _, name = line.split()[:3]
            symbols.setdefault(name, address)
    return symbols


def _requests(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader((x for x in file if not x.startswith("#")), delimiter="\t"))


def _excess(latency: I64, affected: npt.NDArray[np.bool_]) -> I64:
    usual = int(np.median(latency[~affected])) if (~affected).any() else 0
    return np.where(affected, np.maximum(latency - usual, 0), 0).astype(np.int64)


def _cause_ns(
    cause: Cause,
    marks: Marks,
    rows: list[dict[str, str]],
    sent: I64,
    received: I64,
    outer: list[tuple[int, int]],
) -> I64:
    if cause.evidence == "marks":
        return share_ns(sent, received, merged(marks.disturbances.get(cause.mark or 0, [])))
    if cause.evidence in ("functions", "wake-ups"):
        return share_ns(sent, received, outer)
    latency = received - sent
    kinds = np.array([row["kind"] == "burst" for row in rows])
    affected = kinds | (latency >= cause.above) if cause.above else kinds
    return _excess(latency, affected)


def _typical_share(share: I64, excess: I64) -> float:
    """The share of the cause in the excess of delayed requests: the median.

    1.0: it is all of the excess. A mean would be dominated by anything else that hit one request: on a
    guest with one core, for example, the program of the probes for one time slice.

    >>> _typical_share(np.array([50, 50, 50]), np.array([50, 40, 4000]))
    1.0
    """
    longer = excess > 0
    return round(float(np.median(share[longer] / excess[longer])), 3) if longer.any() else 0.0


def compute(
    scenario: Scenario, log: Path, requests: Path, kallsyms: Path, walk: Path, facts: dict[str, Any]
) -> dict[str, Any]:
    """truth.json of one capture; Documentation/pt-emulation.md has its format."""
    out = subprocess.run([str(walk), "marks", str(log)], check=True, capture_output=True, text=True).stdout
    marks = parse_marks(out)
    rows, flights = [], []
    unanswered = 0
    for row in _requests(requests):
        flight = marks.flights.get((int(row["lport"]), int(row["number"])))
        if row["counted"] == "1" and flight:
            rows.append(row)
            flights.append(flight)
        elif row["counted"] == "1":
            unanswered += 1
    sent, received = (np.array([f[i] for f in flights], np.int64) for i in (0, 1))
    cause, share = scenario.cause, np.zeros(len(rows), np.int64)
    if cause:
        outer: list[tuple[int, int]] = []
        if cause.evidence == "functions":
            outer = _functions(walk, log, read_symbols(kallsyms), cause.symbols)
        elif cause.evidence == "wake-ups":
            app_core = 0  # in_guest.py puts it there
            outer = wake_ups(_entries(walk, log, read_symbols(kallsyms)), app_core, cause.above)
        share = _cause_ns(cause, marks, rows, sent, received, outer)
    latency = received - sent
    least = max(MIN_NS, cause.above) if cause and cause.evidence == "functions" else MIN_NS
    affected = (share >= least) & (share >= MIN_SHARE * latency)
    usual = statistics.median(latency[~affected].tolist()) if (~affected).any() else 0
    truth: dict[str, Any] = {
        "version": 1,
        "scenario": scenario.name,
        "what": scenario.what,
        "kernel": facts["kernel"],
        "clock": {"tsc_khz": 1_000_000, "first_tsc": marks.first, "last_tsc": marks.last},
        "expect": scenario.expect,
        "unanswered": unanswered,
        "median_unaffected_ns": usual,
        "requests": [
            {
                "lport": int(row["lport"]),
                "port": facts["port"],
                "number": int(row["number"]),
                "bytes": [int(row["byte_start"]), int(row["byte_start"]) + int(row["nbytes"])],
                "sent_tsc": int(start),
                "received_tsc": int(end),
                "cause_ns": {cause.id: int(ns)} if cause and hit else {},
            }
            for row, start, end, ns, hit in zip(rows, sent, received, share, affected, strict=True)
        ],
        "causes": [],
    }
    if cause:
        excess = latency[affected] - usual
        truth["causes"].append(
            {
                "id": cause.id,
                "what": cause.what,
                "core": cause.core,
                "evidence": cause.evidence,
                "names": list(cause.names),
                "n_messages": int(affected.sum()),
                "total_ns": int(share[affected].sum()),
                "share_of_excess": _typical_share(share[affected], excess),
            }
        )
    return truth


def write(path: Path, truth: dict[str, Any]) -> None:
    """Store truth.json."""
    path.write_text(json.dumps(truth, indent=1) + "\n")
