# SPDX-License-Identifier: GPL-2.0-only
"""Servers under load, recorded and not, in rounds: the part ``servers`` of bench_recorder.py."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import recorders
from machinery.testbed.bed import Server, Testbed
from machinery.testbed.host import stolen_ms
from machinery.testbed.turn import turn
from nsight_demo.logs import read_load
from nsight_demo.processes import BedError
from recorder_figures import Goal, figures, median, ratio, shown
from recorders import NOTHING, Recorder, RecorderError, Running

WARM_UP_S = 0.3
#: The best of several runs is the capacity: a single run may have met other work on the machine.
CAPACITY_RUNS = 3
THROUGHPUT, THROUGHPUT_LEAST = 0.90, 0.85
LATENCY = {"p50": 1.03, "p99.9": 1.05}
START_S = STOP_S = 1.0
#: Columns of the table: figure, its name, width, digits, whether its ratio is printed, too.
COLUMNS = (
    ("rate", "requests/s", 25, 0, True),
    ("p50", "p50 us", 19, 0, True),
    ("p99", "p99 us", 21, 0, False),
    ("p99.9", "p99.9 us", 23, 0, True),
)
#: Only medians.
MEDIANS = (
    ("start_s", "start s", 2),
    ("stop_s", "stop s", 2),
    ("lost", "lost", 0),
    ("stolen_ms", "stolen ms", 0),
)


@dataclass(frozen=True)
class Sizes:
    """How much is measured: rounds, seconds and, in open loop, the least number of requests of each load."""

    rounds: int
    seconds: float
    requests: int


@dataclass(frozen=True)
class Load:
    """A load of a server: ``share`` of its capacity in open loop, 0: closed loop."""

    connections: int
    share: float = 0

    def __str__(self) -> str:
        if self.share:
            return f"{self.share:.0%} of capacity"
        return f"closed loop, {self.connections} connections"

    def options(self, sizes: Sizes, capacity: float, seed: int) -> list[str]:
        """The load client's options."""
        options = ["-c", str(self.connections), "-w", str(WARM_UP_S), "--seed", str(seed)]
        if not self.share:
            return [*options, "-d", str(sizes.seconds)]
        rate = capacity * self.share
        return [*options, "-r", f"{rate:.0f}", "-d", f"{max(sizes.seconds, sizes.requests / rate):.2f}"]


CLOSED = (Load(8), Load(50))
OPEN = (Load(50, 0.02), Load(50, 0.17), Load(50, 0.60))


@contextmanager
def recording(bed: Testbed, recorder: Recorder, port: int) -> Iterator[Running]:
    """A running recorder, to be stopped inside; its files are deleted."""
    with tempfile.TemporaryDirectory(prefix="nsight-bench-") as name:
        running = recorders.start(bed, recorder, Path(name), port, bed.load_cpu)
        try:
            yield running
        finally:
            running.process.stop()


def answered(bed: Testbed, server: Server, options: list[str], log: Path) -> Callable[[], dict[str, Any]]:
    """Put a load on a server until the load ends. Returns a function that reads its figures; call it when nothing records, since it costs time."""
    client = bed.start_load(server, options, log)
    if client.wait():
        raise BedError(f"nsight-load failed: {client.output()}")
    return lambda: dict(figures(read_load(log)))


def measure(
    bed: Testbed, server: Server, options: list[str], recorder: Recorder | None, log: Path
) -> dict[str, Any]:
    """One load, recorded or not: its figures, the recorder's own cost, and the host's steal time."""
    before = stolen_ms()
    if recorder is None:
        read, took = answered(bed, server, options, log), {}
    else:
        with recording(bed, recorder, server.port) as running:
            read = answered(bed, server, options, log)
            outcome = running.stop()
        took = {"start_s": outcome.start_s, "stop_s": outcome.stop_s, "lost": outcome.lost}
        took |= {"losses": outcome.manifest.get("losses", []), "kind": outcome.kind}
    return {**read(), **took, "stolen_ms": stolen_ms() - before}


