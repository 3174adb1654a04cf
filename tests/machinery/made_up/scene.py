# SPDX-License-Identifier: GPL-2.0-only
"""Tiny tables by hand: each message lives on two cores, everything else is idle."""

from __future__ import annotations

import pyarrow as pa

from .tables import TID, Row, context, message, state, syscall, table


class Scene:
    """Messages 10 us apart, 1 us long: NIC at t, hand-off t+500, read at t+1000.

    The receive core is in softirq around the hand-off, the application thread sleeps in
    epoll_wait until t+600 and runs until t+1500. For ``slow`` messages a test replaces this
    with its own values.
    """

    def __init__(self) -> None:
        self.messages: list[Row] = []
        self.contexts: list[Row] = []
        self.states: list[Row] = []
        self.calls: list[Row] = []

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
        """messages, calls, contexts, thread_states in the order of the parameters of ``find``."""
        return (
            table("messages", sorted(self.messages, key=lambda r: r["first_ns"])),
            table("calls", self.calls),
            table("contexts", sorted(self.contexts, key=lambda r: (r["cpu"], r["start_ns"]))),
            table("thread_states", sorted(self.states, key=lambda r: (r["tid"], r["start_ns"]))),
        )
