# SPDX-License-Identifier: GPL-2.0-only
"""Compare messages with the client's own log: same number, same bytes, inside the client's times.

A message's lifetime at the server lies inside the request's time at the client: it begins
after the client's send call began and ends before the client had the answer. One clock
(CLOCK_MONOTONIC) provides all four timestamps, so there is no tolerance.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from .measure import Run

SLOW_NS = 1_000_000


@dataclass
class Agreement:
    """How a run's messages agree with the client's requests."""

    server: str
    injection: str
    n_requests: int
    n_messages: int
    n_joined: int
    n_all_stamps: int
    n_outside_client_times: int
    p50_client_us: float
    p50_message_us: float
    n_slow: int
    slow_share: float | None
    n_lost: int  # as counted by the recorder

    def exact(self) -> bool:
        """Whether there are as many messages as requests, equal byte for byte, with every timestamp, inside the client's times."""
        return (
            self.n_requests == self.n_messages == self.n_joined == self.n_all_stamps
            and self.n_outside_client_times == 0
        )

    def as_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        return {**asdict(self), "exact": self.exact()}


def join(load: pd.DataFrame, messages: pd.DataFrame) -> pd.DataFrame:
    """Requests with their messages: same client port, same bytes of the connection."""
    requests = load.assign(byte_end=load.byte_start + load.nbytes)
    return requests.merge(
        messages, left_on=["lport", "byte_start", "byte_end"], right_on=["rport", "byte_start", "byte_end"],
        suffixes=("_client", ""),
    )  # fmt: skip


def agreement(run: Run) -> Agreement:
    """Compare; ``slow_share``: for requests slower than ``SLOW_NS`` at the client, the share of the
    message's lifetime at the server in that latency (median)."""
    both = join(run.load, run.messages)
    client = both.recv_ns - both.send_ns
    slow = client > SLOW_NS
    outside = (both.first_ns < both.send_ns) | (both.last_ns > both.recv_ns)
    stamps = both[["nic_ns", "arrival_ns", "handoff_ns", "app_ns"]].notna().all(axis=1)
    return Agreement(
        server=run.scenario.server,
        injection=run.scenario.name,
        n_requests=len(run.load),
        n_messages=len(run.messages),
        n_joined=len(both),
        n_all_stamps=int(stamps.sum()),
        n_outside_client_times=int(outside.sum()),
        p50_client_us=float(client.median()) / 1000,
        p50_message_us=float(both.latency_ns.median()) / 1000,
        n_slow=int(slow.sum()),
        slow_share=float((both.latency_ns[slow] / client[slow]).median()) if slow.any() else None,
        n_lost=run.n_lost,
    )
