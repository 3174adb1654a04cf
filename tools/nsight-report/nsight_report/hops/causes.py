# SPDX-License-Identifier: GPL-2.0-only
"""Causes of a layer's delay: what held slow packets there longer than usual ones, from captures of the kernels on both sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..interval_joins import Int
from ..names import printable
from ..tables.data_frames import column, words
from .collection import POINTS, Collection, Point
from .cores import AT_WORK, Activity, held, of_threads, taken_out_by

#: Layers that are explained: minimum share of the delay, and maximum number.
_SHARE, _MOST_LAYERS = 0.05, 4
#: Most packets of a layer that are examined, slow and usual ones, evenly spaced; and most parts of their waits (about).
_MOST_PACKETS, _MOST_PARTS = 5_000, 3_000_000
#: Maximum number of examined threads of the process behind a device.
_MOST_THREADS = 64
#: Maximum number of packets that are used to find the process that brought them.
_MOST_ASKED = 200
#: Prefix of the kernel thread that moves packets for the process with this number.
_VHOST = "vhost-"
NOT_KNOWN = "core not known"
NO_QUEUE = ("", "noqueue")


@dataclass(frozen=True)
class _Waits:
    """Packets in one layer: begin and end in the first kernel's clock, and the core on which they left it (-1 unknown)."""

    start: Int
    end: Int
    cpu: Int


def own_clock(collection: Collection, kernel: int, ns: Int) -> Int:
    """Times of the first kernel's clock, converted to the clock of another."""
    steps = []
    while kernel:
        steps.append(collection.crossings[kernel])
        kernel = steps[-1].nearer
    for crossing in reversed(steps):
        ns = ns + crossing.offset.of(ns)[0]
    return ns


def cores_of(hops: pd.DataFrame) -> Int:
    """Core of each hop: its own, or that of the packet's next hop with a known core in the same kernel, since one run mostly takes all."""
    known = hops["cpu"].where(hops["cpu"] >= 0)
    return column(known.groupby([hops["packet"], hops["clock"]]).bfill())


