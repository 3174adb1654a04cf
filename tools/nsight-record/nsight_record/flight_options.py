# SPDX-License-Identifier: GPL-2.0-only
"""What the flight recorder keeps, what triggers it, and which resources it may use."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import Usage
from .progress import human_bytes, printable
from .snapshots import Snapshots

MIB = 1 << 20


#: Default memory of the rings: maximum for each core, and share of the free memory.
_MOST_RING_KB, _MEMORY_SHARE = 64 << 10, 32


_LEAST_RING_KB = 64


#: perf's Intel PT buffers hold little more than a tenth of a second, so a window ends soon there.
AFTER_S = {"tracepoints": 0.2, "intel-pt": 0.02}


_TRIGGER = re.compile(
    r"latency=(?:(?P<value>\d+(?:\.\d+)?)(?P<unit>us|ms|s)|p(?P<percentile>\d+(?:\.\d+)?))"
    r"|(?P<rate>drops|retransmissions)=(?P<count>\d+)/s"
)


_US = {"us": 1, "ms": 1000, "s": 1_000_000}


@dataclass
class Options:
    """What is kept, what triggers a window, and how many windows there may be.

    ``before`` and ``after`` are seconds, ``memory`` is bytes of all rings (None: chosen automatically),
    ``most_disk`` is bytes of all windows, ``most_cpu`` is per cent of all cores (0: no limit).
    """

    before: float = 1.0
    after: float = AFTER_S["tracepoints"]
    latency_us: int = 0
    percentile: float = 0.0
    drops: int = 0
    retransmissions: int = 0
    per_hour: int = 20
    most_disk: int = 2048 * MIB
    most_cpu: float = 10.0
    memory: int | None = None

    def add_trigger(self, text: str) -> None:
        """``latency=2ms``, ``latency=p99.9``, ``drops=100/s`` or ``retransmissions=10/s``. Raises Usage."""
        m = _TRIGGER.fullmatch(text)
        if not m:
            raise Usage(
                f"--trigger {printable(text)}: not a trigger",
                "use latency=2ms, latency=p99.9, drops=100/s or retransmissions=10/s",
            )
        kind = m["rate"] or ("percentile" if m["percentile"] else "latency_us")
        if getattr(self, kind):
            raise Usage(f"--trigger {text}: there is another limit of this kind", "give one of them")
        if m["value"]:
            self.latency_us = int(float(m["value"]) * _US[m["unit"]])
            if not 0 < self.latency_us <= 1_000_000_000:
                raise Usage(f"--trigger {text}: must be from 1us to 1000s")
        elif m["percentile"]:
            self.percentile = float(m["percentile"])
            if not 50 <= self.percentile < 100:
                raise Usage(f"--trigger {text}: must be at least p50 and below p100")
        elif not int(m["count"]):
            raise Usage(f"--trigger {text}: must be at least 1/s")
        else:
            setattr(self, kind, int(m["count"]))

    def ring_kb(self, n_cpus: int, mem_available: int) -> int:
        """KiB of each core's ring, a power of two. Raises Usage."""
        total = self.memory
        if total is None:
            total = min(_MOST_RING_KB * 1024 * n_cpus, mem_available // _MEMORY_SHARE)
        size = _LEAST_RING_KB
        if self.memory is not None and size * 1024 * n_cpus > total:
            raise Usage(
                f"--memory {human_bytes(total)}: {n_cpus} cores need {human_bytes(size * 1024 * n_cpus)} at least"
            )
        while size * 2 * 1024 * n_cpus <= total and size < (1 << 20):
            size *= 2
        return size

    def argv(self, used: int = 0, snapshots: Snapshots | None = None) -> list[str]:
        """Options in nsight-collect's form; ``used``: bytes of windows that exist already."""
        found = [
            "--flight",
            "--before-ms",
            f"{self.before * 1000:.0f}",
            "--after-ms",
            f"{self.after * 1000:.0f}",
        ]
        for option, value in (
            ("--latency-us", self.latency_us),
            ("--percentile", self.percentile),
            ("--drops", self.drops),
            ("--retransmissions", self.retransmissions),
            ("--most-cpu", self.most_cpu),
        ):
            found += [option, str(value)] if value else []
        if snapshots:
            found += ["--snapshot-pidfd", str(snapshots.child.pidfd), "--snapshot-mb", str(snapshots.most_mb)]
        return [
            *found,
            "--per-hour",
            str(self.per_hour),
            "--most-mb",
            str(max(0, self.most_disk - used) // MIB),
        ]
