# SPDX-License-Identifier: GPL-2.0-only
"""A small coherent capture made of tables, for plots and the command line.

One memcached thread on core 1 receives a message every 100 us; core 0 is the receive core. A program
called ``hog`` runs on core 1 for 1 ms out of every 20 ms. So 10 of every 200 messages arrive while
the hog runs, and wait until it ends: 1000, 900, ... 100 us, plus the usual 10 us.

    usual:  nic +0, arrival +2, hand-off +5, read +10 us (softirq 1..6 us on core 0)
    hog:    the read comes 10 us after the hog's end for the first that waited, 10 us later
            for each one behind it (head-of-line)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from nsight_report import losses
from nsight_report.pipeline import Pipeline
from nsight_report.stage import Options
from nsight_report.stages import STAGES

from .tables import Row, call, message, table

US = 1_000
MS = 1_000_000
START = 5_000_000_000_000_123  # monotonic: about 58 days of uptime, beyond what float32 or 2**52 hold evenly
PERIOD = 100 * US
HOG_EVERY, HOG_FOR = 20 * MS, 1 * MS
SERVER_TID, HOG_TID = 1001, 2002


def _message(number: int, nic: int, app: int, comm: str) -> Row:
    return message(
        number, nic, nic + 5 * US, app, comm=comm, pid=1000, tid=SERVER_TID, fd=20 + number % 4, netns=4026531840,
        byte_start=number // 4 * 30, byte_end=number // 4 * 30 + 30, nbytes=30, nic_error_ns=200,
        arrival_ns=nic + 2 * US, arrival_last_ns=nic + 2 * US, call_ns=app - 2 * US,
    )  # fmt: skip


class World:
    """The tables, and the truth that they were made from."""

    def __init__(self, n: int = 2000, app: str = "mc-worker", hog: str = "hog") -> None:
        self.app, self.hog = app, hog
        self.messages: list[Row] = []
        self.calls: list[Row] = []
        self.waits: dict[int, int] = {}  # message -> ns it waited for the hog or behind another
        last_read = 0
        hog_end = 0
        for number in range(n):
            nic = START + number * PERIOD
            if (nic - START) % HOG_EVERY == 0 and number:
                hog_end = nic + HOG_FOR
            usual = nic + 10 * US
            read = max(usual, hog_end + 10 * US, last_read + 10 * US)
            last_read = read
            if read > usual:
                self.waits[number] = read - usual
            self.messages.append(_message(number, nic, read, app))
        self._build_calls(START + n * PERIOD + 2 * MS)

    def _call(
        self, parent: int, depth: int, kind: str, symbol: str, cpu: int, tid: int, start: int, end: int
    ) -> int:
        number = len(self.calls)
        self.calls.append(call(
            kind, symbol, cpu, tid, start, end, call_id=number, parent_id=parent, depth=depth,
            pid=tid - 1 if tid == SERVER_TID else tid, arg=20 if symbol == "read" else 0,
        ))  # fmt: skip
        if parent >= 0:
            self.calls[parent]["self_ns"] -= end - start
        return number

    def _build_calls(self, end: int) -> None:
        edge = START - MS
        for m in self.messages:  # core 0: idle, and a softirq for each message
            nic = m["nic_ns"]
            self._call(-1, 0, "idle", "swapper", 0, 0, edge, nic + US)
            irq = self._call(-1, 0, "hardirq", "virtio0-input", 0, 0, nic + US, nic + 6 * US)
            self._call(irq, 1, "softirq", "NET_RX", 0, 0, nic + US + 500, nic + 6 * US)
            edge = nic + 6 * US
        self._call(-1, 0, "idle", "swapper", 0, 0, edge, end)
        edge = START - MS
        hogged: set[int] = set()
        for m in self.messages:  # core 1: idle until work, the hog, the server's thread
            slot = START + (m["nic_ns"] - START) // HOG_EVERY * HOG_EVERY
            if slot not in hogged and slot > START and m["app_ns"] > slot + HOG_FOR:
                hogged.add(slot)
                self._call(-1, 0, "idle", "swapper", 1, 0, edge, slot)
                hog = self._call(-1, 0, "thread", self.hog, 1, HOG_TID, slot, slot + HOG_FOR)
                tick = self._call(
                    hog, 1, "hardirq", "local_timer", 1, HOG_TID, slot + 400 * US, slot + 410 * US
                )
                self._call(tick, 2, "softirq", "TIMER", 1, HOG_TID, slot + 404 * US, slot + 409 * US)
                edge = slot + HOG_FOR
            start = m["app_ns"] - 4 * US
            if start > edge:
                self._call(-1, 0, "idle", "swapper", 1, 0, edge, start)
            start = max(start, edge)
            thread = self._call(-1, 0, "thread", self.app, 1, SERVER_TID, start, m["app_ns"] + 5 * US)
            self._call(thread, 1, "syscall", "read", 1, SERVER_TID, m["call_ns"], m["app_ns"])
            edge = m["app_ns"] + 5 * US
        self._call(-1, 0, "idle", "swapper", 1, 0, edge, end)
        self.calls.sort(key=lambda c: (c["cpu"], c["start_ns"], c["depth"]))

    def contexts(self) -> list[Row]:
        """Top-level calls of each core; this is enough, because nothing reads the nesting from contexts."""
        names = {0: "swapper", SERVER_TID: self.app, HOG_TID: self.hog}
        return [
            {
                "cpu": c["cpu"],
                "start_ns": c["start_ns"],
                "end_ns": c["start_ns"] + c["dur_ns"],
                "kind": c["kind"],
                "symbol": c["symbol"],
                "pid": c["pid"],
                "tid": c["tid"],
                "comm": names[c["tid"]],
                "call_id": c["call_id"],
            }
            for c in self.calls
            if c["depth"] == 0
        ]

    def diagnosis(self) -> dict[str, list[Row]]:
        """Anomalies, coverage and causes as an attribution would report them for the slowest 1 %."""
        slow = sorted(self.messages, key=lambda m: m["latency_ns"])[-max(1, len(self.messages) // 100) :]
        anomalies, coverage = [], []
        for m in sorted(slow, key=lambda m: m["message_id"]):
            deviation = m["latency_ns"] - 10 * US
            slot = START + (m["nic_ns"] - START) // HOG_EVERY * HOG_EVERY
            hog = max(0, slot + HOG_FOR - m["handoff_ns"])
            parts = [("context", self.hog, "thread", self.hog, hog, slot, slot + HOG_FOR, -1)]
            behind = deviation - hog
            if behind > 5 * US:
                parts.append(
                    ("hol", self.app, "thread", "Head-of-line blocking", behind - 5 * US, m["app_ns"] - behind,
                     m["app_ns"] - 5 * US, m["message_id"] - 1)
                )  # fmt: skip
            parts = [p for p in parts if p[4] > 0]
            for what, subject, kind, category, extra, begin, end, other in parts:
                anomalies.append({
                    "message_id": m["message_id"], "side": "A", "anomaly": what, "subject": subject, "kind": kind,
                    "category": category, "observed_ns": extra, "deviation_ns": extra, "took_ns": extra,
                    "start_ns": begin, "end_ns": end, "cpu": 1, "other_message_id": other,
                })  # fmt: skip
            explained = min(deviation, sum(p[4] for p in parts))
            coverage.append({
                "message_id": m["message_id"], "latency_ns": m["latency_ns"], "baseline_latency_ns": 10 * US, "noise_ns": US,
                "deviation_ns": deviation, "explained_ns": explained,
                "coverage": explained / deviation if deviation else 1.0,
            })  # fmt: skip
        compared = [
            {
                "message_id": c["message_id"],
                "role": "slow",
                **{n: c[n] for n in ("latency_ns", "baseline_latency_ns", "noise_ns")},
            }
            for c in coverage
        ]
        usual = [m for m in self.messages if m["latency_ns"] == 10 * US]
        compared += [
            {
                "message_id": m["message_id"],
                "role": "baseline",
                "latency_ns": 10 * US,
                "baseline_latency_ns": 10 * US,
                "noise_ns": US,
            }
            for m in usual[: len(usual) // 2]
        ]
        causes = self._causes(anomalies, coverage)
        return {"compared": compared, "anomalies": anomalies, "coverage": coverage, "causes": causes}

    @staticmethod
    def _causes(anomalies: list[Row], coverage: list[Row]) -> list[Row]:
        whole = sum(c["deviation_ns"] for c in coverage)
        rows = []
        for category in {a["category"] for a in anomalies}:
            subject = next(a["subject"] for a in anomalies if a["category"] == category)
            values = sorted(a["deviation_ns"] for a in anomalies if a["category"] == category)
            rows.append({
                "cause": f"{category} (A)", "core": "A", "category": category, "subject": subject, "subject_share": 1.0, "n_messages": len(values),
                "median_deviation_ns": values[len(values) // 2], "max_deviation_ns": values[-1],
                "total_deviation_ns": sum(values), "share": sum(values) / max(whole, 1),
                "advice": "pin it to another core", "command": "taskset -pc CPU PID", "check": "it is not there",
            })  # fmt: skip
        return sorted(rows, key=lambda r: -r["total_deviation_ns"])

    def tables(self) -> dict[str, pa.Table]:
        """Every table of the pipeline."""
        made: dict[str, list[Row]] = {
            "messages": self.messages, "calls": self.calls, "contexts": self.contexts(), **self.diagnosis(),
        }  # fmt: skip
        made["found_anomalies"] = made["anomalies"]
        empty = {name: [] for stage in STAGES for name in stage.tables}
        specs = {"found_anomalies": "anomalies"}
        return {name: table(specs.get(name, name), rows) for name, rows in {**empty, **made}.items()}


def manifest(**changes: Any) -> dict[str, Any]:
    """A manifest such as nsight-record writes."""
    return {
        "format": "nsight-capture", "version": 1, "state": "complete", "mode": "tracepoints",
        "host": {"hostname": "db7", "kernel": "6.12.1", "cpu_model": "Example CPU", "n_cpus": 2},
        "command": ["nsight-record", "-d", "1", "--port", "11211"],
        "start": {"monotonic_ns": START - 10 * MS}, "stop": {"monotonic_ns": START + 1000 * MS},
        "stopped_by": "duration", "losses": [], **changes,
    }  # fmt: skip


def blocking_of(message_id: int, **spent: tuple[int, int]) -> pa.Table:
    """Table ``hol``: by category, how long ``message_id`` waited for it, and how long the fastest messages take."""
    return table(
        "hol",
        [
            {"message_id": message_id, "side": "A", "category": category, "subject": f"of {category}",
             "callers": f"main > loop > serve > lookup > do {category}", "n_ahead": 2, "observed_ns": observed,
             "fastest_ns": fastest, "beyond_ns": observed - fastest, "in_fastest": True, "deviation_ns": observed}
            for category, (observed, fastest) in spent.items()
        ],
    )  # fmt: skip


def write_capture(
    path: Path, world: World | None = None, told: dict[str, Any] | None = None, **options: Any
) -> Path:
    """A capture directory whose tables are stored and fresh, so that no stage has to run; ``told``: its manifest.

    Raw files are placeholders: only their size and time are checked, they are never parsed.
    """
    world = world or World()
    path.mkdir()
    (path / "manifest.json").write_text(json.dumps(told or manifest()))
    for name in ("events.tsv", "clock.tsv", "perf.data"):
        (path / name).write_text(f"stand-in for {name}\n")
    tables = world.tables()
    pipeline = Pipeline(path, Options(**options))
    for stage in STAGES:
        ledger = losses.Ledger(stage.name)
        if stage.name == "messages":
            ledger.add("read_without_arrival", 3)
            ledger.add("keep_alive_probes", 2)
        made = {name: tables[name] for name in stage.tables}
        pipeline.store.save(
            stage.name, {**made, f"losses-{stage.name}": ledger.table()}, pipeline._made_from(stage)
        )
    return path
