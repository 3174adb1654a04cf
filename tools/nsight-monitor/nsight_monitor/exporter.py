# SPDX-License-Identifier: GPL-2.0-only
"""Prometheus's side: the sums since the beginning, as classic histograms in seconds.

It reads lines and serves them; it needs no privilege, and gives up that of root before it opens its port.
"""

from __future__ import annotations

import os
import pwd
import threading
from collections.abc import Iterator
from typing import Any

from nsight_record.errors import Missing, OutputError, Usage

from .histogram import N_BUCKETS, Histogram
from .names import Names
from .snapshots import Header, Snapshot

#: Buckets that are exported: up to 256 ns, each twice as wide, up to 34 s. Finer and coarser ones are in those beside them.
FIRST, LAST = 8, 35
NOBODY = "nobody"

try:
    import prometheus_client
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
except ImportError:  # it is optional
    prometheus_client = None  # type: ignore[assignment]


def address(text: str) -> tuple[str, int]:
    """HOST:PORT, :PORT or PORT; of this host alone unless another one is named. Raises Usage.

    >>> address("9435"), address("[::1]:80")
    (('127.0.0.1', 9435), ('::1', 80))
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) < 65536:
        raise Usage(f"--prometheus {text}: no port", "give PORT, or HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def cumulative(h: Histogram) -> list[tuple[str, float]]:
    """Prometheus's buckets: the upper bound in seconds, and how many latencies are not above it."""
    found, below = [], 0
    for bucket in range(N_BUCKETS):
        below += h.n[bucket]
        if FIRST <= bucket <= LAST:
            found.append((repr((1 << bucket) / 1e9), float(below)))
    return [*found, ("+Inf", float(below))]


class Collector:
    """Gives the newest snapshot to whoever scrapes."""

    def __init__(self, header: Header) -> None:
        self._group_by = header.group_by
        self._names = Names(header.group_by)
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._group_names: dict[int, str] = {}

    def update(self, snapshot: Snapshot) -> None:
        """From now on this one."""
        names = self._names.of(snapshot)
        with self._lock:
            self._snapshot, self._group_names = snapshot, names

    def collect(self) -> Iterator[Any]:
        """As prometheus_client wants it: one family after the other."""
        with self._lock:
            snapshot, names = self._snapshot, self._group_names
        labels = ["stage", *([self._group_by] if self._group_by else [])]
        latency = HistogramMetricFamily(
            "nsight_stage_latency_seconds", "Time that messages and packets took for a stage.", labels=labels
        )
        stamps = CounterMetricFamily(
            "nsight_receive_stamps",
            "Received packets, by what is known of when they arrived.",
            labels=["result"],
        )
        exceptions = CounterMetricFamily(
            "nsight_monitor_exceptions", "Packets, reads and sends of which a stage could not be measured as usual.",
            labels=["kind"],
        )  # fmt: skip
        missed = CounterMetricFamily(
            "nsight_monitor_missed_runs", "Runs of BPF programs that the kernel left out."
        )
        updated = GaugeMetricFamily(
            "nsight_monitor_update_timestamp_seconds", "When the counts were read from the kernel."
        )
        if snapshot:
            for (stage, group), histogram in snapshot.histograms.items():
                of = [names.get(group, str(group))] if self._group_by else []
                latency.add_metric([stage, *of], cumulative(histogram), histogram.sum_ns / 1e9)
            for name, n in snapshot.counts.items():
                (stamps if "stamp_" in name else exceptions).add_metric([name], n)
            missed.add_metric([], snapshot.missed)
            updated.add_metric([], snapshot.realtime_ns / 1e9)
        yield from (latency, stamps, exceptions, missed, updated)


def drop_privileges(name: str = NOBODY) -> None:
    """From root to a user who owns nothing; others stay who they are. Raises Missing."""
    if os.geteuid() != 0:
        return
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise Missing(
            f"no user {name}", "add one, or run the exporter as another user with --input -"
        ) from None
    os.setgroups([])
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)


def check() -> None:
    """Raises Missing where Prometheus's library is not there."""
    if prometheus_client is None:
        raise Missing(
            "--prometheus: the Python package prometheus_client is not installed",
            "apt install python3-prometheus-client, or pip install prometheus-client",
        )


def serve(collector: Collector, where: tuple[str, int]) -> int:
    """Answer scrapes from a thread of its own; returns the port. Raises OutputError."""
    registry = prometheus_client.CollectorRegistry()
    registry.register(collector)  # type: ignore[arg-type]
    try:
        started = prometheus_client.start_http_server(where[1], addr=where[0], registry=registry)
    except OSError as e:
        raise OutputError(
            f"--prometheus {where[0]}:{where[1]}: {e.strerror}",
            "another program has the port: take another one",
        ) from None
    return started[0].server_port if started else where[1]
