# SPDX-License-Identifier: GPL-2.0-only
"""What a recording contains and what it lost, as far as the programs themselves know."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from . import collect, intervals, probes
from .plan import Plan

_MOST_OF_LOG = 4096
UNRESERVED = "no disk space was reserved for the last counts: if the disk fills up, they may be missing"


def enter(manifest: dict[str, Any], plan: Plan, directory: Path) -> probes.Counts:
    """Enter it into ``manifest``; returns the messages by kind."""
    losses: list[dict[str, Any]] = manifest.setdefault("losses", [])

    def add(tool: str, what: str, count: int) -> None:
        if count:
            losses.append({"tool": tool, "what": what, "count": count})

    if plan.recorder == "bpf":
        counts = _of_collect(manifest, plan, directory)
        log = directory / "collect.log"
        if counts.ended:
            add("collect", "records lost", manifest["records"]["lost"])
        else:
            what = "it ended without its counts: how many records were lost is unknown"
            losses.append({"tool": "collect", "what": what, "count": None})
        for program, n in collect.missed(log).items():
            what = f"runs of {program} that the kernel left out, because one was already running on that core"
            add("collect", what, n)
        if why := collect.unreserved(log):
            manifest["unreserved"] = why
        what = "existing connections whose acknowledgements could not be requested"
        add("collect", what, collect.not_asked(log))
    else:
        counts = probes.count(directory / "events.tsv", directory / "events.log")
        add("bpftrace", "events produced but not written", counts.undelivered())
        add("bpftrace", "events that bpftrace says it lost", counts.lost)
        manifest["events"] = {"produced": counts.produced, "written": counts.written}
    add("perf", "chunks of events lost", _sum(rb"lost (\d+) chunks", directory / "perf.log"))
    add("tcpdump", "packets dropped", _sum(rb"^(\d+) packets dropped by", directory / "payload.log"))
    return counts


def of_window(window: dict[str, Any], missed: int) -> list[dict[str, Any]]:
    """Losses of a window of the flight recorder, which nsight-collect described. ``missed``: runs of its programs
    since the previous window."""
    counts = {
        "units of 16 bytes that were overwritten, or not complete yet": window["left_out_units"],
        "runs of BPF programs that the kernel left out since the previous window, because one was already running": missed,
        "ms at the begin of the window for which not all steal time was kept: the newest 4096 entries are": -(
            -window["no_steal_ns"] // 1_000_000
        ),
    }
    return [{"tool": "collect", "what": what, "count": n} for what, n in counts.items() if n]


def _of_collect(manifest: dict[str, Any], plan: Plan, directory: Path) -> probes.Counts:
    log = directory / "collect.log"
    counts, records, lost = collect.count(log)
    collect.write_interrupts(directory / collect.DIRECTORY)
    known = counts.ended
    manifest["records"] = {"produced": records if known else None, "lost": lost if known else None}
    manifest["events"] = {
        "produced": counts.produced if known else None,
        "written": counts.written if known else None,
    }
    manifest["intervals"] = intervals.told(plan.intervals, log)
    return counts


def _sum(pattern: bytes, log: Path) -> int:
    try:
        with open(log, "rb") as f:
            head = f.read(_MOST_OF_LOG)
    except OSError:
        return 0
    return sum(int(n) for n in re.findall(pattern, head, re.MULTILINE))
