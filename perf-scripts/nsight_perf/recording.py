# SPDX-License-Identifier: GPL-2.0-only
"""What the raw records of a perf.data hold, whether perf can decode Intel PT from it, and what limits a diagnosis."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from . import clocks
from . import edge_stream as stream
from .problem import Unusable

MISC_SWITCH_OUT = 1 << 13  # and 1 << 14: preempted

PT_CPUS = ("x86_64", "i386", "i686")
RECORD = "record it with: perf record -e intel_pt// -a"
UNCUT = "end perf record with SIGINT, and copy all of the file"


class Switches:
    """Context switches, as columns of EVENTS: there are far more of them than of all other records."""

    def __init__(self) -> None:
        self.columns = [array(t) for t in stream.EVENT_TYPES]

    def __len__(self) -> int:
        return len(self.columns[0])

    def add(self, times: Iterable, cpus: Iterable, pids: Iterable, tids: Iterable, misc: Sequence) -> None:
        """Add switches; ``misc`` are the flags of their records."""
        codes = [stream.SWITCH_OUT if m & MISC_SWITCH_OUT else stream.SWITCH_IN for m in misc]
        preempted = [m >> 14 & m >> 13 & 1 for m in misc]
        for column, values in zip(self.columns, (times, cpus, pids, tids, codes, preempted)):
            column.extend(values)


@dataclass
class Recording:
    """Content of the raw records of a perf.data."""

    path: str
    events: list[stream.Event] = field(default_factory=list)
    switches: Switches = field(default_factory=Switches)
    names: list[stream.Name] = field(default_factory=list)
    lost_totals: list[stream.Event] = field(default_factory=list)  # LOST_SAMPLES
    last_aux: dict[int, list[int]] = field(default_factory=dict)  # core: times of its last two AUX records
    clocks: list[clocks.Clock] = field(default_factory=list)
    arch: str = ""
    auxtrace: str = ""
    trace_bytes: int = 0
    snapshot: bool = False
    compressed: bool = False
    timed: bool = True  # TSC and perf's clock are related
    guest: bool = False  # a virtual machine was traced
    truncated_at: int | None = None

    def check(self) -> None:
        """Raise Unusable unless perf can decode Intel PT from it."""
        if self.arch and self.arch not in PT_CPUS:
            raise Unusable(
                f"{self.path}: recorded on {self.arch}: Intel PT is there on x86 only",
                "record on an x86 machine with an Intel CPU; elsewhere use nsight-record, mode tracepoints",
            )
        if self.auxtrace != "Intel PT":  # perf -z compresses neither its description nor its data
            has = f"its trace is {self.auxtrace}" if self.auxtrace else "it has no hardware trace"
            raise Unusable(f"{self.path}: no Intel PT in it ({has})", RECORD)
        if self.trace_bytes == 0:
            if self.truncated_at is not None:
                raise Unusable(f"{self.path}: it is cut before the first data of Intel PT", UNCUT)
            raise Unusable(f"{self.path}: Intel PT was set up, but nothing was recorded", "let it run longer")

    def remarks(self) -> list[tuple[str, str]]:
        """What limits a diagnosis, each with its fix."""
        said = []
        if self.truncated_at is not None:
            said.append(
                (
                    f"the file is cut at byte {self.truncated_at:,}: perf was killed, or the copy is not complete",
                    UNCUT,
                )
            )
        if not self.timed:
            said.append(
                (
                    "it does not tell how TSC and perf's clock relate: no time is known, all are what perf makes of them",
                    "the kernel's clocksource must be the TSC, and perf record must not be given -k",
                )
            )
        if self.compressed:
            said.append(
                (
                    "records are compressed: full trace buffers and lost records cannot be read",
                    "record without -z",
                )
            )
        if self.guest:
            said.append(
                (
                    "a virtual machine was traced: its code is not decoded, and counts as code that is not there",
                    "record in the guest, or exclude it: intel_pt//H",
                )
            )
        if self.snapshot:
            said.append(
                (
                    "recorded in snapshot mode: each snapshot is an interval of its own, what lies between is gone",
                    "record without -S to see everything",
                )
            )
        return said
