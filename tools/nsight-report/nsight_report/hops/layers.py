# SPDX-License-Identifier: GPL-2.0-only
"""A layer is what lies between two consecutive points of a packet. Its latency, and its part of the delay of slow packets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from . import point_classes
from .collection import POINTS, Collection, Point, between


def what(before: Point, after: Point) -> str:
    """The text for a layer.

    tc's egress point comes before the queue discipline, so waiting there is between it and the other end of the link.

    >>> a, b = Point(2, "web:eth0 out", "web", "eth0", "out", "veth"), Point(3, "host:v in", "host", "v", "in", "veth")
    >>> what(a, b)
    'queue and link of web:eth0'
    """
    if before.kernel != after.kernel:
        return f"queue, driver and device from {before.kernel} to {after.kernel}"
    if before.number == 0:
        return f"sending stack of {before.kernel}" if before.kernel else "sending stack"
    place = before.name.rpartition(" ")[0]
    ways = before.direction, after.direction
    if ways == ("out", "in"):
        return f"queue and link of {place}"
    if ways == ("in", "out"):
        return f"forwarding in {after.netns or after.kernel or 'this namespace'}"
    if ways == ("out", "out"):
        return f"encapsulation by {place}" if before.kind == "vxlan" else f"upper device {place}"
    return (
        f"decapsulation into {after.name.rpartition(' ')[0]}"
        if after.kind == "vxlan"
        else f"receiving from {place}"
    )


def passages(collection: Collection) -> pd.DataFrame:
    """One row per packet and layer: packet, layer (Categorical of ``before -> after``), dur_ns and its bound_ns, the keys in
    ``collection.points`` of the first and the second point, and the row of ``collection.hops`` of the second (``hop``).

    The rows of a packet add up to its latency.
    """
    hops = collection.hops
    packet, ts, clock, bound = (
        hops[name].to_numpy(np.int64) for name in ("packet", "ts_ns", "clock", "bound_ns")
    )
    point = clock * POINTS + hops["number"].to_numpy(np.int64)
    stride = POINTS * len(collection.kernels)
    same = np.flatnonzero(packet[1:] == packet[:-1])
    pair = point[same] * stride + point[same + 1]
    known, codes = np.unique(pair, return_inverse=True)
    names = [_name(collection.points, *divmod(int(n), stride)) for n in known]
    return pd.DataFrame(
        {"packet": packet[same], "hop": same + 1, "layer": pd.Categorical.from_codes(codes, pd.Index(names, dtype=object)), "dur_ns": ts[same + 1] - ts[same],
         "before": point[same], "after": point[same + 1],
         "bound_ns": between(collection.apart, clock[same], bound[same], clock[same + 1], bound[same + 1])}
    )  # fmt: skip


def _name(points: Mapping[int, Point], before: int, after: int) -> str:
    return f"{points[before].name} -> {points[after].name}"


def words(collection: Collection, rows: pd.DataFrame) -> dict[str, str]:
    """The text for each layer of ``passages``. Between two points that only annotated packets passed one after the other, there
    may be points that their annotation leaves out."""
    pairs = rows.drop_duplicates("layer")
    points = collection.points
    everywhere = (collection.packets["at"] == point_classes.text(point_classes.EVERYWHERE)).to_numpy(bool)
    whole = set(rows.loc[everywhere[rows["packet"].to_numpy(np.int64)], "layer"].unique())
    return {
        str(layer): what(points[int(before)], points[int(after)])
        if layer in whole
        else f"all from {points[int(before)].name} to {points[int(after)].name}"
        for layer, before, after in zip(pairs["layer"], pairs["before"], pairs["after"])
    }


def chosen(packets: pd.DataFrame, low: float, high: float) -> pd.DataFrame:
    """Packets that arrived, between two percentiles of their latency; at least one if any arrived."""
    whole = packets[packets["arrived"]].sort_values("latency_ns", kind="stable")
    n = len(whole)
    first = min(int(np.floor(n * low / 100)), max(n - 1, 0))
    last = max(int(np.ceil(n * high / 100)), first + 1)
    return whole.iloc[first:last]


def usual(collection: Collection, low: float = 0.25, high: float = 0.75) -> pd.DataFrame:
    """Packets that arrived and were neither fast nor slow among those between the same points: paths differ in length."""
    packets = collection.packets
    code = collection.hops["clock"] * POINTS + collection.hops["number"]
    first, last = (
        code.groupby(collection.hops["packet"]).agg(end).reindex(packets["packet"]).to_numpy()
        for end in ("first", "last")
    )
    whole = packets.assign(first=first, last=last)[packets["arrived"].to_numpy(bool)]
    rank = whole.groupby(["first", "last"])["latency_ns"].rank(method="first", pct=True)
    size = whole.groupby(["first", "last"])["latency_ns"].transform("size")
    return whole[((rank > low) & (rank <= high)) | (size < 4)].drop(columns=["first", "last"])


def excess(
    collection: Collection, rows: pd.DataFrame, slow: pd.DataFrame, usual: pd.DataFrame
) -> pd.DataFrame:
    """By layer, what slow packets spent there above the median of usual ones: layer, excess_ns (sum), share, n.

    A layer that usual packets did not pass counts with all of its time. Largest first; shares are relative to the sum of all
    positive excess.
    """
    median = rows[rows["packet"].isin(usual["packet"])].groupby("layer", observed=True)["dur_ns"].median()
    of_slow = rows[rows["packet"].isin(slow["packet"])]
    above = of_slow["dur_ns"] - of_slow["layer"].astype(str).map(median.rename(str)).fillna(0).astype(
        np.int64
    )
    sums = (
        above.groupby(of_slow["layer"].astype(str)).agg(["sum", "size"]).sort_values("sum", ascending=False)
    )
    positive = float(sums["sum"].clip(lower=0).sum())
    return pd.DataFrame(
        {"layer": sums.index, "excess_ns": sums["sum"].to_numpy(np.int64), "n": sums["size"].to_numpy(np.int64),
         "share": sums["sum"].clip(lower=0).to_numpy(float) / positive if positive else 0.0}
    )  # fmt: skip


def excess_bound(collection: Collection, before: int, after: int) -> int | None:
    """Error bound of ``excess`` of a layer: how far two clocks can have moved against each other. None: unknown.

    Their offset does not matter: it is the same for slow and usual packets. Two points of one kernel: 0.
    """
    total = 0
    ways = [list(_way(collection, point // POINTS)) for point in (before, after)]
    for kernel in set(ways[0]) ^ set(ways[1]):
        offset = collection.crossings[kernel].offset
        if not offset.two_way or offset.wander_ns < 0:
            return None
        total += offset.wander_ns
    return total


def _way(collection: Collection, kernel: int) -> Iterator[int]:
    """Kernels from one to the first, without the first."""
    while kernel:
        yield kernel
        kernel = collection.crossings[kernel].nearer


def by_second(packets: pd.DataFrame) -> pd.DataFrame:
    """Section 4.2 of the paper: per second of birth, the mean next to single packets: second, n, mean_ns, p50_ns, max_ns, over_mean.

    ``over_mean``: packets slower than five times their second's mean, which the mean hides.
    """
    whole = packets[packets["arrived"]]
    if not len(whole):
        return pd.DataFrame(columns=["second", "n", "mean_ns", "p50_ns", "max_ns", "over_mean"])
    second = (whole["born_ns"] - whole["born_ns"].min()) // 1_000_000_000
    by = whole["latency_ns"].groupby(second)
    over = (whole["latency_ns"] > 5 * by.transform("mean")).groupby(second).sum()
    return pd.DataFrame(
        {"second": by.size().index, "n": by.size().to_numpy(), "mean_ns": by.mean().to_numpy(np.int64),
         "p50_ns": by.median().to_numpy(np.int64), "max_ns": by.max().to_numpy(np.int64), "over_mean": over.to_numpy()}
    )  # fmt: skip


def bursts(packets: pd.DataFrame, times: float = 5.0, gap_ns: int = 1_000_000) -> pd.DataFrame:
    """Runs of packets slower than ``times`` the median, no further apart than ``gap_ns``: start_ns (born), dur_ns, n, max_ns."""
    whole = packets[packets["arrived"]].sort_values("born_ns", kind="stable")
    slow = whole[whole["latency_ns"] > times * whole["latency_ns"].median()] if len(whole) else whole
    run = (slow["born_ns"].diff() > gap_ns).cumsum()
    by = slow.groupby(run)
    found = pd.DataFrame(
        {"start_ns": by["born_ns"].first(), "dur_ns": by["last_ns"].max() - by["born_ns"].first(), "n": by.size(),
         "max_ns": by["latency_ns"].max()}
    )  # fmt: skip
    return found[found["n"] > 1].sort_values("max_ns", ascending=False, kind="stable").reset_index(drop=True)
