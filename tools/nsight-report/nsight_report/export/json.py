# SPDX-License-Identifier: GPL-2.0-only
"""The summary as one JSON object, for scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..coverage import Covered, Whole
from ..requests.figures import Figures
from ..stage import REQUEST
from ..summary import Summary, summarise
from ..tables.data_frames import each, record

if TYPE_CHECKING:
    from ..capture_tables import CaptureTables

_CAUSE_FIELDS = (
    "cause",
    "core",
    "category",
    "subject",
    "n_messages",
    "median_deviation_ns",
    "max_deviation_ns",
    "total_deviation_ns",
    "located_ns",
    "advice",
    "command",
    "check",
)
#: What is diagnosed, by direction.
_LATENCY = {"rx": "receive", "tx": "transmit", "interval": "interval", REQUEST: "request"}
_BLOCKING_FIELDS = (
    "cause",
    "subject",
    "callers",
    "n_messages",
    "total_deviation_ns",
    "observed_ns",
    "fastest_ns",
    "beyond_ns",
)
_DROP_FIELDS = (
    "direction",
    "port",
    "proto",
    "reason",
    "n_packets",
    "n_flows",
    "most_source",
    "most_destination",
    "most_packets",
)
_LOSS_FIELDS = ("key", "stage", "cause", "severity", "count", "detail", "remedy")


def summary_object(capture: CaptureTables, summary: Summary | None = None) -> dict[str, Any]:
    """The object of ``--json``. Durations in ns; a percentile that n does not support is null."""
    s = summary if summary is not None else summarise(capture)
    return {
        "capture": str(capture.path),
        "mode": s.mode,
        "messages": {
            "n": s.n,
            "p50_ns": s.percentiles.get(50.0),
            "p99_ns": s.percentiles.get(99.0),
            "p999_ns": s.percentiles.get(99.9),
            "max_ns": s.max_ns,
        },
        "requests": _requests(s.requests),
        "slow": s.slow,
        "baseline": s.baseline,
        "coverage": _coverage(s.covered),
        "latency": _LATENCY[capture.options.direction],
        "causes": [
            {**row, "chain": s.chains[row["cause"]].text if row["cause"] in s.chains else None}
            for row in _rows(
                s.causes.sort_values("total_deviation_ns", ascending=False, kind="stable"), _CAUSE_FIELDS
            )
        ],
        "blocking": _rows(s.blocking, _BLOCKING_FIELDS),
        "drops": _rows(s.drops, _DROP_FIELDS),
        "counters": [one._asdict() for one in s.counted],
        "own_cost": {"median_ns": s.own_cost.median_ns, "share": s.own_cost.share} if s.own_cost else None,
        "losses": _rows(s.losses, _LOSS_FIELDS),
    }


def _coverage(c: Covered | None) -> dict[str, Any]:
    if c is None:
        return {**dict.fromkeys((*Whole._fields, "median", "min", "located_median")), "worst": []}
    return {
        **c.whole._asdict(),
        "median": c.median,
        "min": c.least,
        "located_median": c.located_median,
        "worst": [record(row, "message_id", "coverage", "deviation_ns") for row in each(c.worst)],
    }


def _requests(f: Figures | None) -> dict[str, Any] | None:
    if f is None:
        return None
    tail = f.tail
    return {
        "role": f.role,
        "n": f.n,
        "n_certain": f.n_certain,
        "n_sent": f.n_sent,
        "p50_ns": f.percentiles.get(50.0),
        "p99_ns": f.percentiles.get(99.0),
        "p999_ns": f.percentiles.get(99.9),
        "max_ns": f.max_ns,
        "tail": {"phase": tail[0], "share": tail[1]} if tail else None,
        "slices": [
            {
                "slice": s.name,
                "n": s.n,
                "latency_ns": s.latency_ns,
                **{f"{name}_ns": ns for name, ns in s.phases_ns.items()},
                "sent_ns": s.sent_ns,
            }
            for s in f.slices
        ],
        "slowest": [
            {
                "request_id": one.request_id,
                "latency_ns": one.latency_ns,
                **{f"{name}_ns": ns for name, ns in one.phases_ns.items()},
            }
            for one in f.slowest
        ],
    }


def _rows(frame: Any, fields: tuple[str, ...]) -> list[dict[str, Any]]:
    columns = [[int(v) if frame[f].dtype.kind in "iu" else str(v) for v in frame[f]] for f in fields]
    return [dict(zip(fields, row)) for row in zip(*columns)]
