# SPDX-License-Identifier: GPL-2.0-only
"""The stages of the pipeline: what each reads, what it makes, and the call that makes it.

This module only wires. A stage's modules are imported when the stage runs, so that a report
from stored tables starts fast.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from . import files, losses, schema
from .errors import BadInput
from .manifest import Manifest
from .recorder import Recorder
from .store import Written

if TYPE_CHECKING:
    from .anomalies import Host, Noise, Recorded
    from .anomalies.options import Options as AnalysisOptions
    from .calls.stored import Stored
    from .clocks import ClockMap
    from .lifetimes.options import PhcToMonotonic
    from .messages import Messages
    from .timeline.intervals import Int


#: Folder of the files that the BPF recorder writes: a capture that has it needs no events.tsv and no perf.data.
RECORDS = "records"

#: Value of ``decode``: Intel PT around the messages of target and reference, and no other.
CHOSEN = "chosen"


@dataclass(frozen=True)
class Options:
    """What a user may choose. Each stage names the ones that change its result."""

    target: str = "p99-100"
    reference: str = "p25-75"
    app: str | None = None
    port: int | None = None
    direction: str = "rx"
    framing: str = "none"
    categories: str | None = None
    symfs: str | None = None
    decode: str = "all"
    against: str | None = None
    nested: int = 80


@dataclass(frozen=True)
class Context:
    """What a running stage sees: the raw files, the manifest, the options, stored tables.

    ``table``: a whole table by name; ``stored``, and ``messages``: the same, of which only what is asked for is read.
    ``scratch``: an empty folder on the disk of the tables, for the running stage;
    ``other``: the same of the capture that is compared with.
    """

    capture: Path
    manifest: Manifest
    options: Options
    table: Callable[[str], pa.Table]
    stored: Callable[[str], Stored]
    messages: Callable[[], Messages]
    scratch: Path | None = None
    other: Context | None = None

    def raw(self, name: str) -> Path:
        """The path of a raw file. Raises BadInput when it is absent, empty or not readable."""
        path = self.capture / name
        try:
            if stat.S_ISDIR(path.lstat().st_mode):
                return path  # perf.data is one when recorded with --kcore
            with files.opened(path) as file:
                size = os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            raise BadInput(
                f"{path}: missing from the capture", "copy the whole capture directory, or record again"
            ) from None
        except PermissionError:
            raise BadInput(
                f"{path}: not readable by this user", f"it is private: sudo chown -R $USER {self.capture}"
            ) from None
        except OSError as error:
            raise BadInput(
                f"{path}: {error.strerror}", "copy the whole capture directory, or record again"
            ) from None
        if not size:
            raise BadInput(
                f"{path}: empty", "see the .log file of the same name in the capture; record again"
            )
        return path


Result = tuple[dict[str, pa.Table | Written], pa.Table]


@dataclass(frozen=True)
class Stage:
    """One stage: ``run`` turns the tables of ``needs`` and the files ``raw`` into ``tables``.

    ``by_message``: with ``decode`` chosen, which messages are chosen changes its result too.
    """

    name: str
    run: Callable[[Context], Result]
    needs: tuple[str, ...] = ()
    raw: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    by_message: bool = False

    def inputs(self, options: Options) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Stages whose tables it reads with these options, and names of the options it heeds."""
        if self.by_message and options.decode == CHOSEN:
            return (*self.needs, "messages"), (*self.options, *_SLICES)
        return self.needs, self.options


def _clocks(ctx: Context) -> Result:
    from . import clocks
    from .capture import clock_readings

    readings = clock_readings.load(ctx.raw("clock.tsv"))
    table, lost = clocks.build(readings)
    return {"clock_map": table}, lost


