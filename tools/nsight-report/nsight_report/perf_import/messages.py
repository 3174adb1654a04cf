# SPDX-License-Identifier: GPL-2.0-only
"""Message events (events.tsv) from the tracepoints of a socket's receive queue.

A hand-off (H) is each sock_data_queued. A read (R) is what one system call took: one or more consecutive sock_data_read, one
per skb. An arrival (A) is the time when netif_receive_skb saw the skb of a hand-off, or, without that event, the
software receive timestamp of the skb.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.csv as csv

from ..capture.perf_data import CODE, WIDE_CODE, Decoded
from ..losses import Ledger
from .latest import latest

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
ToMonotonic = Callable[[I64, str], tuple[I64, Bool]]

COOKIE, SKB, HW, SW, POS, LEN, SPORT, DPORT, FAMILY, PROTO, SKADDR = range(11)
TCP, UDP = 6, 17
MAX_WAIT_NS = 10_000_000_000  # an skb does not take longer from the device to the socket
#: System calls whose first argument is the socket that is read.
READS = frozenset({"read", "readv", "recvfrom", "recvmsg", "recvmmsg"})
_SEQ = (1 << 32) - 1


@dataclass
class Counts:
    """Message events by kind."""

    arrivals: int = 0
    handoffs: int = 0
    reads: int = 0

    def lines(self) -> str:
        """In the form in which the probes count them at the end of events.tsv."""
        return "".join(
            f"@n[{kind}]: {n}\n"
            for kind, n in (("A", self.arrivals), ("H", self.handoffs), ("R", self.reads))
        )


@dataclass
class _Rows:
    """Some wide events, with monotonic times."""

    ts: I64
    cpu: I64
    pid: I64
    tid: I64
    v: I64

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, rows: npt.NDArray[np.int64] | Bool) -> _Rows:
        return _Rows(self.ts[rows], self.cpu[rows], self.pid[rows], self.tid[rows], self.v[rows])


def write_events(
    path: Path,
    decoded: Decoded,
    wide: npt.NDArray[np.void],
    to_monotonic: ToMonotonic,
    syscalls: dict[str, str],
    listed: tuple[I64, npt.NDArray[np.uint64]],
    ledger: Ledger,
) -> Counts:
    """Write events.tsv; what is unknown, or not usable, goes to ``ledger``.

    ``listed``: cookies of sockets and their addresses (``sockets.load``), which take precedence over the events' own.
    """
    queued, read, received, named, states = (
        _rows(wide, kind, decoded.clock, to_monotonic, ledger)
        for kind in ("sock_data_queued", "sock_data_read", "netif_receive_skb", "tcp_addresses", "sock_state")
    )
    arrived = _arrivals(queued, received, to_monotonic, ledger)
    calls, fd = _calls(decoded, read, to_monotonic, syscalls, ledger)
    reads = _reads(read, calls, fd, _datagrams(queued, read))
    comm = _Comms(decoded, to_monotonic)
    addresses = _Addresses(listed, named, states, queued, read)
    tables = [
        _lines("A", arrived.row, arrived.seq, arrived.length, comm, addresses),
        _lines(
            "H",
            queued,
            _end(queued, np.arange(len(queued))),
            np.zeros(len(queued), np.int64),
            comm,
            addresses,
        ),
        _lines("R", reads.row, reads.seq, reads.length, comm, addresses, reads.fd, reads.call),
    ]
    addresses.account(queued, read, ledger)
    counts = Counts(*(t.num_rows for t in tables))
    table = pa.concat_tables(tables)
    table = table.take(pa.array(np.argsort(table["ts"].to_numpy(), kind="stable")))
    with path.open("wb") as file:
        file.write(b"#nsight-events 1 clock=monotonic\n")
        csv.write_csv(
            table, file, csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
        )
        file.write(counts.lines().encode() + b"#end\n")
    return counts


def _rows(
    wide: npt.NDArray[np.void], kind: str, clock: str, to_monotonic: ToMonotonic, ledger: Ledger
) -> _Rows:
    rows = wide[wide["kind"] == WIDE_CODE[kind]]
    ts, good = to_monotonic(rows["ts"].astype(np.int64), clock)
    ledger.add("import_outside_clock_map", int(np.count_nonzero(~good)), kind=kind)
    rows = rows[good]
    wide_ints = (rows[name].astype(np.int64) for name in ("cpu", "pid", "tid", "v"))
    return _Rows(ts[good], *wide_ints)


def _end(rows: _Rows, datagram: I64) -> I64:
    """rcv_nxt after the data; for a datagram its number."""
    tcp = rows.v[:, PROTO] == TCP
    return np.where(tcp, (rows.v[:, POS] + rows.v[:, LEN]) & _SEQ, datagram + 1)


def _datagrams(queued: _Rows, read: _Rows) -> I64:
    """For each read, the hand-off of the same skb; numbers beyond them for reads without one."""
    codes, _ = pd.factorize(np.concatenate((queued.v[:, COOKIE], read.v[:, COOKIE])))
    skbs, _ = pd.factorize(np.concatenate((queued.v[:, SKB], read.v[:, SKB])))
    key = codes.astype(np.int64) << 32 | skbs
    found = latest(key[: len(queued)], queued.ts, key[len(queued) :], read.ts)
    # The memory of an skb is reused: each hand-off belongs to the first read after it.
    first = np.full(len(queued) + 1, len(read), np.int64)
    np.minimum.at(first, found, np.arange(len(read)))
    mine = (found >= 0) & (first[found] == np.arange(len(read)))
    return np.where(mine, found, len(queued) + np.arange(len(read)))


@dataclass
class _Arrived:
    row: _Rows
    seq: I64
    length: I64


def _arrivals(queued: _Rows, received: _Rows, to_monotonic: ToMonotonic, ledger: Ledger) -> _Arrived:
    """When the receive softirq saw each skb of a hand-off."""
    found = latest(received.v[:, 0], received.ts, queued.v[:, SKB], queued.ts)
    # An address is reused: each event belongs only to the first hand-off after it.
    first = np.full(len(received) + 1, len(queued), np.int64)
    np.minimum.at(first, found, np.arange(len(queued)))
    at = np.maximum(found, 0)
    seen = (found >= 0) & (first[found] == np.arange(len(queued)))
    if len(received):
        # TCP may append data to an skb that waits in the socket's backlog, even to a mere acknowledgement. Its
        # arrival is that of the data only if the data was in it.
        header = np.where(queued.v[:, PROTO] == TCP, 40, 28)
        seen &= received.v[at, 1] >= queued.v[:, LEN] + header
        seen &= queued.ts - received.ts[at] < MAX_WAIT_NS
    stamp = queued.v[:, SW]
    wall, good = to_monotonic(np.where(stamp > 0, stamp, 0), "realtime")
    stamped = good & (stamp > 0) & (wall <= queued.ts) & (queued.ts - wall < MAX_WAIT_NS)
    ledger.add("software_timestamps_not_used", int(np.count_nonzero((stamp > 0) & ~stamped)))
    known = np.flatnonzero(seen | stamped)
    row = queued.take(known)
    by_event = seen[known]
    if len(received):
        source = at[known]
        row.ts = np.where(by_event, received.ts[source], wall[known])
        for name in ("cpu", "pid", "tid"):
            setattr(row, name, np.where(by_event, getattr(received, name)[source], getattr(row, name)))
    else:
        row.ts = wall[known]
    ledger.add("arrival_from_software_timestamp", int(np.count_nonzero(~by_event)))
    remedy = "" if len(received) else "record net:netif_receive_skb too"
    ledger.add("hand_off_without_arrival", len(queued) - len(known), remedy=remedy)
    tcp = row.v[:, PROTO] == TCP
    return _Arrived(row, np.where(tcp, row.v[:, POS] & _SEQ, known + 1), row.v[:, LEN])


def _calls(
    decoded: Decoded, read: _Rows, to_monotonic: ToMonotonic, syscalls: dict[str, str], ledger: Ledger
) -> tuple[I64, I64]:
    """For each read, the entry time of its system call, and the descriptor; 0 and -1: not known."""
    events = decoded.events
    enters = events[events["kind"] == CODE["sys_enter"]]
    exits = events[events["kind"] == CODE["sys_exit"]]
    if not len(enters):
        ledger.add("system_calls_not_recorded", 1)
        return np.zeros(len(read), np.int64), np.full(len(read), -1, np.int64)
    entered, good = to_monotonic(enters["ts"].astype(np.int64), decoded.clock)
    enters, entered = enters[good], entered[good]
    left, good = to_monotonic(exits["ts"].astype(np.int64), decoded.clock)
    exits, left = exits[good], left[good]
    call = latest(enters["tid"].astype(np.int64), entered, read.tid, read.ts)
    # a call that returned in the same ns returned after the read
    end = latest(exits["tid"].astype(np.int64), left, read.tid, read.ts - 1)
    at = np.maximum(call, 0)
    inside = (call >= 0) & (len(entered) > 0)
    if len(entered):
        inside &= (end < 0) | ((left[np.maximum(end, 0)] <= entered[at]) if len(left) else True)
    taking = np.array([int(n) for n, name in syscalls.items() if name in READS], np.int64)
    time = np.where(inside, entered[at] if len(entered) else 0, 0)
    takes = inside & np.isin(enters["a"][at] if len(enters) else np.zeros(len(at)), taking)
    fd = np.where(takes, enters["b"][at] if len(enters) else -1, -1)
    return time, np.where((fd >= 0) & (fd < 1 << 31), fd, -1)


@dataclass
class _Reads:
    row: _Rows
    seq: I64
    length: I64
    call: I64
    fd: I64


def _reads(read: _Rows, call: I64, fd: I64, datagram: I64) -> _Reads:
    """Consecutive reads of skbs by one system call are merged into one."""
    order = np.lexsort((read.ts, read.tid))
    row, call, fd, datagram = read.take(order), call[order], fd[order], datagram[order]
    v = row.v
    joined = np.zeros(len(row), bool)
    joined[1:] = (
        (row.tid[1:] == row.tid[:-1])
        & (call[1:] == call[:-1])
        & (call[1:] > 0)
        & (v[1:, COOKIE] == v[:-1, COOKIE])
        & (v[1:, PROTO] == TCP)
        & (v[:-1, PROTO] == TCP)
        & (v[1:, POS] == (v[:-1, POS] + v[:-1, LEN]) & _SEQ)
    )
    first = np.flatnonzero(~joined)
    last = np.append(first[1:], len(row)) - 1 if len(row) else first
    length = np.add.reduceat(v[:, LEN], first) if len(first) else first
    tcp = v[first, PROTO] == TCP
    return _Reads(
        row.take(last),
        np.where(tcp, v[first, POS] & _SEQ, datagram[first] + 1),
        length,
        call[first],
        fd[first],
    )  # the read returns with its last skb


class _Comms:
    """Names of threads over time, from switches and from perf's own records of threads."""

    _IDLE = np.frombuffer(b"swapper".ljust(16, b"\0"), "<u8")

    def __init__(self, decoded: Decoded, to_monotonic: ToMonotonic) -> None:
        e = decoded.events
        comm, switch = e[e["kind"] == CODE["comm"]], e[e["kind"] == CODE["sched_switch"]]
        low, high = switch["c"] & 0xFFFFFFFF, switch["c"] >> 32
        tid = np.concatenate((comm["a"], switch["tid"], switch["a"])).astype(np.int64)
        name = np.concatenate((comm["c"], low, high)).astype(np.int64)
        ts = np.concatenate((comm["ts"], switch["ts"], switch["ts"])).astype(np.int64)
        timed, good = to_monotonic(ts, decoded.clock)
        # perf's own records have time 0: the names of threads at the start.
        self._ts = np.where(good & (ts > 0), timed, 0)
        self._tid, self._name = tid, name
        packed = [text.encode("utf-8", "replace")[:16].ljust(16, b"\0") for text in decoded.strings] or [
            bytes(16)
        ]
        self._words = np.frombuffer(b"".join(packed), "<u8").reshape(-1, 2)

    def of(self, tid: I64, ts: I64) -> npt.NDArray[np.uint64]:
        """Two words for each."""
        at = latest(self._tid, self._ts, tid, ts)
        name = np.where(at >= 0, self._name[at] if len(self._name) else 0, 0)
        words = self._words[np.clip(name, 0, len(self._words) - 1)]
        words[tid == 0] = self._IDLE  # each core has its own idle thread, all with the same number
        return words


