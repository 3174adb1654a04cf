# SPDX-License-Identifier: GPL-2.0-only
"""Handmade lines in the format of nsight-histograms."""

from __future__ import annotations

import json
from typing import Any

STAGES = ("ip-start", "tcp-socket-read", "head-of-line")


def header(group_by: str = "", **changed: Any) -> str:
    stages = [{"name": s, "from": "a", "to": "b", "missing": "", "measured": True} for s in STAGES]
    absent = {"name": "udp-start", "from": "a", "to": "b", "missing": "function probes", "measured": False}
    row = {"format": 1, "n_buckets": 40, "group_by": group_by, "stages": [*stages, absent]}
    return json.dumps(row | changed) + "\n"


def histogram(stage: str, group: int, sum_ns: int, **n: int) -> dict[str, Any]:
    """``b10=3``: three latencies in bucket 10."""
    return {"stage": stage, "group": group, "sum_ns": sum_ns, "n": {b[1:]: k for b, k in n.items()}}


def snapshot(second: int, *histograms: dict[str, Any], **changed: Any) -> str:
    row = {"monotonic_ns": second * 10**9, "realtime_ns": (1_700_000_000 + second) * 10**9, "last": False, "groups": {},
           "histograms": histograms, "counts": {}, "missed": 0}  # fmt: skip
    return json.dumps(row | changed) + "\n"
