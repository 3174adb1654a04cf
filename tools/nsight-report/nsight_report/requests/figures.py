# SPDX-License-Identifier: GPL-2.0-only
"""Latency of requests by phase: in which phase the slow requests spend their time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..tables.messages import Messages
from ..units import BEYOND, percentile
from .phases import PHASES
from .rows import I64

#: Names of the phases of a received request, in time order.
NAMES = ("receive", "queue", "service", "transmit")
#: And of a sent request; its service is the peer's time plus the network in both directions.
OF_CLIENT = ("transmit", "service", "receive", "queue")
PERCENTILES = (50.0, 90.0, 99.0, 99.9)
N_SLOWEST = 5
#: Chooses positions of requests: from their columns, ``message_id`` for request_id, and the begin of the first request.
Chooser = Callable[[pd.DataFrame, int], I64]

_COLUMNS = (
    "request_id", "role", "certain", "conn_id", "pid", "lport", "raddr", "rport", "request_type", "parent_request_id", "first_ns",
    "latency_ns", *PHASES,
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """Mean values of the requests of a slice, in ns; the phases add up to the latency. ``sent_ns``: of what they sent meanwhile."""

    name: str
    n: int
    latency_ns: int
    phases_ns: dict[str, int]
    sent_ns: int


@dataclass(frozen=True)
class One:
    """A request, in ns."""

    request_id: int
    latency_ns: int
    phases_ns: dict[str, int]


@dataclass(frozen=True)
class Figures:
    """Requests of one role. ``n_sent``: requests that were sent during them; ``others``: requests of the other role.

    ``slices``: those with at least ``BEYOND`` requests; ``usual`` and ``slow``: names of two of them.
    """

    role: str
    n: int
    n_certain: int
    n_sent: int
    others: int
    percentiles: dict[float, int]
    max_ns: int
    slices: list[Part]
    usual: str
    slow: str
    slowest: list[One]

    @property
    def tail(self) -> tuple[str, float] | None:
        """The phase with the largest part of the mean extra time of slow requests over usual ones, and its share."""
        found = {part.name: part for part in self.slices}
        usual, slow = found.get(self.usual), found.get(self.slow)
        if usual is None or slow is None or slow.latency_ns <= usual.latency_ns:
            return None
        more = {name: slow.phases_ns[name] - usual.phases_ns[name] for name in NAMES}
        name = max(NAMES, key=lambda of: more[of])
        return name, more[name] / (slow.latency_ns - usual.latency_ns)


def figures(
    requests: Messages,
    role: str,
    pids: I64,
    port: int | None,
    slices: Sequence[tuple[str, Chooser]],
    usual: str,
    slow: str,
) -> Figures | None:
    """Figures of the requests of some processes, of one ``port`` if given; None if there are none in either role.

    ``slices``: name and chooser of each; ``usual`` and ``slow``: names of the two that are compared.
    """
    every = requests.columns(_COLUMNS, lambda rows: np.isin(rows["pid"].to_numpy(), pids))
    # A process's own requests leave from ports that nobody selects.
    server = (every["role"] == "server").to_numpy(bool)
    every = every[~server | (every["lport"].to_numpy() == port)] if port is not None else every
    if not len(every):
        return None
    rows = every[(every["role"] == role).to_numpy(bool)].rename(columns={"request_id": "message_id"})
    latency = rows["latency_ns"].to_numpy(np.int64)
    phases = np.stack([rows[name].to_numpy(np.int64) for name in PHASES])
    sent, origin = _sent(every, rows), int(rows["first_ns"].min()) if len(rows) else 0
    parts = ((name, choose(rows, origin)) for name, choose in slices)
    last = np.argsort(latency, kind="stable")[::-1][:N_SLOWEST]
    return Figures(
        role=role,
        n=len(rows),
        n_certain=int((rows["certain"] == 1).sum()),
        n_sent=int(np.isin(every["parent_request_id"].to_numpy(), rows["message_id"].to_numpy()).sum()),
        others=len(every) - len(rows),
        percentiles={p: value for p in PERCENTILES if (value := percentile(latency, p)) is not None},
        max_ns=int(latency.max(initial=0)),
        slices=[_part(name, phases[:, of], sent[of]) for name, of in parts if len(of) >= BEYOND],
        usual=usual,
        slow=slow,
        slowest=[
            One(int(rows["message_id"].iloc[i]), int(latency[i]), _named(phases[:, i].tolist())) for i in last
        ],
    )


def _sent(every: pd.DataFrame, rows: pd.DataFrame) -> I64:
    """Total duration of the requests that each request sent."""
    child = every[(every["parent_request_id"] >= 0).to_numpy(bool)]
    sums = child.groupby("parent_request_id")["latency_ns"].sum()
    return sums.reindex(rows["message_id"]).fillna(0).to_numpy(np.int64)


def _part(name: str, phases: npt.NDArray[np.int64], sent: I64) -> Part:
    whole = _means(phases)
    return Part(name, len(sent), sum(whole), _named(whole), int(sent.mean()))


def _named(phases: list[int]) -> dict[str, int]:
    return dict(zip(NAMES, phases, strict=True))


def _means(phases: npt.NDArray[np.int64]) -> list[int]:
    """Mean of each phase, in whole ns that add up to the rounded mean of the total."""
    total, n = np.cumsum(phases.sum(axis=1)), phases.shape[1]
    return np.diff((total + n // 2) // n, prepend=0).tolist()  # type: ignore[no-any-return]
