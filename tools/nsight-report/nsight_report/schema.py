# SPDX-License-Identifier: GPL-2.0-only
"""Every table of the pipeline: its columns, units, time domains and order.

Stages exchange these tables and nothing else. A stage is a function from tables to
``(table, losses)``; it may rely on what is written here and on nothing more.

Times are integer nanoseconds. Columns named ``*_ns`` hold points in time in the
``monotonic`` domain (CLOCK_MONOTONIC of the recorded host) unless their description names
another domain; ``*_latency_ns``, ``*_dur_ns``, ``dur_ns``, ``self_ns``, ``*_error_ns`` and
``*deviation_ns`` are durations. A point in time that was not measured is null, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from .errors import BadInput

SCHEMA_VERSION = 5

_CAT = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True)
class Column:
    """One column: Arrow type, meaning (with unit and time domain), whether null is allowed."""

    name: str
    type: pa.DataType
    doc: str
    nullable: bool = False


@dataclass(frozen=True)
class Table:
    """One table: what a row is, in what order rows come, and the columns."""

    name: str
    row: str
    order: str
    columns: tuple[Column, ...]

    def arrow(self) -> pa.Schema:
        """The Arrow schema, with each column's meaning as field metadata."""
        return pa.schema(
            [pa.field(c.name, c.type, nullable=c.nullable, metadata={"doc": c.doc}) for c in self.columns],
            metadata={"nsight.table": self.name, "nsight.schema": str(SCHEMA_VERSION)},
        )

    def names(self) -> list[str]:
        """Column names in order."""
        return [c.name for c in self.columns]


def _c(name: str, type_: pa.DataType, doc: str, nullable: bool = False) -> Column:
    return Column(name, type_, doc, nullable)


EVENTS = Table(
    "events",
    "one stamp taken by a message probe (bpftrace/*.bt), as recorded",
    "ts_ns",
    (
        _c(
            "kind",
            _CAT,
            "A arrival, H hand-off, R read, S send, X hand to driver, T transmit completion, O socket state",
        ),
        _c("ts_ns", pa.int64(), "when the probe fired; already converted to monotonic"),
        _c("cpu", pa.int32(), "core the probe fired on"),
        _c("pid", pa.int32(), "process (tgid) that was current; 0 is idle"),
        _c("tid", pa.int32(), "thread that was current"),
        _c("comm", _CAT, "name of the current thread"),
        _c("fd", pa.int32(), "file descriptor of the read or send call; -1 unknown"),
        _c("call_ns", pa.int64(), "R and S: when the system call was entered", True),
        _c(
            "sk",
            pa.uint64(),
            "kernel address of the socket; 0 unknown. Not an identity: addresses are reused",
        ),
        _c("netns", pa.uint32(), "inode number of the network namespace"),
        _c("proto", pa.int32(), "6 TCP, 17 UDP"),
        _c("family", pa.int32(), "2 IPv4 (also for v4-mapped IPv6), 10 IPv6"),
        _c("laddr", _CAT, "address on this side: the receiver for A H R, the sender for S X T"),
        _c("lport", pa.int32(), "port on this side"),
        _c("raddr", _CAT, "address of the peer; '' or the any-address for an unconnected UDP socket"),
        _c("rport", pa.int32(), "port of the peer; 0 for an unconnected UDP socket"),
        _c("seq", pa.int64(), "TCP, 32 bit: A X first byte; R S first byte of the range; H rcv_nxt; UDP 0"),
        _c("len", pa.int64(), "A X payload bytes; R S return value (may be negative); else 0"),
        _c("hw_stamp", pa.int64(), "hardware stamp of the skb, ns in the NIC's own clock (phc); 0 none"),
        _c("sw_stamp", pa.int64(), "skb->tstamp as found; its clock is not known yet; 0 none"),
        _c("ifindex", pa.int32(), "interface of the skb; 0 for socket events"),
        _c("flags", pa.int64(), "A X TCP flags byte; R S MSG_ flags; O new TCP state; T SCM_TSTAMP type"),
    ),
)

