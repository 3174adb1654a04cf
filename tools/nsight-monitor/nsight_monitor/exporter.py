# SPDX-License-Identifier: GPL-2.0-only
"""The Prometheus side: the sums since the beginning, as histograms in seconds, in the format that a scrape
accepts.

It reads lines and serves them. It needs no privileges, and gives up root's before it opens its port.
"""

from __future__ import annotations

import os
import pwd
import threading
from collections.abc import Iterator
from typing import Any

from nsight_record.errors import Missing, Usage

from . import native
from .histogram import N_BUCKETS, Histogram
from .names import Names
from .snapshots import GivenNames, Header, Line, Restarts, Snapshot, Window

#: Exported buckets: up to 256 ns, each twice as wide, up to 34 s. Finer and coarser ones are added to those
#: at the ends.
FIRST, LAST = 8, 35
NOBODY = "nobody"
#: Maximum number of stages whose windows are kept: a line may have any names.
MOST_STAGES = 64
#: Maximum number of stages and groups with exemplars.
MOST_EXEMPLARS = 1 << 16

try:
    import prometheus_client
    import prometheus_client.exposition
    from prometheus_client.core import CounterMetricFamily, Exemplar, GaugeMetricFamily, HistogramMetricFamily
except ImportError:  # it is optional
    prometheus_client = None  # type: ignore[assignment]


def address(text: str) -> tuple[str, int]:
    """HOST:PORT, :PORT or PORT; without HOST only this host can connect. Raises Usage.

    >>> address("9435"), address("[::1]:80")
    (('127.0.0.1', 9435), ('::1', 80))
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) < 65536:
        raise Usage(f"--prometheus {text}: no port", "give PORT, or HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def cumulative(h: Histogram, exemplars: dict[int, Exemplar] | None = None) -> list[Any]:
    """Prometheus's buckets: the upper bound in seconds, how many latencies are not above it, and its
    exemplar, if any.

    ``exemplars`` by bucket number; one beyond the last exported bound belongs to +Inf."""
    found, below, given = [], 0, dict(exemplars or {})
    for bucket in range(N_BUCKETS):
        below += h.n[bucket]
        if FIRST <= bucket <= LAST:
            inside = [b for b in given if b <= bucket]
            newest = [given.pop(b) for b in sorted(inside)][-1:]
            found.append((repr((1 << bucket) / 1e9), float(below), *newest))
    return [*found, ("+Inf", float(below), *list(given.values())[-1:])]


def bucket_of(ns: int) -> int:
    """The bucket's number: above 2**(b - 1) ns and up to 2**b."""
    return min((max(ns, 1) - 1).bit_length(), N_BUCKETS - 1)


