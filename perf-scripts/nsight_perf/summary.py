# SPDX-License-Identifier: GPL-2.0-only
"""What ran on each core, from its edges: counts, times and functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import compress

from . import edge_stream as stream

NOT_TRACED = -1
_IS_CALL = [kind in stream.CALLS for kind in range(256)]

_BUFFER_FULL = "larger buffers (-m,64M), a shorter recording, or no other load on the core of perf record"
# Events that mean that something is missing: their text, and the fix. By code, and for decode errors by
# perf's number of the error (INTEL_PT_ERR_* of tools/perf/util/intel-pt-decoder).
LOSSES = {
    stream.OVERFLOW: (
        "overflow(s) inside the processor: it made packets faster than memory took them",
        "trace less: a filter, cyc_thresh=N, or noretcomp=0",
    ),
    stream.TRUNCATED: ("time(s) that the trace buffer of a core was full", _BUFFER_FULL),
    stream.LOST: ("record(s) lost beside the trace", "larger buffers for them (-m 4M,64M)"),
    stream.PARTIAL: ("buffer(s) with overwritten or partial data", "record without -S and --aux-sample"),
    stream.THROTTLED: (
        "time(s) that the kernel throttled an event",
        "raise kernel.perf_event_max_sample_rate",
    ),
}
_ERRORS = {
    3: ("damaged packet(s)", "copy or record the file again"),
    5: (
        "interval(s) not decoded: their code is not there",
        "give perf the programs of the recorded machine (--symfs, perf archive); record with --kcore",
    ),
    8: ("interval(s) of trace lost, as a buffer was full", _BUFFER_FULL),
}
_THROTTLED = ("time(s) that the kernel throttled an event", "raise kernel.perf_event_max_sample_rate")
_OTHER_ERROR = (
    "interval(s) not decoded: trace and code do not agree",
    "give perf the programs as they were (--symfs, perf archive), record with --kcore; or the file is damaged",
)


class _Core:
    """One core, up to its last edge."""

    def __init__(self) -> None:
        self.first = self.last = 0
        self.owner = NOT_TRACED  # symbol that runs after the last edge
        self.tid = -1
        self.since = 0  # since when that thread runs
        self.threads: defaultdict[int, int] = defaultdict(int)
        self.not_traced = 0
        self.n_edges = 0


class Summary:
    """Adds up blocks of edges, which may be of several cores, each in time order."""

    def __init__(self) -> None:
        self.cores: dict[int, _Core] = {}
        self.self_time: defaultdict[int, int] = defaultdict(int)
        self.n_calls: Counter[int] = Counter()
        self.kinds: Counter[tuple[int, int]] = Counter()

    def edges(self, columns: Sequence[Sequence[int]]) -> None:
        """Add a block of edges, columns as in the stream."""
        times, _, _, _, tids, cpus, _, to_syms, kinds = columns
        self.n_calls.update(compress(to_syms, map(_IS_CALL.__getitem__, kinds)))
        self.kinds.update(zip(cpus, kinds))
        self_time = self.self_time
        cpu, core = None, _Core()
        last = owner = tid = 0
        for now, now_tid, now_cpu, to_sym, kind in zip(times, tids, cpus, to_syms, kinds):
            if now_cpu != cpu:
                core.last, core.owner = last, owner
                cpu, core = now_cpu, self._core(now_cpu, now, now_tid)
                last, owner, tid = core.last, core.owner, core.tid
            if now_tid != tid:
                core.threads[tid] += last - core.since
                core.since, core.tid, tid = last, now_tid, now_tid
            if kind == stream.BEGIN:
                # Without an end before it, the time in between was lost.
                owner = NOT_TRACED
            if owner == NOT_TRACED:
                core.not_traced += now - last
            else:
                self_time[owner] += now - last
            last = now
            owner = NOT_TRACED if kind == stream.END else to_sym
        core.last, core.owner = last, owner

    def _core(self, cpu: int, now: int, tid: int) -> _Core:
        core = self.cores.get(cpu)
        if core is None:
            core = self.cores[cpu] = _Core()
            core.first = core.last = core.since = now
            core.tid = tid
        return core

    def count(self, cpu: int, kinds: frozenset[int]) -> int:
        """Number of edges of these kinds on a core."""
        return sum(self.kinds[cpu, kind] for kind in kinds)

    def thread_times(self, cpu: int) -> dict[int, int]:
        """Time of each thread on a core."""
        core = self.cores[cpu]
        times = dict(core.threads)
        times[core.tid] = times.get(core.tid, 0) + core.last - core.since
        return times


def span(ns: int) -> str:
    """A duration for people."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= size:
            return f"{ns / size:.3f} {unit}"
    return f"{ns} ns"


def shown(name: str) -> str:
    """A name from the recorded machine, without characters that a terminal would interpret."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in name)


def when(ns: int) -> str:
    """A time as perf script prints it."""
    return f"{ns // 10**9}.{ns % 10**9:09d}"


def losses(events: Sequence[stream.Event], remarks: Sequence[tuple[str, str]]) -> list[str]:
    """Lines that say what is missing and the fix, most important first; empty if nothing is missing."""
    groups: defaultdict[tuple[str, str], list[stream.Event]] = defaultdict(list)
    for event in sorted(events):
        if event.code == stream.ERROR:
            groups[_ERRORS.get(event.value, _OTHER_ERROR)].append(event)
        elif event.code == stream.LOST and event.value == 0:
            groups[_THROTTLED].append(event)
        elif event.code in LOSSES:
            groups[LOSSES[event.code]].append(event)
    lines = []
    for what, hint in remarks:
        lines += [f"  - {what}", f"    hint: {hint}"]
    for (what, hint), found in groups.items():
        count = sum(event.value or 1 if event.code == stream.LOST else 1 for event in found)
        places = ", ".join(f"core {e.cpu} at {when(e.time)}" for e in found[:3])
        more = f" and {len(found) - 3:,} more" if len(found) > 3 else ""
        lines += [f"  - {count:,} {what}: {places}{more}", f"    hint: {hint}"]
    return lines


def report(summary: Summary, names: Sequence[tuple[str, str]], top: int) -> list[str]:
    """Lines about cores and functions."""
    lines = ["", "Cores", "  core       calls     returns      traced  idle thread  not traced  threads"]
    for cpu in sorted(summary.cores):
        core, times = summary.cores[cpu], summary.thread_times(cpu)
        length = core.last - core.first
        share = [100 * t / length if length else 0 for t in (times.get(0, 0), core.not_traced)]
        lines.append(
            f"  {cpu if cpu >= 0 else 'any':<4} {summary.count(cpu, stream.CALLS):11,}"
            f" {summary.count(cpu, stream.RETURNS):11,} {span(length):>11} {share[0]:10.1f} %"
            f" {share[1]:9.1f} % {len(times):8}"
        )
    total = sum(summary.self_time.values())
    ranked = sorted(summary.self_time.items(), key=lambda item: (-item[1], names[item[0]]))[:top]
    lines += ["", "Functions by self time", "      self time  share       calls  function"]
    for number, ns in ranked:
        name, dso = names[number]
        where = f" ({shown(dso)})" if dso else ""
        lines.append(
            f"  {span(ns):>13} {100 * ns / (total or 1):5.1f}% {summary.n_calls[number]:11,}"
            f"  {shown(name) or '[unknown]'}{where}"
        )
    return lines
