# SPDX-License-Identifier: GPL-2.0-only
"""What lies between two points that a packet passed one after the other: a layer. Its latency, and its part of slow packets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from .collection import Collection, Point


def what(before: Point, after: Point) -> str:
    """A layer in words.

    tc's egress point comes before the queue discipline, so that waiting there is between it and the other end of the link.

    >>> a, b = Point(2, "web:eth0 out", "web", "eth0", "out", "veth"), Point(3, "host:v in", "host", "v", "in", "veth")
    >>> what(a, b)
    'queue and link of web:eth0'
    """
    if before.number == 0:
        return "sending stack"
    place = before.name.rpartition(" ")[0]
    ways = before.direction, after.direction
    if ways == ("out", "in"):
        return f"queue and link of {place}"
    if ways == ("in", "out"):
        return f"forwarding in {after.netns or 'this namespace'}"
    if ways == ("out", "out"):
        return f"encapsulation by {place}" if before.kind == "vxlan" else f"upper device {place}"
    return (
        f"decapsulation into {after.name.rpartition(' ')[0]}"
        if after.kind == "vxlan"
        else f"receiving from {place}"
    )


def passages(collection: Collection) -> pd.DataFrame:
    """One row for each packet and layer: packet, layer (Categorical of ``before -> after``), dur_ns, first and second point.

    The sum of a packet's is its latency.
    """
    hops = collection.hops
    packet, number = hops["packet"].to_numpy(np.int64), hops["number"].to_numpy(np.int64)
    ts = hops["ts_ns"].to_numpy(np.int64)
    same = np.flatnonzero(packet[1:] == packet[:-1])
    pair = number[same] * 32 + number[same + 1]
    known, codes = np.unique(pair, return_inverse=True)
    names = [_name(collection.points, int(n)) for n in known]
    return pd.DataFrame(
        {"packet": packet[same], "layer": pd.Categorical.from_codes(codes, pd.Index(names, dtype=object)), "dur_ns": ts[same + 1] - ts[same],
         "before": number[same], "after": number[same + 1]}
    )  # fmt: skip


def _name(points: Sequence[Point], pair: int) -> str:
    return f"{points[pair // 32].name} -> {points[pair % 32].name}"


def words(collection: Collection, rows: pd.DataFrame) -> dict[str, str]:
    """What each layer of ``passages`` is."""
    pairs = rows.drop_duplicates("layer")
    points = collection.points
    return {
        str(layer): what(points[int(before)], points[int(after)])
        for layer, before, after in zip(pairs["layer"], pairs["before"], pairs["after"])
    }


def chosen(packets: pd.DataFrame, low: float, high: float) -> pd.DataFrame:
    """Packets that arrived, from one percentile of their latency to another; at least one if any arrived."""
    whole = packets[packets["arrived"]].sort_values("latency_ns", kind="stable")
    n = len(whole)
    first = min(int(np.floor(n * low / 100)), max(n - 1, 0))
    last = max(int(np.ceil(n * high / 100)), first + 1)
    return whole.iloc[first:last]


def excess(
    collection: Collection, rows: pd.DataFrame, slow: pd.DataFrame, usual: pd.DataFrame
) -> pd.DataFrame:
    """By layer, what slow packets spent there above the median of usual ones: layer, excess_ns (sum), share, n.

    A layer that usual packets did not pass counts with all of its time. Largest first; shares are of the sum of all excess
    that is positive.
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


def by_second(packets: pd.DataFrame) -> pd.DataFrame:
    """Section 4.2 of the paper: per second of birth the mean beside single packets: second, n, mean_ns, p50_ns, max_ns, over_mean.

    ``over_mean``: packets slower than five times their second's mean, which the mean does not show.
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
