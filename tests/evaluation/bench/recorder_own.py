# SPDX-License-Identifier: GPL-2.0-only
"""A recorder's own cost: its processes, its BPF programs, and its losses when there is much to record."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import recorders
from machinery.testbed.bed import LOAD_DIR, Testbed
from machinery.testbed.turn import turn
from nsight_demo.processes import BedError, Process
from recorder_servers import answered, recording
from recorders import Outcome, Recorder

BATCH = LOAD_DIR / "build" / "batch"
_STATS = Path("/proc/sys/kernel/bpf_stats_enabled")


@dataclass(frozen=True)
class Flood:
    """``rate`` datagrams/s over loopback, an equal share on each core.

    ``segment``: the kernel cuts one large datagram into 64, which takes a third of the time of sending each one. The receiver
    still gets 64 messages, but an interface receives only one packet for them.
    """

    rate: int
    cores: tuple[int, ...]
    seconds: float
    segment: bool

    def start(self, bed: Testbed, port: int) -> list[Process]:
        """The senders, each with a separate loopback address."""
        common = [
            str(BATCH),
            "-p",
            str(port),
            "-r",
            str(self.rate // len(self.cores)),
            "-d",
            str(self.seconds),
        ]
        common += ["-g", "-b", "64"] if self.segment else []
        return [
            bed.start("batch", [*common, "-a", f"127.0.0.{core + 1}", "-C", str(core)], bed.link.server)
            for core in self.cores
        ]


@dataclass(frozen=True)
class Flooded:
    """Results of a flood; ``cpu_s``: of the recorder's processes during it."""

    received: int
    seconds: float
    cpu_s: float = 0.0
    outcome: Outcome | None = None

    @property
    def rate(self) -> float:
        """Messages/s that were received."""
        return self.received / self.seconds


def flooded(bed: Testbed, flood: Flood, recorder: Recorder | None) -> Flooded:
    """A flood, recorded or not."""
    port = bed.reserve_port()
    with turn():
        if recorder is None:
            return Flooded(*_received(flood.start(bed, port)))
        with recording(bed, recorder, port) as running:
            before = recorders.cpu_s(running.pid)
            received, seconds = _received(flood.start(bed, port))
            cpu_s = recorders.cpu_s(running.pid) - before
            return Flooded(received, seconds, cpu_s, running.stop())


def _received(senders: list[Process]) -> tuple[int, float]:
    """Datagrams, and seconds of the longest."""
    for sender in senders:
        if sender.wait():
            raise BedError(f"batch failed: {sender.output()}")
    counts = [[int(word) for word in sender.output().split()] for sender in senders]
    return sum(n for _, n, _ in counts), max(ns for _, _, ns in counts) / 1e9


def programs(bed: Testbed, recorder: Recorder, kind: str, seconds: float, directory: Path) -> Iterator[str]:
    """A table of the recorder's BPF programs under a closed loop. The kernel's measuring has a cost, too."""
    if not (bpftool := recorders.find("bpftool")):
        yield "BPF programs: bpftool is not installed"
        return
    server = bed.start_server(kind)
    with turn(), recording(bed, recorder, server.port) as running:
        before = _STATS.read_text()
        _STATS.write_text("1")
        try:
            held = recorders.programs(running.pid)
            first = _counts(bpftool)
            read = answered(bed, server, ["-c", "8", "-d", str(seconds)], directory / "load.tsv")
            last = _counts(bpftool)
        finally:
            _STATS.write_text(before)
        running.stop()
    server.process.stop()
    if not held & last.keys():
        yield f"BPF programs: {recorder.name} has none loaded"
        return
    n_requests = read()["n"]
    yield f"BPF programs of {recorder.name}, by time; {kind}, 8 connections, {n_requests / seconds:,.0f} requests/s"
    rows = []
    for number in held & last.keys():
        then, now = first.get(number, {}), last[number]
        runs, ns = (now.get(key, 0) - then.get(key, 0) for key in ("run_cnt", "run_time_ns"))
        rows.append((ns, runs, now.get("name", "-"), now["type"]))
    rows.sort(reverse=True)
    rows.append((sum(row[0] for row in rows), sum(row[1] for row in rows), "all", ""))
    width = max(len(row[2]) for row in rows)
    yield f"  {'program':{width}} {'type':>14} {'runs/s':>11} {'a request':>9} {'ns a run':>8} {'of a core':>9}"
    for ns, runs, name, type_ in rows:
        if runs:
            yield (
                f"  {name:{width}} {type_:>14} {runs / seconds:11,.0f} {runs / max(n_requests, 1):9.2f} "
                f"{ns / runs:8,.0f} {ns / seconds / 1e9:9.1%}"
            )
    yield f"  {sum(not row[1] for row in rows)} did not run"


def _counts(bpftool: str) -> dict[int, dict[str, Any]]:
    done = subprocess.run([bpftool, "prog", "show", "-j"], capture_output=True, text=True, check=True)
    return {row["id"]: row for row in json.loads(done.stdout)}