CLOCK_MAP = Table(
    "clock_map",
    "one stretch of TSC in which one line converts TSC to one time domain",
    "domain, tsc_start",
    (
        _c("domain", _CAT, "realtime, monotonic, boottime, tai, monotonic_raw, perf, phc:<dev>"),
        _c("tsc_start", pa.int64(), "first TSC value (inclusive) this line is valid for"),
        _c("tsc_end", pa.int64(), "end (exclusive); outside every segment a conversion is refused"),
        _c("anchor_tsc", pa.int64(), "cycle_last: TSC at which anchor_ns holds"),
        _c("anchor_ns", pa.int64(), "time in the domain at anchor_tsc, whole ns"),
        _c("anchor_frac", pa.int64(), "fraction of a ns at anchor_tsc, in units of 2**-shift ns"),
        _c("mult", pa.int64(), "ns = anchor_ns + (((tsc - anchor_tsc) * mult + anchor_frac) >> shift)"),
        _c("shift", pa.int32(), "see mult"),
        _c("error_ns", pa.int64(), "bound on |converted - true| inside the segment"),
        _c(
            "source",
            _CAT,
            "timekeeper (probe or tracepoint), vvar (polled), bracket (paired readings), phc, perf (parameters that perf recorded)",
        ),
    ),
)

MESSAGES = Table(
    "messages",
    "one application-level message (by default one read or one write), one direction",
    "first_ns",
    (
        _c("message_id", pa.int64(), "0.. in table order"),
        _c("direction", _CAT, "rx or tx, seen from the application in `pid`"),
        _c("conn_id", pa.int64(), "connection (one 5-tuple, namespace and lifetime of the socket), 0.."),
        _c("proto", pa.int32(), "6 TCP, 17 UDP"),
        _c("netns", pa.uint32(), "network namespace of the application's socket"),
        _c("laddr", _CAT, "application's address"),
        _c("lport", pa.int32(), "application's port"),
        _c("raddr", _CAT, "peer's address"),
        _c("rport", pa.int32(), "peer's port"),
        _c(
            "byte_start",
            pa.int64(),
            "TCP: first byte, offset in the connection's direction since its first seen byte; UDP: datagram number",
        ),
        _c("byte_end", pa.int64(), "TCP: end (exclusive); UDP: byte_start + 1"),
        _c("nbytes", pa.int64(), "payload bytes of the message"),
        _c("request_type", _CAT, "from framing, such as 'get' or 'GET'; null without framing", True),
        _c(
            "first_ns", pa.int64(), "start of the lifetime: rx nic_ns else arrival_ns; tx call_ns else app_ns"
        ),
        _c("last_ns", pa.int64(), "end of the lifetime: rx app_ns; tx completion_ns else driver_ns"),
        _c("latency_ns", pa.int64(), "last_ns - first_ns"),
        _c("nic_ns", pa.int64(), "rx: the packet reached the NIC (real or virtual)", True),
        _c(
            "nic_source",
            _CAT,
            "hw (NIC stamp), peer_xmit (the sending side's driver hand-off on this same host, e.g. veth or lo), none",
        ),
        _c(
            "nic_error_ns",
            pa.int64(),
            "bound on nic_ns from clock conversion; 0 when stamped in monotonic",
            True,
        ),
        _c("arrival_ns", pa.int64(), "rx: receive softirq saw the message's first byte", True),
        _c(
            "arrival_last_ns",
            pa.int64(),
            "rx: receive softirq saw its last byte; of data that came again, the copy that was handed off",
            True,
        ),
        _c("recv_cpu", pa.int32(), "rx: receive core (arrival); tx: core of the hand to the driver", True),
        _c("handoff_ns", pa.int64(), "rx: socket made readable with the whole message in it", True),
        _c("handoff_cpu", pa.int32(), "core of the hand-off", True),
        _c(
            "call_ns",
            pa.int64(),
            "rx: the read call that finished it was entered; tx: the send call was entered",
            True,
        ),
        _c("app_ns", pa.int64(), "rx: the read returned; tx: the send returned", True),
        _c("app_cpu", pa.int32(), "application core: where app_ns was taken", True),
        _c("driver_ns", pa.int64(), "tx: last byte handed to the driver", True),
        _c("completion_ns", pa.int64(), "tx: completion stamp where the NIC or driver gives one", True),
        _c("pid", pa.int32(), "process of the application; -1 unknown"),
        _c("tid", pa.int32(), "thread that read or sent; -1 unknown"),
        _c("comm", _CAT, "its name"),
        _c("fd", pa.int32(), "file descriptor; -1 unknown"),
        _c("n_arrivals", pa.int32(), "rx: skbs that carried it; tx: skbs handed to the driver"),
        _c("n_reads", pa.int32(), "read (or write) calls it took"),
        _c("n_in_read", pa.int32(), "messages that shared its last read (1 without framing)"),
        _c("retransmitted", pa.bool_(), "some of its bytes were seen more than once"),
        _c(
            "stamps",
            _CAT,
            "which were measured: letters of n(ic) a(rrival) h(and-off) r(ead) / s(end) d(river) c(ompletion)",
        ),
    ),
)