class _Addresses:
    """Addresses of sockets by cookie: listed, from events of TCP with both, or from events with the socket's address."""

    def __init__(
        self,
        listed: tuple[I64, npt.NDArray[np.uint64]],
        named: _Rows,
        states: _Rows,
        queued: _Rows,
        read: _Rows,
    ) -> None:
        by_state, words = _of_states(states, queued, read)
        cookie = np.concatenate((listed[0], named.v[:, 0], by_state))
        words = np.concatenate((listed[1].astype(np.int64), named.v[:, 1:5], words)).astype(np.uint64)
        self._cookie, first = np.unique(cookie, return_index=True)
        self._words = words[first]

    def of(self, cookie: I64) -> npt.NDArray[np.uint64]:
        """Four words for each: local, remote; 0: not known."""
        words = np.zeros((len(cookie), 4), np.uint64)
        if len(self._cookie):
            at = np.minimum(np.searchsorted(self._cookie, cookie), len(self._cookie) - 1)
            known = self._cookie[at] == cookie
            words[known] = self._words[at[known]]
        return words

    def account(self, queued: _Rows, read: _Rows, ledger: Ledger) -> None:
        sockets = np.unique(np.concatenate((queued.v[:, COOKIE], read.v[:, COOKIE])))
        unknown = int(np.count_nonzero(~np.isin(sockets, self._cookie)))
        ledger.add("socket_address_unknown", unknown)