def _events(ctx: Context) -> Result:
    from .capture import message_events, raw_records
    from .clocks import ClockMap

    assert ctx.scratch is not None  # of a stage that runs
    if _has_records(ctx):
        table, lost = raw_records.messages(ctx.raw(RECORDS), ctx.scratch)
        if table.n_rows() == 0:
            raise _no_events(ctx.capture / RECORDS, lost)
        return {"events": table}, lost
    clock = ClockMap(ctx.table("clock_map"))
    n_asked = n_known = 0

    def to_monotonic(ns: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        nonlocal n_asked, n_known
        converted, _error, good = clock.convert_masked(ns, "boottime", "monotonic")
        n_asked += len(good)
        n_known += int(np.count_nonzero(good))
        return converted, good

    path = ctx.raw("events.tsv")
    table, lost = message_events.load(path, ctx.scratch, to_monotonic)
    if n_asked and not n_known:
        raise BadInput(
            f"{ctx.capture}: clock.tsv covers none of the times in events.tsv",
            "clock.tsv is cut, or the files are from different recordings or boots: copy one capture directory "
            "whole, or record again",
        )
    if table.n_rows() == 0:
        raise _no_events(path, lost)
    return {"events": table}, lost


def _has_records(ctx: Context) -> bool:
    """Was it recorded by the BPF recorder?"""
    return (ctx.capture / RECORDS).is_dir()


def _activity_of_records(ctx: Context) -> bool:
    """Do records tell what cores did? Beside Intel PT they tell of messages only."""
    return _has_records(ctx) and ctx.manifest.grade != "pt"


def _no_events(path: Path, lost: pa.Table) -> BadInput:
    """Why there is nothing to analyse: events that were rejected, or none at all."""
    # What the probes themselves counted says nothing about why no line came.
    rejected = [
        row
        for row in lost.to_pylist()
        if row["severity"] != "info" and not row["cause"].startswith("probe count")
    ]
    if rejected:
        worst = max(rejected, key=lambda row: row["count"])
        return BadInput(
            f"{path}: no usable message event: {worst['cause']}: {worst['count']}", worst["remedy"]
        )
    return BadInput(
        f"{path}: no message was recorded",
        "was there traffic during the recording? check --port, --pid and the other filters",
    )


def _contexts(ctx: Context) -> Result:
    from . import calls
    from .calls import functions
    from .capture import perf_data, raw_records
    from .clocks import ClockMap

    clock = ClockMap(ctx.table("clock_map"))

    def to_monotonic(
        ns: npt.NDArray[np.int64], domain: str
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        converted, _error, good = clock.convert_masked(ns, domain, "monotonic")
        return converted, good

    if _activity_of_records(ctx):
        decoded, lost_decoding = raw_records.activity(ctx.raw(RECORDS))
    else:
        decoded, lost_decoding = perf_data.load(ctx.raw("perf.data"), convert=to_monotonic)
    *tables, lost = calls.build(decoded, ctx.manifest.syscall_names())
    names = ("calls", "contexts", "thread_states")
    made: dict[str, pa.Table | Written] = dict(zip(names, tables, strict=True))
    made["trace"] = schema.empty("trace")
    lost_tracing = losses.merge([])
    if ctx.manifest.grade == "pt":
        ledger = losses.Ledger("calls")
        choose = (
            partial(_chosen, ctx, clock, made["thread_states"], ledger)
            if ctx.options.decode == CHOSEN
            else None
        )
        assert ctx.scratch is not None  # of a stage that runs
        found, lost_tracing = functions.load(
            ctx.raw("perf.data"), ctx.options.symfs, to_monotonic, ctx.scratch, choose
        )
        lost_tracing = losses.merge([lost_tracing, ledger.table()])
        made |= found
    return made, losses.merge([lost_decoding, lost, lost_tracing])


def _chosen(
    ctx: Context, clock: ClockMap, thread_states: pa.Table, ledger: losses.Ledger, traced: tuple[int, int]
) -> npt.NDArray[np.int64]:
    """Windows around the messages that are compared, or that another capture is compared with, in the perf clock."""
    from .anomalies.population import looked_at
    from .frames import to_pandas
    from .timeline.windows import on_cores

    ends, _error, _good = clock.convert_masked(np.array(traced), "perf", "monotonic")
    seen = int(ends[0]), int(ends[1])
    messages = ctx.messages()
    chosen = messages.rows(looked_at(messages, analysis_options(ctx.options), seen))
    stretches = on_cores(chosen, to_pandas(thread_states))
    flat, _error, good = clock.convert_masked(stretches[:, :2].reshape(-1), "monotonic", "perf")
    known = good.reshape(-1, 2).all(axis=1)
    ledger.add(
        "stretch of a compared message outside the clock mapping",
        int((~known).sum()),
        "warning",
        "no reading covers its time, so calls of it were not decoded",
        "record clock readings for as long as perf records",
    )
    return np.column_stack([flat.reshape(-1, 2), stretches[:, 2]])[known]


def _messages(ctx: Context) -> Result:
    from . import lifetimes
    from .clocks import ClockMap
    from .lifetimes.options import Options as LifetimeOptions

    framing = None if ctx.options.framing == "none" else ctx.options.framing
    wall, uptime = ctx.manifest.ns("start", "realtime_ns"), ctx.manifest.ns("start", "monotonic_ns")
    options = LifetimeOptions(
        phc_to_monotonic=phc_converter(ClockMap(ctx.table("clock_map")), ctx.manifest),
        realtime_offset_ns=wall - uptime if wall is not None and uptime is not None else None,
        framing=framing,
        payload=_payload(ctx) if framing else None,
    )
    assert ctx.scratch is not None  # of a stage that runs
    table, lost = lifetimes.build(ctx.stored("events"), ctx.scratch, options)
    return {"messages": table}, lost


def _payload(ctx: Context) -> Path:
    if not (ctx.capture / "payload.pcap").exists():
        raise BadInput(
            f"{ctx.capture}: no payload.pcap, so messages cannot be framed",
            "record with --payload, or leave --framing out",
        )
    return ctx.raw("payload.pcap")


def _anomalies(ctx: Context) -> Result:
    from . import anomalies
    from .anomalies.options import REFERENCES_WITH_CALLS
    from .consistency import check_together

    # Here and not where the files are read: this is the first stage that sees them all.
    of_records = f"messages of {RECORDS}/", f"activity of {RECORDS}/"
    names = (
        of_records[0] if _has_records(ctx) else "events.tsv",
        of_records[1] if _activity_of_records(ctx) else "perf.data",
    )
    check_together(ctx.manifest, ctx.stored("events").span(), ctx.stored("contexts").span(), names)
    options = analysis_options(ctx.options)
    if ctx.manifest.grade == "pt":
        options = replace(options, max_reference=min(options.max_reference, REFERENCES_WITH_CALLS))
    granularity = max(_granularity(of) for of in (ctx, ctx.other) if of)
    here = _recorded(ctx)._replace(noise=_noise(ctx))
    against = _recorded(ctx.other)._replace(noise=_noise(ctx.other)) if ctx.other else None
    compared, found, lost = anomalies.find(here, replace(options, granularity_ns=granularity), against)
    return {"compared": compared, "found_anomalies": found}, lost


def _recorded(ctx: Context) -> Recorded:
    from .anomalies import Recorded

    calls, contexts, states = (ctx.stored(name) for name in ("calls", "contexts", "thread_states"))
    recorder = Recorder.of(ctx.manifest)
    return Recorded(
        ctx.messages(), calls, contexts, states, _seen(ctx), _host(ctx.manifest), recorder=recorder
    )


def _host(manifest: Manifest) -> Host:
    """What the recorded machine's settings can delay."""
    from .anomalies import Host

    settings = [nic["coalescing"] for nic in manifest.list("nics") if isinstance(nic.get("coalescing"), dict)]
    waits = [_count(s.get("rx_coalesce_usecs")) * 1000 for s in settings]
    states = manifest.mapping("host").get("idle_states")
    exits = [
        _count(state.get("latency_us")) * 1000
        for state in (states if isinstance(states, list) else [])
        if isinstance(state, dict) and not state.get("disabled")
    ]
    adapts = any(s.get("use_adaptive_rx_coalesce") for s in settings)
    groups = [row["pids"] for row in manifest.list("throttled") if isinstance(row.get("pids"), list)]
    throttled = {pid for pids in groups for pid in pids if isinstance(pid, int) and 0 < pid < 1 << 31}
    return Host(-1 if adapts else max(waits, default=0), tuple(exits), tuple(sorted(throttled)))


def _count(value: object) -> int:
    """A number of a manifest that can be one of microseconds, else 0."""
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else 0


#: Below this, times of tracepoints are noise of the tracing itself.
TRACEPOINT_NOISE_NS = 1_000


def _granularity(ctx: Context) -> int:
    """What deviation cannot be told from none whatever the clocks, in ns: that of the packets, or of tracepoints."""
    return max((row["p99_step_ns"] for row in ctx.table("trace").to_pylist()), default=TRACEPOINT_NOISE_NS)


def _noise(ctx: Context) -> Noise:
    """What the clocks of a call and of a message are known to: twice the worst bound, at its begin or end.

    Where the clock map has no time of a message's, the worst of all.
    """
    from .clocks import ClockMap

    bounds = ctx.table("clock_map")
    clock = ClockMap(bounds)
    used = {"perf", "boottime"}.intersection(clock.domains)
    counts = pc.is_in(bounds["domain"].cast(pa.string()), pa.array(["monotonic", *sorted(used)]))
    worst_of_all = int(bounds.filter(counts)["error_ns"].to_numpy().max(initial=0))

    def noise(first: Int, last: Int) -> Int:
        worst = np.zeros(len(first), np.int64)
        for times in (first, np.maximum(last, first)):
            tsc, error, good = clock.convert_masked(times, "monotonic", "tsc")
            worst = np.maximum(worst, np.where(good, error, worst_of_all))
            for domain in used:
                _, error, known = clock.convert_masked(tsc, "tsc", domain)
                worst = np.maximum(worst, np.where(good & known, error, worst_of_all))
        return 2 * worst

    return noise


def _seen(ctx: Context) -> tuple[int, int] | None:
    """From when to when something tells what cores did."""
    for row in ctx.table("trace").to_pylist():
        return row["begin_ns"], row["end_ns"]
    return ctx.stored("contexts").span()


def _own(compared: pa.Table, options: Options) -> npt.NDArray[np.int64]:
    """Numbers of the compared messages that are of this capture: references may be of another."""
    if options.against is not None:
        compared = compared.filter(pc.equal(compared["role"].cast(pa.string()), "target"))
    return compared["message_id"].to_numpy()


def _attribution(ctx: Context) -> Result:
    from . import attribution
    from .names import thread_name

    compared = ctx.table("compared")
    ours = ctx.messages().rows(_own(compared, ctx.options), ["comm"])
    programs = frozenset(map(thread_name, ours["comm"].unique()))
    kept, coverage, causes, lost = attribution.attribute(
        ctx.table("found_anomalies"), compared, analysis_options(ctx.options), programs
    )
    return {"anomalies": kept, "coverage": coverage, "causes": causes}, lost


def _queuing(ctx: Context) -> Result:
    from . import queuing
    from .anomalies.population import looked_at

    compared, anomalies = ctx.table("compared"), ctx.table("anomalies")
    here, there = _recorded(ctx), _recorded(ctx.other) if ctx.other else None
    options, seen = analysis_options(ctx.options), _seen(ctx)
    only = looked_at(ctx.messages(), options, seen) if ctx.options.decode == CHOSEN else None
    # Neither needs the other, and both wait for what they read.
    with ThreadPoolExecutor(2) as pool:
        found = pool.submit(queuing.find, here, compared, there)
        blocked = pool.submit(queuing.break_down, here, anomalies, options, seen, only)
        table, lost = found.result()
        return {"queuing": table, "hol": blocked.result()}, lost


def _cores(ctx: Context) -> Result:
    from . import cores

    other = ctx.other or ctx
    table = cores.summarise(
        ctx.table("compared"),
        cores.Recorded(ctx.messages(), ctx.stored("contexts"), Recorder.of(ctx.manifest)),
        cores.Recorded(other.messages(), other.stored("contexts"), Recorder.of(other.manifest)),
        analysis_options(ctx.options),
    )
    return {"cores": table}, losses.merge([])


def analysis_options(options: Options) -> AnalysisOptions:
    """The options in the form that anomalies and attribution take."""
    from .anomalies.options import FEW_REFERENCES, MAX_REFERENCE
    from .anomalies.options import Options as AnalysisOptions
    from .anomalies.slices import Slice

    return AnalysisOptions(
        target=Slice.parse(options.target),
        reference=Slice.parse(options.reference),
        app=options.app,
        port=options.port,
        direction=options.direction,
        categories=options.categories,
        explained=options.nested / 100,
        max_reference=FEW_REFERENCES if options.decode == CHOSEN else MAX_REFERENCE,
    )


def phc_converter(clock: ClockMap, manifest: Manifest) -> PhcToMonotonic | None:
    """Converts hardware stamps by the interface that took them; None when no NIC clock was read.

    An interface whose clock was not read gets the error -1: its stamps cannot be used.
    """
    domains = [d for d in clock.domains if d.startswith("phc:")]
    if not domains:
        return None
    by_interface = {
        nic["ifindex"]: f"phc:ptp{nic['phc']}"
        for nic in manifest.list("nics")
        if isinstance(nic.get("ifindex"), int) and isinstance(nic.get("phc"), int)
    }

    def convert(
        stamps: npt.NDArray[np.int64], interfaces: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        ns, error = np.zeros(len(stamps), np.int64), np.full(len(stamps), -1, np.int64)
        for interface in np.unique(interfaces):
            # With a single NIC clock there is nothing to confuse.
            domain = by_interface.get(int(interface), domains[0] if len(domains) == 1 else None)
            if domain in domains:
                rows = np.flatnonzero(interfaces == interface)
                ns[rows], bound, good = clock.convert_masked(stamps[rows], domain, "monotonic")
                error[rows] = np.where(good, bound, -1)
        return ns, error

    return convert


_SLICES = ("target", "reference", "app", "port", "direction", "decode")
_ANALYSIS = (*_SLICES, "against", "nested")

STAGES = (
    Stage(
        "clocks",
        _clocks,
        raw=("clock.tsv",),
        tables=("clock_map",),
        code=("capture/clock_readings.py", "clocks"),
    ),
    Stage(
        "events",
        _events,
        needs=("clocks",),
        raw=("events.tsv", RECORDS),
        tables=("events",),
        code=(
            "capture/message_events.py",
            "capture/event_fields.py",
            "capture/event_lines.py",
            "capture/event_order.py",
            "capture/raw_records.py",
            "capture/native.py",
            "../native/nsight-rawdata",
            "runs.py",
            "clocks",
        ),
    ),
    Stage(
        "messages",
        _messages,
        needs=("events", "clocks"),
        raw=("payload.pcap",),
        options=("framing",),
        tables=("messages",),
        code=("lifetimes", "runs.py", "../native/nsight-framing"),
    ),
    Stage(
        "contexts",
        _contexts,
        needs=("clocks",),
        raw=("manifest.json", "perf.data", RECORDS),
        options=("symfs",),
        tables=("calls", "contexts", "thread_states", "trace"),
        code=(
            "capture/perf_data.py",
            "capture/raw_records.py",
            "capture/native.py",
            "calls",
            "../native/nsight-perfdata",
            "../native/nsight-rawdata",
            "../native/nsight-contexts",
            "anomalies/population.py",
            "timeline",
            "messages.py",
        ),
        by_message=True,
    ),
    Stage(
        "anomalies",
        _anomalies,
        needs=("messages", "contexts", "events", "clocks"),
        options=_ANALYSIS,
        tables=("compared", "found_anomalies"),
        code=("anomalies", "timeline", "messages.py", "names.py", "recorder.py"),
    ),
    Stage(
        "attribution",
        _attribution,
        needs=("messages", "anomalies"),
        options=(*_ANALYSIS, "categories"),
        tables=("anomalies", "coverage", "causes"),
        code=("attribution", "anomalies/options.py", "names.py"),
    ),
    Stage(
        "queuing",
        _queuing,
        needs=("messages", "contexts", "anomalies", "attribution"),
        options=(*_ANALYSIS, "categories"),
        tables=("queuing", "hol"),
        code=("queuing", "anomalies", "timeline", "attribution", "messages.py", "names.py"),
    ),
    Stage(
        "cores",
        _cores,
        needs=("messages", "contexts", "anomalies"),
        options=(*_ANALYSIS, "categories"),
        tables=("cores",),
        code=(
            "cores.py",
            "attribution",
            "anomalies/options.py",
            "anomalies/population.py",
            "timeline",
            "messages.py",
            "names.py",
            "recorder.py",
        ),
    ),
)

BY_NAME = {stage.name: stage for stage in STAGES}
#: Stages of a diagnosis; the others make tables of what was recorded, whichever messages are the target.
DIAGNOSIS = ("anomalies", "attribution", "queuing", "cores")
MADE_BY = {table: stage.name for stage in STAGES for table in stage.tables}

# Tables whose name is not the name of their schema.
SPECS = {"found_anomalies": "anomalies"}