CALLS = Table(
    "calls",
    "one call, or at grade trace one context (thread on a core, system call, softirq, hard irq, idle) on one core",
    "cpu, start_ns, depth",
    (
        _c("call_id", pa.int64(), "0.. in table order"),
        _c("parent_id", pa.int64(), "call_id of the caller or of the context it nests in; -1 at the top"),
        _c("depth", pa.int32(), "0 at the top of its core"),
        _c(
            "kind",
            _CAT,
            "thread, idle, syscall, hardirq, softirq (grade trace), exception, function, gap (undecoded, not traced or lost), stall (grade pt: the core stood at one instruction), absent (the host had taken the core away); ptwrite, power, frequency: packets, without length, value in arg",
        ),
        _c(
            "symbol",
            _CAT,
            "thread: comm; syscall: its name; softirq: NET_RX...; hardirq: handler or vector; function: symbol; absent: steal",
        ),
        _c("dso", _CAT, "object of a function; '' at grade trace"),
        _c("cpu", pa.int32(), "core"),
        _c("pid", pa.int32(), "process of the thread underneath; 0 is idle; -1 unknown"),
        _c("tid", pa.int32(), "thread underneath; 0 is idle; -1 unknown"),
        _c("start_ns", pa.int64(), "begin"),
        _c("dur_ns", pa.int64(), "end - begin"),
        _c("self_ns", pa.int64(), "dur_ns less the durations of its children"),
        _c(
            "start_known",
            _CAT,
            "measured, inferred (cut at a switch, the capture's edge or a loss) or missing",
        ),
        _c("end_known", _CAT, "measured, inferred or missing"),
        _c(
            "arg",
            pa.int64(),
            "grade trace: syscall: first argument (the fd of read/write); hardirq: irq number; softirq: vector; idle: C-state; page fault: 0. Grade pt: value of a ptwrite, power or frequency packet; else 0",
        ),
        _c(
            "start_addr",
            pa.uint64(),
            "grade pt: address where it begins; stall: of the instruction; 0 unknown",
        ),
        _c("before", _CAT, "gap and stall: the last function that was called before; else ''"),
        _c(
            "gap_cause",
            _CAT,
            "stall: the instruction (HLT, MWAIT, PAUSE, IN/OUT, WRMSR, memory access, far transfer, other instruction); gap: why nothing is known; else ''",
        ),
    ),
)

TRACE = Table(
    "trace",
    "what Intel PT's packets cover, and how finely they tell times; no row at grade trace",
    "one row",
    (
        _c("begin_ns", pa.int64(), "when the first buffer begins"),
        _c("end_ns", pa.int64(), "when the last one ends"),
        _c("median_step_ns", pa.int64(), "median step between times that follow each other and differ"),
        _c("p99_step_ns", pa.int64(), "99th percentile: what is shorter is not told apart"),
        _c("edges_per_time", pa.float64(), "calls and returns that share a time, on average"),
    ),
)

CONTEXTS = Table(
    "contexts",
    "one stretch of one core with the same innermost context; stretches tile each core without overlap",
    "cpu, start_ns",
    (
        _c("cpu", pa.int32(), "core"),
        _c("start_ns", pa.int64(), "begin (inclusive)"),
        _c("end_ns", pa.int64(), "end (exclusive)"),
        _c(
            "kind",
            _CAT,
            "thread (user or kernel code outside the following), syscall, softirq, hardirq, exception (grade pt), idle, gap, absent (the host had taken the core away)",
        ),
        _c("symbol", _CAT, "as in calls: innermost context"),
        _c("pid", pa.int32(), "process of the thread underneath; 0 is idle; -1 unknown"),
        _c("tid", pa.int32(), "thread underneath"),
        _c("comm", _CAT, "name of the thread underneath; 'swapper' when idle"),
        _c("call_id", pa.int64(), "row of calls this stretch is self time of; -1 none"),
        _c(
            "others",
            _CAT,
            "softirq: '<who> receive', if most packets that it received were left out by the recording's filters: by the name of who reads them, or 'port N'; else ''",
        ),
    ),
)