class Servers:
    """Figures of every load, recorder and round. ``failed``: recorders that cannot run here, and why."""

    def __init__(self, sizes: Sizes, seed: int, found: list[Recorder]) -> None:
        self._sizes = sizes
        self._recorders: dict[str, Recorder | None] = {NOTHING: None, **{r.name: r for r in found}}
        self._random = random.Random(seed)
        self.failed = {r.name: r.missing for r in found if r.missing}
        self.rows: list[dict[str, Any]] = []
        self.capacities: dict[str, float] = {}  # requests/s, by server

    def run(self, bed: Testbed, kind: str, directory: Path) -> None:
        """All rounds of one server."""
        server = bed.start_server(kind)
        log = directory / "load.tsv"
        with turn():
            # These runs also warm up the server; no round is compared with them.
            bare = [
                measure(bed, server, load.options(self._sizes, 0, 1), None, log)["rate"]
                for load in CLOSED * CAPACITY_RUNS
            ]
        capacity = self.capacities[kind] = max(bare)
        for number in range(1, self._sizes.rounds + 1):
            for load in (*CLOSED, *OPEN):
                print(f"{kind}, round {number}, {load}", file=sys.stderr, flush=True)
                # Other measurements on this machine have their turn between loads, not between recorders.
                with turn():
                    self._round(bed, server, load, capacity, number, log)
        server.process.stop()

    def _round(
        self, bed: Testbed, server: Server, load: Load, capacity: float, number: int, log: Path
    ) -> None:
        """All recorders under one load. Requests are due at the same times for each."""
        options = load.options(self._sizes, capacity, number)
        names = [name for name in self._recorders if name not in self.failed]
        for name in self._random.sample(names, len(names)):
            try:
                found = measure(bed, server, options, self._recorders[name], log)
            except RecorderError as error:
                self.failed[name] = str(error)
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                continue
            found |= {"server": server.kind.name, "load": str(load), "round": number, "recorder": name}
            self.rows.append(found)

    def of(self, kind: str, load: Load, name: str, figure: str) -> list[float | None]:
        """A recorder's figure in each round; None if it has none."""
        by_round = {
            row["round"]: row.get(figure)
            for row in self.rows
            if (row["server"], row["load"], row["recorder"]) == (kind, str(load), name)
        }
        return [by_round.get(number) for number in range(1, self._sizes.rounds + 1)]

    def ratio(self, kind: str, load: Load, name: str, figure: str) -> float | None:
        """Ratio of a recorder's figure to that without a recorder."""
        return ratio(self.of(kind, load, name, figure), self.of(kind, load, NOTHING, figure))

    def lines(self, kind: str) -> Iterator[str]:
        """A table for each load: medians (ranges) and ratios to no recorder."""
        for load in (*CLOSED, *OPEN):
            due = f" of {self.capacities[kind]:,.0f} requests/s" if load.share else ""
            yield f"\n{kind}, {load}{due}"
            head = f"  {'recorder':33}"
            for _, label, width, _, with_ratio in COLUMNS:
                head += f" {label:>{width}}" + f" {'x':>6}" * with_ratio
            yield head + "".join(f" {label:>{len(label) + 1}}" for _, label, _ in MEDIANS)
            for name in self._recorders:
                if any(rate is not None for rate in self.of(kind, load, name, "rate")):
                    yield self._line(kind, load, name)
                else:
                    yield f"  {name:33} no figures: {self.failed.get(name)}"

    def _line(self, kind: str, load: Load, name: str) -> str:
        line = f"  {name:33}"
        for figure, _, width, digits, with_ratio in COLUMNS:
            line += f" {shown(self.of(kind, load, name, figure), digits):>{width}}"
            if with_ratio:
                found = self.ratio(kind, load, name, figure)
                line += f" {'-' if found is None else format(found, '.2f'):>6}"
        for figure, label, digits in MEDIANS:
            found = median(self.of(kind, load, name, figure))
            line += f" {'-' if found is None else format(found, f'.{digits}f'):>{len(label) + 1}}"
        return line

    def goals(self, kind: str, name: str) -> Iterator[Goal]:
        """Of one recorder."""
        for load in CLOSED:
            kept = self.ratio(kind, load, name, "rate")
            for words, least in (("", THROUGHPUT), (", at the very least", THROUGHPUT_LEAST)):
                yield Goal(f"{kind}, {load}, requests/s to nothing{words}", kept, least, at_most=False)
        for load in OPEN:
            for figure, most in LATENCY.items():
                found = self.ratio(kind, load, name, figure)
                yield Goal(f"{kind}, {load}, {figure} to nothing", found, most, at_most=True)
        for what, figure, most in (
            ("command to first record", "start_s", START_S),
            ("SIGINT to exit", "stop_s", STOP_S),
        ):
            values = [value for load in (*CLOSED, *OPEN) for value in self.of(kind, load, name, figure)]
            yield Goal(f"{kind}, {what}, median s", median(values), most, at_most=True)