def _of_states(states: _Rows, queued: _Rows, read: _Rows) -> tuple[I64, I64]:
    """Cookies and four words each of sockets for which a change of the TCP state gives the addresses, matched by kernel address and ports.

    The kernel reuses the address of a socket: the last change before its first data counts or, for a socket
    that was connected before the recording, a later one.
    """
    v, ts = np.concatenate((queued.v, read.v)), np.concatenate((queued.ts, read.ts))
    order = np.argsort(ts, kind="stable")
    cookie, first = np.unique(v[order, COOKIE], return_index=True)
    mine, since = v[order][first], ts[order][first]
    ports = np.left_shift(states.v[:, 5], 16) | states.v[:, 6]
    socket, _ = pd.factorize(np.concatenate((states.v[:, 0], mine[:, SKADDR])))
    where = np.concatenate((ports, np.left_shift(mine[:, SPORT], 16) | mine[:, DPORT]))
    key = socket.astype(np.int64) << 32 | where
    keys, wanted = key[: len(states)], key[len(states) :]
    found = latest(keys, states.ts, wanted, since)
    later = latest(keys, states.ts, wanted, np.full(len(wanted), np.iinfo(np.int64).max))
    found = np.where(found >= 0, found, later)
    known = (found >= 0) & (mine[:, PROTO] == TCP)
    return cookie[known], states.v[found[known], 1:5]