THREAD_STATES = Table(
    "thread_states",
    "one stretch of one thread in one scheduler state",
    "tid, start_ns",
    (
        _c("tid", pa.int32(), "thread (0, the idle threads, is left out)"),
        _c("pid", pa.int32(), "its process; -1 unknown"),
        _c("comm", _CAT, "its name"),
        _c("start_ns", pa.int64(), "begin (inclusive)"),
        _c("end_ns", pa.int64(), "end (exclusive)"),
        _c(
            "state",
            _CAT,
            "running, runnable (woken or preempted, waits for a core), sleeping, blocked (uninterruptible), stopped (signal or debugger), dead, unknown, waiting (grade pt: left its core by itself, and nothing tells what for or when it was woken)",
        ),
        _c(
            "cpu",
            pa.int32(),
            "running: the core; runnable: the core whose queue it waits in; else the last core; -1 unknown",
        ),
        _c("preempted", pa.bool_(), "runnable because it was preempted, not because it was woken"),
        _c("waker_tid", pa.int32(), "runnable: who woke it; -1 unknown or not woken"),
    ),
)

LOSSES = Table(
    "losses",
    "one reason why something is missing, rejected or inferred",
    "severity (error first), stage, cause",
    (
        _c("key", _CAT, "of losses.csv, stable; what another program counted has its own"),
        _c("stage", _CAT, "record, capture, clocks, lifetimes, calls, anomalies, attribution, queuing"),
        _c("cause", _CAT, "short name, such as 'perf lost samples'"),
        _c(
            "severity",
            _CAT,
            "error (results may be wrong), warning (results are incomplete), info (accounted, harmless)",
        ),
        _c("count", pa.int64(), "how many"),
        _c("detail", pa.string(), "what it means for the results"),
        _c("remedy", pa.string(), "what to do about it; '' if nothing"),
    ),
)

DROPS = Table(
    "drops",
    "one packet that the kernel dropped and gave a reason for; with --recorder bpf only",
    "ts_ns",
    (
        _c("ts_ns", pa.int64(), "when, monotonic"),
        _c("cpu", pa.int32(), "core that dropped it"),
        _c("reason", _CAT, "the kernel's name without SKB_DROP_REASON_, or reason N"),
        _c("proto", pa.int32(), "protocol of IP: 6 TCP, 17 UDP; 0 neither, then without ports"),
        _c("sport", pa.int32(), "source port"),
        _c("dport", pa.int32(), "destination port"),
        _c("nbytes", pa.int64(), "length with what headers it still had"),
    ),
)

ANOMALIES = Table(
    "anomalies",
    "one deviation of one message: a context, gap or overlap in which it spent more than its reference",
    "message_id, side, -deviation_ns",
    (
        _c("message_id", pa.int64(), "row of messages"),
        _c("side", _CAT, "R before, A after the hand-off"),
        _c(
            "anomaly",
            _CAT,
            "context (unexpected), unexpected (function), slower (expected but longer), frequent (called more often), gap (core idle or a stall), hol (head-of-line), interference (another application's message)",
        ),
        _c("subject", _CAT, "the context or function, or what preceded the gap, or the other application"),
        _c("kind", _CAT, "kind of context (anomalies/exposure.py), function or stall"),
        _c("category", _CAT, "from categories.csv or kernel-functions.csv"),
        _c("located", pa.bool_(), "it only tells where the time went, and not why"),
        _c("observed_ns", pa.int64(), "time of the message in it"),
        _c(
            "reference_ns",
            pa.int64(),
            "median of the reference messages; contexts: so that these add up to no more than their latency",
        ),
        _c(
            "deviation_ns",
            pa.int64(),
            "what of the message's deviation is attributed to it: took_ns, or what larger ones left",
        ),
        _c(
            "took_ns",
            pa.int64(),
            "observed_ns - reference_ns, less what nested anomalies claim and what the message took less of its own",
        ),
        _c("start_ns", pa.int64(), "begin of its longest stretch: the evidence"),
        _c("end_ns", pa.int64(), "end of its longest stretch"),
        _c("cpu", pa.int32(), "core of its longest stretch; -1 on none: on the way, or in the NIC"),
        _c(
            "other_message_id",
            pa.int64(),
            "hol and interference: the message in whose processing the longest stretch lies; -1 none",
        ),
        _c("path", _CAT, "function: the context and the callers that it was called through; else ''"),
        _c("dso", _CAT, "function: its object; else ''"),
        _c("n_calls", pa.int64(), "function: how often it was called in the message's lifetime; else 0"),
        _c("reference_n_calls", pa.int64(), "median of the reference messages"),
    ),
)

