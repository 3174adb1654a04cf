# SPDX-License-Identifier: GPL-2.0-only
"""The packets of messages: what nsight-capsule collected while nsight-record recorded, joined by connection and byte range.

Directories NAME.capsules in the capture are read; the directory of the capture's own kernel gives the clock. A message counts
bytes from the first one seen of its connection, a packet has TCP's own numbers. The difference is constant for each connection and
direction: it is the value on which most messages agree, each with the packet that arrived when it did (received) or left after
its send call (sent).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..errors import BadInput
from ..tables.data_frames import each
from ..tables.messages import Messages
from . import layers
from .collection import Collection, load
from .kernels import joined

Ints = npt.NDArray[np.int64]
TCP = 6
#: Maximum number of packets per message that are shown.
MOST_PACKETS = 8
MOST_DIRECTORIES = 16
#: Maximum distance between a packet's last point and a message's arrival, and between its first point and the send call.
_NEAR_NS = 1_000_000
_HALF, _ALL = 1 << 31, 1 << 32
_OF_MESSAGES = (
    "message_id", "direction", "conn_id", "proto", "laddr", "lport", "raddr", "rport", "byte_start", "byte_end", "nbytes", "arrival_ns",
    "call_ns",
)  # fmt: skip


def find(capture: Path) -> list[Path]:
    """Directories of nsight-capsule in a capture, in order of their names. Links are ignored."""
    try:
        found = [
            p for p in capture.iterdir() if p.name.endswith(".capsules") and not p.is_symlink() and p.is_dir()
        ]
    except OSError:
        return []
    return sorted(found)[:MOST_DIRECTORIES]


@dataclass(frozen=True)
class Ways:
    """``packets_of`` gives the packets that carried a message. ``problem``: why there are none, unless that is intended."""

    collection: Collection | None
    pairs: pd.DataFrame
    problem: str = ""

    @cached_property
    def _passages(self) -> tuple[pd.DataFrame, dict[str, str]]:
        assert self.collection is not None
        wanted = self.collection.hops["packet"].isin(self.pairs["packet"])
        part = Collection(**{**self.collection.__dict__, "hops": self.collection.hops[wanted]})
        rows = layers.passages(part)
        return rows, layers.words(part, rows)

    def packets_of(self, message: int) -> list[dict[str, Any]]:
        """Its packets, first byte first: packet, again, latency and the time in each layer, with bounds (None: unknown)."""
        numbers = self.pairs.loc[self.pairs["message_id"] == message, "packet"].head(MOST_PACKETS)
        if not len(numbers) or self.collection is None:
            return []
        rows, words = self._passages
        packets = self.collection.packets.set_index("packet").loc[numbers]
        return [
            {
                "packet": int(number), "born_ns": int(p.born_ns), "last_ns": int(p.last_ns), "latency_ns": int(p.latency_ns),
                "bound_ns": _known(p.bound_ns), "again": bool(p.again),
                "layers": [
                    {"layer": str(r.layer), "what": words[str(r.layer)], "ns": int(r.dur_ns), "bound_ns": _known(r.bound_ns)}
                    for r in each(rows[rows["packet"] == number])
                ],
            }
            for number, p in zip(packets.index, each(packets))
        ]  # fmt: skip


def _known(bound: int) -> int | None:
    return int(bound) if bound >= 0 else None


NONE = Ways(None, pd.DataFrame({"message_id": np.zeros(0, np.int64), "packet": np.zeros(0, np.int64)}))


def of_capture(capture: Path, boot_id: str, messages: Messages) -> Ways:
    """The packets of a capture; ``NONE`` without directories of nsight-capsule. Problems with them are shown, and stop no report."""
    paths = find(capture)
    if not paths:
        return NONE
    try:
        parts = sorted((load(path) for path in paths), key=lambda part: part.boot_ids[0] != boot_id)
        if not boot_id or parts[0].boot_ids[0] != boot_id:
            raise BadInput(
                f"{paths[0].name}: recorded on another kernel than the capture, or after another boot"
            )
        collection = parts[0] if len(parts) == 1 else joined(parts)
        return Ways(collection, pairs(collection.packets, messages.columns(_OF_MESSAGES)))
    except BadInput as error:
        return Ways(None, NONE.pairs, str(error))


def pairs(packets: pd.DataFrame, messages: pd.DataFrame) -> pd.DataFrame:
    """Which packet carried bytes of which message: message_id, packet; in the order of messages, each one's packets by their bytes."""
    messages = messages[messages["direction"].isin(["rx", "tx"]) & messages["proto"].isin([TCP, 17])]
    found = []
    for direction, ends in (
        ("rx", ("raddr", "rport", "laddr", "lport")),
        ("tx", ("laddr", "lport", "raddr", "rport")),
    ):
        m = messages[messages["direction"] == direction]
        p = packets[packets["arrived"].to_numpy(bool)] if direction == "rx" else packets
        m, p = _with_flows(m, p, ends)
        found += [
            _of_streams(m[m["proto"] == TCP], p[p["proto"] == TCP], direction),
            _of_datagrams(m[m["proto"] != TCP], p[p["proto"] != TCP], direction),
        ]
    made = pd.concat(found).sort_values(["message_id", "at"], kind="stable")
    return made[["message_id", "packet"]].reset_index(drop=True)


