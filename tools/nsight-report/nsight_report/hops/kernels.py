# SPDX-License-Identifier: GPL-2.0-only
"""Several directories of nsight-capsule, one per kernel on the packets' path, as one collection in the clock of the first.

A packet is identified by its capsule: birth, number, and when it left the previous kernel. The packet that one kernel saw leave
at that time is the packet that the next one saw arrive. In the read-only mode, it is its key (``sightings``). The same packets show the
relation of the clocks (``offsets``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..errors import BadInput
from ..losses import Ledger
from . import offsets, references, sightings
from .collection import POINTS, Collection, Crossing, between
from .offsets import UNKNOWN

Ints = npt.NDArray[np.int64]
_KEY = ["birth", "number16", "proto", "time"]
_LOW = 0xFFFFFFFF
MOST_KERNELS = 64


@dataclass(frozen=True)
class _Tree:
    """How each kernel but the first is connected with one that is closer to the first."""

    crossings: dict[int, Crossing] = field(default_factory=dict)

    def way(self, kernel: int) -> Iterator[int]:
        """The path from a kernel to the first one, without the first."""
        while kernel:
            yield kernel
            kernel = self.crossings[kernel].nearer

    def to_first(self, kernel: int, ns: Ints) -> tuple[Ints, Ints]:
        """Times of a kernel in the first one's clock, and the error bound of each."""
        total = np.zeros(len(ns), np.int64)
        for step in self.way(kernel):
            ns, bound = self.crossings[step].offset.back_to_a(ns)
            total = np.where((bound < 0) | (total < 0), UNKNOWN, total + bound)
        return ns, total

    def apart(self, n: int) -> npt.NDArray[np.bool_]:
        """By two kernels: whether neither is on the other's path to the first, so that both bounds count."""
        ways = [{0, *self.way(k)} for k in range(n)]
        return np.array([[a not in ways[b] and b not in ways[a] for a in range(n)] for b in range(n)])


def joined(parts: Sequence[Collection]) -> Collection:
    """One collection from several. Raises BadInput if no packet passed between them."""
    _check(parts)
    ledger = Ledger("hops")
    match = any(part.match for part in parts)
    if match:
        parts = sightings.prepared(parts, ledger)
    packets, hops = _stacked(parts)
    if match:
        links, keep = sightings.links(parts, packets, hops, ledger)
        hops = hops[keep[hops["packet"].to_numpy(np.int64)]]
    else:
        links = _links(packets, hops, ledger)
    tree = _tree(parts, hops, links, ledger)
    root, depth = _chains(len(packets), links)
    hops = _in_first_clock(hops, tree, root, depth)
    apart = tree.apart(len(parts))
    packets, hops = _whole(packets, hops, links, root, depth, apart, ledger)
    found = [crossing.offset for crossing in tree.crossings.values()]
    ledger.add("hops_clocks_contradict", sum(offset.contradictions for offset in found))
    ledger.add("hops_clocks_one_way", sum(not offset.two_way for offset in found))
    points = {
        k * POINTS + n: p.within(part.kernels[0])
        for k, part in enumerate(parts)
        for n, p in part.points.items()
    }
    codes = hops["clock"].to_numpy(np.int64) * POINTS + hops["number"].to_numpy(np.int64)
    known, places = np.unique(codes, return_inverse=True)
    names = pd.Categorical.from_codes(
        places, pd.Index([points[int(code)].name for code in known], dtype=object)
    )
    return replace(
        parts[0], points=points, counts={k * POINTS + n: of for k, p in enumerate(parts) for n, of in p.counts.items()},
        match=match, cut=any(part.cut for part in parts), packets=packets, hops=hops.assign(point=names),
        losses=pa.concat_tables([*(part.losses for part in parts), ledger.table()]),
        kernels=tuple(part.kernels[0] for part in parts), crossings=tree.crossings, apart=apart,
        boot_ids=tuple(part.boot_ids[0] for part in parts),
    )  # fmt: skip