COMPARED = Table(
    "compared",
    "one message that was compared",
    "role (target first), message_id",
    (
        _c(
            "message_id", pa.int64(), "row of messages; of the other capture's for a reference with --against"
        ),
        _c("role", _CAT, "target (explained) or reference (what it is compared with)"),
        _c("latency_ns", pa.int64(), "its latency"),
        _c(
            "reference_latency_ns", pa.int64(), "median latency of the reference messages of its request type"
        ),
        _c(
            "noise_ns",
            pa.int64(),
            "up to this a deviation of it cannot be told from none: packets, clocks at its time",
        ),
    ),
)

COVERAGE = Table(
    "coverage",
    "one target message: how much of its deviation the reported causes explain, or at least locate",
    "message_id",
    (
        _c("message_id", pa.int64(), "row of messages"),
        _c("latency_ns", pa.int64(), "its latency"),
        _c("reference_latency_ns", pa.int64(), "median latency of its reference messages"),
        _c("deviation_ns", pa.int64(), "latency_ns - reference_latency_ns"),
        _c("explained_ns", pa.int64(), "sum of the deviation_ns of its anomalies whose cause is known"),
        _c("located_ns", pa.int64(), "the same of those of which only the place is known"),
        _c(
            "coverage",
            pa.float64(),
            "explained_ns / deviation_ns, 0..1; 1 if it was no slower than can be told (noise_ns)",
        ),
        _c(
            "noise_ns",
            pa.int64(),
            "up to this a deviation of it cannot be told from none: packets, clocks at its time",
        ),
    ),
)

CAUSES = Table(
    "causes",
    "one root cause over all target messages",
    "-total_deviation_ns",
    (
        _c("cause", _CAT, "category with (R) or (A)"),
        _c("core", _CAT, "R or A"),
        _c("category", _CAT, "category without the suffix"),
        _c("subject", _CAT, "the context or function in which most of it was spent"),
        _c("subject_share", pa.float64(), "part of total_deviation_ns in that subject"),
        _c("n_messages", pa.int64(), "target messages it delayed"),
        _c("median_deviation_ns", pa.int64(), "over those messages"),
        _c("max_deviation_ns", pa.int64(), "over those messages"),
        _c("total_deviation_ns", pa.int64(), "over those messages"),
        _c("located_ns", pa.int64(), "of that, where it only tells where the time went, and not why"),
        _c(
            "share",
            pa.float64(),
            "total_deviation_ns / deviation of the target messages that were slower than can be told, in all",
        ),
        _c("advice", pa.string(), "what a user would check or change"),
    ),
)

QUEUING = Table(
    "queuing",
    "one compared message at one queue on its way: what was served there ahead of it",
    "role (target first), message_id, queue in the order of the way",
    (
        _c(
            "message_id", pa.int64(), "row of messages; of the other capture's for a reference with --against"
        ),
        _c("role", _CAT, "target or reference, as in compared"),
        _c(
            "queue",
            _CAT,
            "queuing/queues.py: Driver, Protocol, Socket, Thread, App receive, App request, App send, Kernel, Transmit",
        ),
        _c("side", _CAT, "R before, A after the hand-off"),
        _c(
            "function",
            _CAT,
            "what was counted: a function or system call that serves one message or packet with each call, or messages",
        ),
        _c("dso", _CAT, "object of the function; else ''"),
        _c("matched", pa.float64(), "share of messages that exactly one call of the function serves, 0..1"),
        _c("depth", pa.int64(), "how many were served ahead of it"),
        _c("reference_depth", pa.int64(), "median of the reference messages"),
        _c("ahead_ns", pa.int64(), "for how long, within the time that it was in the queue"),
        _c("reference_ns", pa.int64(), "median of the reference messages"),
        _c(
            "deviation_ns",
            pa.int64(),
            "ahead_ns - reference_ns; below 0 for a message that waited less than usual",
        ),
        _c("start_ns", pa.int64(), "when it came to the queue"),
        _c("end_ns", pa.int64(), "when it was served"),
    ),
)