def _with_flows(m: pd.DataFrame, p: pd.DataFrame, ends: tuple[str, ...]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both with ``flow``: a number for sender and receiver."""
    m = m.rename(columns=dict(zip(ends, ("saddr", "sport", "daddr", "dport"))))
    known = pd.Index(
        pd.concat([frame[name].astype(object) for frame in (m, p) for name in ("saddr", "daddr")]).unique()
    )
    sides = [
        np.column_stack(
            [known.get_indexer(pd.Index(frame[a].astype(object))) << 16 | frame[b].to_numpy(np.int64) for a, b in (("saddr", "sport"), ("daddr", "dport"))]
        )
        for frame in (m, p)
    ]  # fmt: skip
    _, flow = np.unique(np.concatenate(sides), axis=0, return_inverse=True)
    flow = flow.reshape(-1).astype(np.int64)
    return m.assign(flow=flow[: len(m)]), p.assign(flow=flow[len(m) :])


def _in_time(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Rows sorted by ``t``, a copy of ``column``; only rows that have it."""
    return rows.assign(t=rows[column].astype(np.int64)).query("t >= 0").sort_values("t", kind="stable")


def _nearest(m: pd.DataFrame, p: pd.DataFrame, direction: str) -> pd.DataFrame:
    """Each message with the packet of its flow that arrived nearest to it, or left just after its send call, if there is one.

    A packet belongs to one message, the nearest: others had no packet with a capsule. A capsule's last point, tc's ingress, is just before
    or after the recorder's arrival, depending on how that was recorded.
    """
    rx = direction == "rx"
    left, right = _in_time(m, "arrival_ns" if rx else "call_ns"), _in_time(p, "last_ns" if rx else "born_ns")
    right = right.assign(there=right["t"])[["t", "there", "flow", "packet", "seq", "length"]]
    made = pd.merge_asof(
        left, right, on="t", by="flow", direction="nearest" if rx else "forward", tolerance=_NEAR_NS
    )
    made = made[made["packet"].notna()].astype(dict.fromkeys(("there", "packet", "seq", "length"), np.int64))
    order = np.argsort(np.abs(made["t"].to_numpy() - made["there"].to_numpy()), kind="stable")
    return made.iloc[order].drop_duplicates("packet")


def _signed(difference: Ints) -> Ints:
    return (difference + _HALF) % _ALL - _HALF


def _of_streams(m: pd.DataFrame, p: pd.DataFrame, direction: str) -> pd.DataFrame:
    """TCP. ``at``: a packet's first byte, counted as messages are."""
    near = _nearest(m, p, direction)
    near = near.assign(base=(near["seq"] - near["byte_start"]) % _ALL)
    votes = near.groupby(["conn_id", "base"]).size().rename("n").reset_index().sort_values("n", kind="stable")
    best = votes.groupby("conn_id").agg(base=("base", "last"), n=("n", "last"), all=("n", "sum"))
    best = best[best["n"] * 2 > best["all"]]
    # If a connection was opened again from the same port, the one whose messages are nearest in time.
    rx = direction == "rx"
    times, of = _in_time(m, "arrival_ns" if rx else "call_ns"), _in_time(p, "last_ns" if rx else "born_ns")
    of = pd.merge_asof(
        of, times[["t", "flow", "conn_id", "byte_start"]], on="t", by="flow", direction="nearest"
    )
    of = of[of["conn_id"].isin(best.index) & (of["length"] > 0)].astype(
        {"conn_id": np.int64, "byte_start": np.int64}
    )
    around = of["byte_start"].to_numpy(np.int64)
    base = best["base"].reindex(of["conn_id"]).to_numpy(np.int64)
    at = around + _signed(of["seq"].to_numpy(np.int64) - base - around)
    return _overlaps(m[m["conn_id"].isin(best.index)], of.assign(at=at, to=at + of["length"]))


def _overlaps(m: pd.DataFrame, p: pd.DataFrame) -> pd.DataFrame:
    """One row for each packet and message of one connection that have bytes in common."""
    m = m.sort_values(["conn_id", "byte_start"], kind="stable")
    low = int(min(p["at"].min(), m["byte_start"].min())) if len(m) and len(p) else 0
    span = int(max(p["to"].max(), m["byte_end"].max())) - low + 1 if len(m) and len(p) else 1
    conns = pd.Index(m["conn_id"].unique())
    if len(conns) * span >= 1 << 62:  # no real recording: it cannot be evaluated
        m, p = m.iloc[:0], p.iloc[:0]

    def key(frame: pd.DataFrame, name: str) -> Ints:
        return np.asarray(
            conns.get_indexer(pd.Index(frame["conn_id"])) * span + frame[name].to_numpy(np.int64) - low,
            np.int64,
        )

    first = np.searchsorted(key(m, "byte_end"), key(p, "at"), side="right")
    last = np.searchsorted(key(m, "byte_start"), key(p, "to"), side="left")
    n = np.maximum(last - first, 0)
    row = np.repeat(np.arange(len(p)), n)
    place = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n) + np.repeat(first, n)
    return pd.DataFrame(
        {"message_id": m["message_id"].to_numpy(np.int64)[place], "packet": p["packet"].to_numpy(np.int64)[row], "at": p["at"].to_numpy(np.int64)[row]}
    )  # fmt: skip


def _of_datagrams(m: pd.DataFrame, p: pd.DataFrame, direction: str) -> pd.DataFrame:
    """UDP: the datagram that is nearest in time, if it has the same length."""
    near = _nearest(m, p, direction)
    return near.loc[near["nbytes"] == near["length"], ["message_id", "packet"]].assign(at=0)
