# SPDX-License-Identifier: GPL-2.0-only
"""Settings that differ between two captures' machines, and which changed causes they affect."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..manifest import Manifest
from ..names import printable

_POWER = frozenset(["CPU frequency and power"])
_IDLE = frozenset(["C-state exit latency", "CPU idle", "Wake-up"])
_MEMORY = frozenset(
    ["NUMA balancing and page migration", "Huge pages", "Memory compaction", "Page faults", "Paging"]
)
_CORES = frozenset(["Load balancing", "Scheduler", "Timer interrupt", "RCU", "OS threads", "Workqueues"])
#: Settings of ``manifest.host``, and the categories that each affects.
SETTINGS: Mapping[str, frozenset[str]] = {
    "kernel": frozenset(),
    "cpu_model": frozenset(),
    "cpus_online": _CORES,
    "clocksource": frozenset(["Clock reading"]),
    "governor": _POWER,
    "turbo": _POWER,
    "idle_driver": _IDLE,
    "idle_states": _IDLE,
    "idle_limit_us": _IDLE,
    "smt": frozenset(),
    "isolated": _CORES,
    "nohz_full": _CORES,
    "affinity": _CORES,
    "numa_nodes": _MEMORY,
    "numa_balancing": _MEMORY,
    "huge_pages": _MEMORY,
    "resctrl": frozenset(["Memory copies", "Application processing"]),
    "pmu": frozenset(),
}
_LONGEST = 60


def differences(
    before: Manifest, after: Manifest, causes: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """``setting``, ``before``, ``after`` (as text, '' unknown) of each differing setting, and ``causes`` that went or came and that it affects.

    ``causes``: those of ``compare --json``. A setting that one of the captures does not contain, as older ones do not, is left out.
    """
    changed = [c for c in causes if c["change"] in ("went", "came")]
    found = []
    sides = [m.mapping("host") for m in (before, after)]
    for name, categories in SETTINGS.items():
        if any(name not in side for side in sides):
            continue
        told = [_text(side[name]) for side in sides]
        if told[0] != told[1]:
            of = [c["cause"] for c in changed if c["cause"].rpartition(" (")[0] in categories]
            found.append({"setting": name, "before": told[0], "after": told[1], "causes": of})
    return found


def sentences(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each."""
    lines = []
    for of in found:
        ends = [printable(_cut(of[side]), _LONGEST + 3) or "unknown" for side in ("before", "after")]
        bears = (
            f"; it bears on {', '.join(printable(cause) for cause in of['causes'])}" if of["causes"] else ""
        )
        lines.append(f"{of['setting']}: {ends[0]} before, {ends[1]} after{bears}.")
    return lines


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, sort_keys=True)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