def of_layers(
    collection: Collection,
    rows: pd.DataFrame,
    slow: pd.DataFrame,
    usual: pd.DataFrame,
    excess: pd.DataFrame,
    activities: Mapping[int, Activity],
) -> list[dict[str, Any]]:
    """Causes of layers that delayed slow packets: layer, cause, excess_ns, share, n (examined slow packets that it held).

    ``excess_ns``: how much longer it held all slow packets than as many usual ones; ``share``: of the sum of all causes of the layer.
    ``rows``, ``excess``: as in ``layers``; ``activities``: by kernel. A layer between kernels without a capture is left out.
    """
    if not activities:
        return []
    per_ns = max(activity.contexts.rows_per_ns() for activity in activities.values())
    cores = cores_of(collection.hops)
    found: list[dict[str, Any]] = []
    for layer in excess[excess["share"] >= _SHARE].head(_MOST_LAYERS).itertuples():
        of = rows[(rows["layer"] == layer.layer).to_numpy(bool)]
        ends = int(of["before"].iloc[0]), int(of["after"].iloc[0])
        if not {point // POINTS for point in ends} & set(activities):
            continue
        behind = _behind(collection, ends[0], cores, activities)
        means = [
            _held_by(collection, ends, _waits(collection, of, packets, cores, per_ns), activities, behind)
            for packets in (slow, usual)
        ]
        n_slow, n_usual = (int(of["packet"].isin(packets["packet"]).sum()) for packets in (slow, usual))
        sums = means[0][0] * n_slow
        beside = means[1][0].reindex(sums.index).fillna(0) * n_slow if n_usual else sums * 0
        more = (sums - beside).clip(lower=0).sort_values(ascending=False)
        total = float(more.sum())
        found += [
            {
                "layer": str(layer.layer), "cause": str(text), "excess_ns": int(ns), "share": float(ns) / total,
                "n": int(means[0][1].get(text, 0)),
            }
            for text, ns in more.items() if ns > 0
        ]  # fmt: skip
    return found


def _waits(
    collection: Collection, of: pd.DataFrame, packets: pd.DataFrame, cores: Int, per_ns: float
) -> _Waits:
    """Waits of some packets; fewer if they are long: ``per_ns`` parts per ns."""
    hop = of.loc[of["packet"].isin(packets["packet"]), "hop"].to_numpy(np.int64)
    ts = collection.hops["ts_ns"].to_numpy(np.int64)
    parts = float((ts[hop] - ts[hop - 1]).sum()) * per_ns
    most = min(_MOST_PACKETS, int(len(hop) * _MOST_PARTS / parts) + 1 if parts > 0 else _MOST_PACKETS)
    if len(hop) > most:
        hop = hop[np.linspace(0, len(hop) - 1, most).astype(np.int64)]
    return _Waits(ts[hop - 1], ts[hop], cores[hop])


def _held_by(
    collection: Collection,
    ends: tuple[int, int],
    waits: _Waits,
    activities: Mapping[int, Activity],
    behind: Int,
) -> tuple[pd.Series[float], pd.Series[int]]:
    """By cause: ns per packet, and how many packets it held."""
    before, after = (collection.points[point] for point in ends)
    from_kernel, to_kernel = (point // POINTS for point in ends)
    n = len(waits.start)
    since, known = waits.end.copy(), np.ones(n, bool)
    parts: list[tuple[Int, Int, npt.NDArray[np.object_]]] = []
    if to_kernel in activities:
        start, end = (own_clock(collection, to_kernel, ns) for ns in (waits.start, waits.end))
        told = held(activities[to_kernel], waits.cpu, start, end)
        since, known = waits.start + told.since - start, told.known
        parts.append((told.parts.wait, told.parts.end - told.parts.start, told.parts.text))
        parts.append(_whole(np.flatnonzero(~known), waits, NOT_KNOWN))
    if from_kernel != to_kernel and len(behind):
        until = np.where(known, since, waits.start)
        start, end = (own_clock(collection, from_kernel, ns) for ns in (waits.start, until))
        told_of = _kept(activities[from_kernel], behind, start, end)
        parts.append(told_of)
        since = since - np.bincount(told_of[0], told_of[1], minlength=n).astype(np.int64)
    at = np.flatnonzero(known & (since > waits.start))
    parts.append((at, (since - waits.start)[at], np.full(len(at), _nobody(before, after), object)))
    wait, ns, text = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    frame = pd.DataFrame({"wait": wait, "ns": ns, "text": text}).groupby(["text", "wait"])["ns"].sum()
    by = frame.groupby("text")
    return by.sum() / max(n, 1), by.size()


def _whole(at: Int, waits: _Waits, text: str) -> tuple[Int, Int, npt.NDArray[np.object_]]:
    return at, (waits.end - waits.start)[at], np.full(len(at), text, object)


def _kept(activity: Activity, tids: Int, start: Int, end: Int) -> tuple[Int, Int, npt.NDArray[np.object_]]:
    """What kept the process behind a device (a guest's) from its packets: for the thread that was kept longest."""
    n = len(start)
    wait = np.tile(np.arange(n), len(tids))
    parts = of_threads(
        activity, np.arange(len(wait)), np.repeat(tids, n), np.tile(start, len(tids)), np.tile(end, len(tids))
    )
    at_work = np.char.endswith(parts.text.astype(str), AT_WORK)
    parts = parts.take(parts.held & ~at_work)
    ns = parts.end - parts.start
    total = np.bincount(parts.wait, ns, minlength=len(wait)).reshape(len(tids), n)
    longest = total.argmax(axis=0) if len(tids) else np.zeros(n, np.int64)
    keep = parts.wait // max(n, 1) == longest[wait[parts.wait]]
    return wait[parts.wait][keep], ns[keep], parts.text[keep]


def _behind(collection: Collection, before: int, cores: Int, activities: Mapping[int, Activity]) -> Int:
    """Threads of the process behind a device, such as a guest's hypervisor: the one that brings most packets that come in by it."""
    kernel, number = divmod(before, POINTS)
    if kernel not in activities or collection.points[before].direction != "out":
        return np.zeros(0, np.int64)
    activity, hops = activities[kernel], collection.hops
    # The points of a device have consecutive numbers.
    came = np.flatnonzero((hops["clock"] == kernel) & (hops["number"] == number - 1))
    came = came[np.linspace(0, len(came) - 1, min(len(came), _MOST_ASKED)).astype(np.int64)]
    at = own_clock(collection, kernel, hops["ts_ns"].to_numpy(np.int64)[came])
    _, how, tid = taken_out_by(activity, cores[came], at)
    brought, n = np.unique(tid[how == "thread"], return_counts=True)
    if not len(brought) or n.max() * 2 <= len(came):
        return np.zeros(0, np.int64)
    rows = activity.threads
    one = rows[(column(rows["tid"]) == brought[n.argmax()])]
    pids = np.unique(column(one["pid"]))
    names = [
        name for name in words(one["comm"]) if name.startswith(_VHOST) and name[len(_VHOST) :].isdecimal()
    ]
    pids = np.append(pids, [int(name[len(_VHOST) :][:9]) for name in names]).astype(np.int64)
    return np.unique(column(rows["tid"])[np.isin(column(rows["pid"]), pids)])[:_MOST_THREADS]


def _nobody(before: Point, after: Point) -> str:
    """What remains if no core or thread held a packet between two points."""
    place = before.name.rpartition(" ")[0]
    if before.direction != "out":
        return "no core or thread that was recorded"
    beyond = (
        "its link" if before.kernel == after.kernel else f"what is between {before.kernel} and {after.kernel}"
    )
    if before.qdisc not in NO_QUEUE:
        return f"queue discipline {printable(before.qdisc, 32)} of {place}, or {beyond}"
    return f"device of {place}, or {beyond}"