class Collector:
    """Gives the newest snapshot to each scrape, with the newest window of each bucket as its exemplar."""

    def __init__(self, header: Header, native: bool = False) -> None:
        self._group_by = header.group_by
        self._began = header.began_ns / 1e9 or None
        self._native = native
        self._names = Names(header.group_by)
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._exemplars: dict[tuple[str, int], dict[int, Exemplar]] = {}
        self._windows: dict[str, tuple[str, float]] = {}  # the last one of each stage
        self._n_windows = self._restarts = 0
        self._answers: dict[str, tuple[bytes, str]] = {}

    def update(self, line: Line) -> None:
        """Use this line from now on."""
        with self._lock:
            if isinstance(line, Snapshot):
                self._snapshot = line
                ended = self._exemplars.keys() - line.histograms.keys()
                for key in ended:
                    del self._exemplars[key]
            elif isinstance(line, GivenNames):
                self._names.give(line.names)
            elif isinstance(line, Restarts):
                self._restarts = line.n
            elif isinstance(line, Window):
                self._add(line)
            self._answers.clear()

    def _add(self, window: Window) -> None:
        self._n_windows = window.n or self._n_windows + 1
        for slow in window.slow:
            if len(self._exemplars) >= MOST_EXEMPLARS and (slow.stage, slow.group) not in self._exemplars:
                continue
            at = slow.realtime_ns / 1e9
            of = self._exemplars.setdefault((slow.stage, slow.group), {})
            of[bucket_of(slow.ns)] = Exemplar({"window": window.name}, slow.ns / 1e9, at)
            if len(self._windows) < MOST_STAGES or slow.stage in self._windows:
                self._windows[slow.stage] = (window.name, at)

    def collect(self) -> Iterator[Any]:
        """In prometheus_client's form: one family after the other."""
        snapshot = self._snapshot
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
        ended = CounterMetricFamily(
            "nsight_monitor_ended_latencies", "Latencies of groups that ended: they are in no histogram any more.",
            labels=["stage"],
        )  # fmt: skip
        missed = CounterMetricFamily(
            "nsight_monitor_missed_runs", "Runs of BPF programs that the kernel left out."
        )
        restarts = CounterMetricFamily(
            "nsight_monitor_exporter_restarts", "How often the exporter was killed and started again."
        )
        updated = GaugeMetricFamily(
            "nsight_monitor_update_timestamp_seconds", "When the counts were read from the kernel."
        )
        windows = CounterMetricFamily(
            "nsight_flight_windows", "Windows of the flight recorder that hold slow latencies."
        )
        last = GaugeMetricFamily(
            "nsight_flight_window_timestamp_seconds", "The last slow latency of a stage that a window holds, and its name.",
            labels=["stage", "window"],
        )  # fmt: skip
        if snapshot:
            for (stage, group), labelled, histogram in self._histograms(snapshot):
                buckets = cumulative(histogram, self._exemplars.get((stage, group)))
                latency.add_metric(list(labelled.values()), buckets, histogram.sum_ns / 1e9)
                if began := snapshot.group_began_ns.get(group, 0) / 1e9 or self._began:
                    latency.add_sample(f"{latency.name}_created", labelled, began)
            for name, n in snapshot.counts.items():
                (stamps if "stamp_" in name else exceptions).add_metric([name], n, self._began)
            for stage, histogram in snapshot.ended.items():
                ended.add_metric([stage], histogram.count, self._began)
            missed.add_metric([], snapshot.missed, self._began)
            restarts.add_metric([], self._restarts, self._began)
            updated.add_metric([], snapshot.realtime_ns / 1e9)
            windows.add_metric([], self._n_windows, self._began)
        for stage, (name, at) in self._windows.items():
            last.add_metric([stage, name], at)
        yield from (latency, stamps, exceptions, ended, missed, restarts, updated, windows, last)

    def _histograms(self, snapshot: Snapshot) -> Iterator[tuple[tuple[str, int], dict[str, str], Histogram]]:
        names = self._names.of(snapshot)
        for (stage, group), histogram in snapshot.histograms.items():
            of = {self._group_by: names.get(group, str(group))} if self._group_by else {}
            yield (stage, group), {"stage": stage, **of}, histogram

    def answer(self, accept: str) -> tuple[bytes, str]:
        """Body and content type. OpenMetrics, which carries exemplars, is used if it is accepted; each form
        is made once for a snapshot."""
        protobuf = self._native and "proto=io.prometheus.client.MetricFamily" in accept.replace(" ", "")
        encode: Any
        encode, kind = (
            (None, native.CONTENT_TYPE) if protobuf else prometheus_client.exposition.choose_encoder(accept)
        )
        with self._lock:
            if kind not in self._answers:
                self._answers[kind] = (encode(self) if encode else self._protobuf(), kind)
            return self._answers[kind]

    def _protobuf(self) -> bytes:
        found = self._histograms(self._snapshot) if self._snapshot else ()
        return native.exposition(self.collect(), ((labels, h) for _, labels, h in found))


def drop_privileges(name: str = NOBODY) -> None:
    """Change from root to a user who owns nothing; other users stay the same. Raises Missing."""
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


def check(protobuf: bool = False) -> None:
    """Raises Missing if Prometheus's library, or that of ``protobuf``, is not installed."""
    if prometheus_client is None:
        raise Missing(
            "--prometheus: the Python package prometheus_client is not installed",
            "apt install python3-prometheus-client, or pip install prometheus-client",
        )
    if protobuf and native.descriptor_pb2 is None:
        raise Missing(
            "--native-histograms: the Python package protobuf is not installed",
            "apt install python3-protobuf, or pip install protobuf",
        )