def _check(parts: Sequence[Collection]) -> None:
    if len(parts) > MOST_KERNELS:
        raise BadInput(f"{len(parts)} directories, at most {MOST_KERNELS}", "leave some out")
    names = [part.kernels[0] for part in parts]
    for part in parts:
        if part.sightings is None and any(other.match for other in parts):
            raise BadInput(
                f"{part.path}: recorded without --match, and others with it: they cannot be joined",
                "record all kernels with --match, or all without",
            )
        if names.count(part.kernels[0]) > 1:
            raise BadInput(
                f"{part.path}: another directory has that name, too", "rename one: it names the kernel"
            )


def _stacked(parts: Sequence[Collection]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Packets and hops of all. A packet's number is its row, one for each kernel that it passed."""
    packets, hops, first = [], [], 0
    for k, part in enumerate(parts):
        texts = {name: part.packets[name].astype(object) for name in ("saddr", "daddr", "at")}
        packets.append(part.packets.assign(packet=part.packets["packet"] + first, clock=k, **texts))
        hops.append(part.hops.drop(columns="point").assign(packet=part.hops["packet"] + first, clock=k))
        first += len(part.packets)
    return pd.concat(packets, ignore_index=True), pd.concat(hops, ignore_index=True)


def _links(packets: pd.DataFrame, hops: pd.DataFrame, ledger: Ledger) -> pd.DataFrame:
    """One row for each packet that went from one kernel to another.

    ``packet_from``, ``packet_to``, ``clock_from``, ``clock_to``; ``number``: the point where it left; ``left_ns``, ``came_ns``: times,
    each in its own clock.
    """
    left = hops.loc[hops["left"], ["packet", "clock", "number", "ts_ns"]]
    left = left.merge(packets[["packet", "birth", "number16", "proto"]], on="packet").assign(
        time=lambda rows: rows["ts_ns"] & _LOW
    )
    came = packets.loc[
        packets["origin"] >= 0, ["packet", "clock", "birth", "number16", "proto", "origin", "born_ns"]
    ]
    came = came.rename(columns={"origin": "time"})
    twice = left.duplicated(_KEY, keep=False), came.duplicated(_KEY, keep=False)
    ledger.add("hops_crossings_ambiguous", int(twice[0].sum() + twice[1].sum()))
    links = left[~twice[0]].merge(came[~twice[1]], on=_KEY, suffixes=("_from", "_to"))
    links = links[links["clock_from"] != links["clock_to"]]
    ledger.add("hops_came_from_unknown", len(came) - len(links))
    return links.rename(columns={"ts_ns": "left_ns", "born_ns": "came_ns"})


def _tree(parts: Sequence[Collection], hops: pd.DataFrame, links: pd.DataFrame, ledger: Ledger) -> _Tree:
    """From the first kernel to all others, by the packets that passed between them, or a clock that both read. Raises BadInput."""
    known = [references.Kernel(p.kernels[0], p.boot_ids[0], p.references) for p in parts]
    first, last = (
        hops.groupby("clock")["ts_ns"].agg(end).reindex(range(len(parts)), fill_value=0)
        for end in ("min", "max")
    )
    tree, todo = _Tree(), deque([0])
    clocks = links[["clock_from", "clock_to"]].to_numpy(np.int64)
    when = links["left_ns"].to_numpy(np.int64), links["came_ns"].to_numpy(np.int64)

    def sent(a: int, b: int) -> tuple[Ints, Ints]:
        rows = (clocks == (a, b)).all(axis=1)
        return when[0][rows], when[1][rows]

    while todo:
        a = todo.popleft()
        for b in range(1, len(parts)):
            if b in tree.crossings:
                continue
            there, back = sent(a, b), sent(b, a)
            if not len(there[0]) + len(back[0]):
                continue
            spans = [(int(first.to_numpy()[k]), int(last.to_numpy()[k])) for k in (a, b)]
            fitted = offsets.fit(there, back, *spans)
            best, wrong = references.better(fitted, (known[a], known[b]), known, there, back, *spans)
            ledger.add("hops_common_clock_wrong", wrong)
            tree.crossings[b] = Crossing(a, best)
            todo.append(b)
    for b in range(1, len(parts)):
        if b not in tree.crossings:
            raise BadInput(
                f"{parts[b].path}: no packet went between it and the kernels before",
                "run nsight-capsule with --match and the same filter and rate in each, with points on the devices between them"
                if parts[b].match
                else "run nsight-capsule with --leave and the same --session N in each, with points on the devices between them",
            )
    return tree


def _chains(n: int, links: pd.DataFrame) -> tuple[Ints, Ints]:
    """For each packet of a kernel: the same packet where it was seen first, and how many kernels were in between."""
    root, depth = np.arange(n), np.zeros(n, np.int64)
    root[links["packet_to"]] = links["packet_from"]
    depth[links["packet_to"]] = 1
    for _ in range(MOST_KERNELS.bit_length()):  # forged links may form a circle, which this ends as well
        depth = depth + depth[root]
        root = root[root]
    return root, depth


def _in_first_clock(hops: pd.DataFrame, tree: _Tree, root: Ints, depth: Ints) -> pd.DataFrame:
    """Hops by whole packets, each in the order of its path."""
    packet, ts, bound = (hops[name].to_numpy(np.int64).copy() for name in ("packet", "ts_ns", "bound_ns"))
    for kernel in tree.crossings:
        rows = np.flatnonzero(hops["clock"].to_numpy() == kernel)
        ts[rows], bound[rows] = tree.to_first(kernel, ts[rows])
    made = hops.assign(ts_ns=ts, bound_ns=bound, packet=root[packet], depth=depth[packet])
    return made.sort_values(["packet", "depth"], kind="stable").drop(columns="depth")


def _whole(
    packets: pd.DataFrame,
    hops: pd.DataFrame,
    links: pd.DataFrame,
    root: Ints,
    depth: Ints,
    apart: npt.NDArray[np.bool_],
    ledger: Ledger,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One row per packet, in the order of birth. A packet that left for a recorded kernel, and was not seen there, did not arrive."""
    by = hops.groupby("packet", sort=True)
    first, last = by.nth(0).set_index("packet"), by.nth(-1).set_index("packet")
    order = np.lexsort((depth, root))
    final = pd.Series(order, index=root[order]).groupby(level=0).last().reindex(first.index)
    exits = (links["clock_from"] * POINTS + links["number"]).unique()
    unseen = (last["left"] & (last["clock"] * POINTS + last["number"]).isin(exits)).to_numpy(bool)
    ledger.add("hops_left_not_seen", int(unseen.sum()))
    columns = [rows[name].to_numpy(np.int64) for rows in (first, last) for name in ("clock", "bound_ns")]
    born, ended = first["ts_ns"].to_numpy(np.int64), last["ts_ns"].to_numpy(np.int64)
    made = packets.iloc[first.index.to_numpy(np.int64)].drop(columns="clock").assign(
        born_ns=born, last_ns=ended, latency_ns=ended - born, bound_ns=between(apart, *columns),
        arrived=packets["arrived"].to_numpy(bool)[final] & ~unseen,
    ).sort_values("born_ns", kind="stable")  # fmt: skip
    number = pd.Series(np.arange(len(made)), index=made["packet"].to_numpy())
    made = made.assign(
        packet=np.arange(len(made)), **{n: made[n].astype("category") for n in ("saddr", "daddr", "at")}
    )
    hops = hops.assign(packet=number.reindex(hops["packet"]).to_numpy(np.int64))
    return made.reset_index(drop=True), hops.sort_values("packet", kind="stable").reset_index(drop=True)
