# SPDX-License-Identifier: GPL-2.0-only
"""Tiny tables by hand: each message lives on two cores, everything else is idle."""

from __future__ import annotations

import pyarrow as pa
from nsight_report.tables import schema

# Core 0 receives, core 1 runs the application thread 100 of process 100 ("server").
PID = TID = 100


def message(i: int, nic: int, handoff: int, read: int, **over: object) -> dict[str, object]:
    """One rx message; arrival 100 ns before the hand-off, the read call 200 ns before it returns."""
    row: dict[str, object] = {
        "message_id": i, "direction": "rx", "conn_id": i % 4, "proto": 6, "netns": 1,
        "laddr": "10.0.0.1", "lport": 11211, "raddr": "10.0.0.2", "rport": 40000 + i % 4,
        "byte_start": i, "byte_end": i + 1, "nbytes": 1, "request_type": None,
        "first_ns": nic, "last_ns": read, "latency_ns": read - nic,
        "nic_ns": nic, "nic_source": "peer_xmit", "nic_error_ns": 0,
        "arrival_ns": handoff - 100, "arrival_last_ns": handoff - 100, "recv_cpu": 0,
        "handoff_ns": handoff, "handoff_cpu": 0, "call_ns": read - 200, "app_ns": read, "app_cpu": 1,
        "driver_ns": None, "completion_ns": None, "pid": PID, "tid": TID, "comm": "server", "fd": 5,
        "n_arrivals": 1, "n_reads": 1, "n_in_read": 1, "retransmitted": False, "stamps": "nahr",
    }  # fmt: skip
    row.update(over)
    return row


def context(cpu: int, start: int, end: int, kind: str, symbol: str, tid: int, comm: str) -> dict[str, object]:
    return {
        "cpu": cpu, "start_ns": start, "end_ns": end, "kind": kind, "symbol": symbol,
        "pid": tid, "tid": tid, "comm": comm, "call_id": -1, "others": "",
    }  # fmt: skip


def state(start: int, end: int, name: str, cpu: int = 1, tid: int = TID) -> dict[str, object]:
    return {
        "tid": tid, "pid": tid, "comm": "server", "start_ns": start, "end_ns": end, "state": name,
        "cpu": cpu, "preempted": False, "waker_tid": -1,
    }  # fmt: skip


def syscall(tid: int, start: int, end: int, name: str, cpu: int = 1) -> dict[str, object]:
    return {
        "call_id": 0, "parent_id": -1, "depth": 1, "kind": "syscall", "symbol": name, "dso": "",
        "cpu": cpu, "pid": tid, "tid": tid, "start_ns": start, "dur_ns": end - start, "self_ns": end - start,
        "start_known": "measured", "end_known": "measured", "arg": 0,
        "start_addr": 0, "before": "", "gap_cause": "",
    }  # fmt: skip


def table(name: str, rows: list[dict[str, object]]) -> pa.Table:
    """Rows as a table of the schema, in its order of rows."""
    if not rows:
        return schema.empty(name)
    arrow = schema.TABLES[name].arrow()
    plain = pa.schema(
        [pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in arrow]
    )
    return schema.conform(name, pa.Table.from_pylist(rows, schema=plain))


class Scene:
    """Messages 10 us apart, 1 us long: NIC at t, hand-off t+500, read at t+1000.

    The receive core is in softirq around the hand-off, the application thread sleeps in
    epoll_wait until t+600 and runs until t+1500. Subclasses of the scene's day: ``slow``
    messages replace this with whatever a test says.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, object]] = []
        self.contexts: list[dict[str, object]] = []
        self.states: list[dict[str, object]] = []
        self.calls: list[dict[str, object]] = []

    def quiet(self, n: int, start: int = 0) -> int:
        """Add ``n`` usual messages; returns the time after them."""
        for _ in range(n):
            t = start
            self.messages.append(message(len(self.messages), t, t + 500, t + 1000))
            self.cores(
                t,
                [(0, 800, "softirq", "NET_RX", 7, "client"), (800, 10_000, "idle", "idle", 0, "swapper")],
                [
                    (0, 600, "idle", "idle", 0, "swapper"),
                    (600, 1500, "syscall", "read", TID, "server"),
                    (1500, 10_000, "idle", "idle", 0, "swapper"),
                ],
            )
            self.threads(t, [(0, 600, "sleeping"), (600, 1500, "running"), (1500, 10_000, "sleeping")])
            self.calls.append(syscall(TID, t + 800, t + 1000, "read"))
            self.calls.append(syscall(TID, t + 1400, t + 10_600, "epoll_wait"))
            start += 10_000
        return start

    def cores(self, t: int, core0: list[tuple], core1: list[tuple]) -> None:
        for cpu, rows in ((0, core0), (1, core1)):
            self.contexts += [context(cpu, t + a, t + b, *rest) for a, b, *rest in rows]

    def threads(self, t: int, rows: list[tuple]) -> None:
        self.states += [state(t + a, t + b, name) for a, b, name in rows]

    def tables(self) -> tuple[pa.Table, pa.Table, pa.Table, pa.Table]:
        """messages, calls, contexts, thread_states in the order that ``find`` takes."""
        return (
            table("messages", sorted(self.messages, key=lambda r: r["first_ns"])),
            table("calls", self.calls),
            table("contexts", sorted(self.contexts, key=lambda r: (r["cpu"], r["start_ns"]))),
            table("thread_states", sorted(self.states, key=lambda r: (r["tid"], r["start_ns"]))),
        )