HOL = Table(
    "hol",
    "what other messages' processing that blocked a target message consists of: one category",
    "message_id, side, -deviation_ns",
    (
        _c("message_id", pa.int64(), "row of messages: the one that waited"),
        _c("side", _CAT, "R before, A after the hand-off"),
        _c("category", _CAT, "of the functions or contexts in which the time was spent"),
        _c("subject", _CAT, "the function or context in which most of it was spent"),
        _c("n_ahead", pa.int64(), "messages that it waited for, whatever the category"),
        _c("observed_ns", pa.int64(), "time that it waited for this"),
        _c(
            "fastest_ns",
            pa.int64(),
            "what the fastest messages take for this, for as many and as much of them",
        ),
        _c(
            "beyond_ns",
            pa.int64(),
            "observed_ns - fastest_ns: the messages ahead were slow in this; below 0: they were not",
        ),
        _c("in_fastest", pa.bool_(), "the fastest messages do this at all"),
        _c("deviation_ns", pa.int64(), "share of the message's head-of-line blocking in table anomalies"),
    ),
)

CORES = Table(
    "cores",
    "one context that had one core: its share of the core's time",
    "role (target, reference, all), cpu, -ns",
    (
        _c(
            "role",
            _CAT,
            "while target or reference messages were there, or all of the recording; reference: of the other capture with --against",
        ),
        _c("cpu", pa.int32(), "core"),
        _c(
            "context",
            _CAT,
            "application, thread, softirq, hardirq, exception, idle, recording (NSight's own), unseen (nothing recorded)",
        ),
        _c("name", _CAT, "of the thread, softirq, interrupt or exception; else ''"),
        _c("category", _CAT, "from categories.csv"),
        _c("ns", pa.int64(), "time of the core in it, each ns once"),
        _c("share", pa.float64(), "of the core's time of this role, 0..1"),
        _c(
            "lifetime_ns",
            pa.int64(),
            "of the messages' lifetimes on this core, time in it: once for each message; 0 for all",
        ),
        _c("lifetime_share", pa.float64(), "of the lifetimes of this role on every core, 0..1"),
    ),
)

TABLES = {
    t.name: t
    for t in (
        EVENTS,
        CLOCK_MAP,
        MESSAGES,
        CALLS,
        TRACE,
        CONTEXTS,
        THREAD_STATES,
        LOSSES,
        DROPS,
        COMPARED,
        ANOMALIES,
        COVERAGE,
        CAUSES,
        QUEUING,
        HOL,
        CORES,
    )
}


def conform(name: str, table: pa.Table) -> pa.Table:
    """Return ``table`` with exactly the columns and types of table ``name``.

    Columns are reordered and cast (lossless casts only). Raises BadInput when a column is
    missing or a null stands where none is allowed, so that a stage fails where the fault is.
    """
    spec = TABLES[name].arrow()
    missing = [f.name for f in spec if f.name not in table.column_names]
    if missing:
        raise BadInput(
            f"table {name}: columns missing: {', '.join(missing)}",
            "delete tables/ in the capture and run nsight-report again",
        )
    arrays = []
    for field in spec:
        col = table[field.name]
        if col.type != field.type:
            if pa.types.is_dictionary(field.type):
                # Arrow has no cast between dictionaries of other index or value types.
                col = col.cast(field.type.value_type).dictionary_encode()
            col = col.cast(field.type)
        if not field.nullable and col.null_count:
            raise BadInput(f"table {name}: column {field.name} has {col.null_count} nulls")
        arrays.append(col)
    return pa.Table.from_arrays(arrays, schema=spec)


def empty(name: str) -> pa.Table:
    """An empty table with the schema of ``name``."""
    return TABLES[name].arrow().empty_table()