def _lines(
    kind: str,
    row: _Rows,
    seq: I64,
    length: I64,
    comms: _Comms,
    addresses: _Addresses,
    fd: I64 | None = None,
    call: I64 | None = None,
) -> pa.Table:
    """The 24 fields."""
    n, v = len(row), row.v
    zero = np.zeros(n, np.int64)
    comm, ends = comms.of(row.tid, row.ts), addresses.of(v[:, COOKIE])
    stamps = kind != "R"
    columns: dict[str, pa.Array | I64] = {
        "kind": pa.array([kind] * n, pa.string()),
        "ts": row.ts,
        "cpu": row.cpu,
        "pid": np.maximum(row.pid, 0),
        "tid": np.maximum(row.tid, 0),
        "comm0": _hex(comm[:, 0]),
        "comm1": _hex(comm[:, 1]),
        "fd": zero - 1 if fd is None else fd,
        "call_ts": zero if call is None else np.minimum(call, row.ts),
        "sk": _hex(v[:, COOKIE].astype(np.uint64)),
        "netns": zero,
        "proto": v[:, PROTO],
        "family": v[:, FAMILY],
        "laddr_hi": _hex(ends[:, 0]),
        "laddr_lo": _hex(ends[:, 1]),
        "lport": v[:, SPORT],
        "raddr_hi": _hex(ends[:, 2]),
        "raddr_lo": _hex(ends[:, 3]),
        "rport": v[:, DPORT],
        "seq": seq,
        "len": length,
        "hwstamp": np.maximum(v[:, HW], 0) if stamps else zero,
        "swstamp": np.maximum(v[:, SW], 0) if stamps else zero,
        "aux": zero,
    }
    return pa.table(columns)


def _hex(values: npt.NDArray[np.uint64]) -> pa.Array:
    """As text; each distinct number is formatted once."""
    codes, distinct = pd.factorize(values)
    texts = pa.array([f"{int(x):x}" for x in distinct], pa.string())
    return texts.take(pa.array(codes)) if len(codes) else pa.array([], pa.string())
