# SPDX-License-Identifier: GPL-2.0-only
"""Call paths of a set of messages with their mean time: the input for flame graphs and call trees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..tables.data_frames import words

#: The root of every path: the side of the hand-off.
ROOTS = {"R": "receive core (R)", "A": "application core (A)", "T": "transmit (T)"}
SEPARATOR = ";"
COLUMNS = ("path", "depth", "name", "kind", "total_ns", "self_ns", "n_calls")


def mean_stacks(lifetimes: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One row per call path of ``lifetimes`` (``Capture.lifetime``), callers before callees; means over all of them.

    path (names joined by ``;``), depth (0 is the side), name, kind,
    total_ns (with callees), self_ns, n_calls. A message without a path counts as zero in the means of that path.
    """
    n = len(lifetimes)
    frames = [frame for frame in lifetimes if len(frame)]
    if not frames:
        return pd.DataFrame({name: [] for name in COLUMNS})
    calls = pd.concat(
        [
            f[["side", "call_id", "parent_id", "symbol", "kind", "within_dur_ns", "within_self_ns"]]
            for f in frames
        ],
        ignore_index=True,
    )
    side = pd.Categorical(words(calls["side"]), categories=list(ROOTS)).codes.astype(np.int64)
    caller = _callers(frames, side)
    name, symbols = pd.factorize(words(calls["symbol"]))
    again, names = pd.factorize(np.array([s.replace(SEPARATOR, ":") for s in symbols], object))
    name = again[name]

    # Paths level by level: a path is its caller's path plus a name. The first numbers are the sides.
    path = np.full(len(calls), -1, np.int64)
    of_path: list[tuple[int, int]] = [(-1, -1)] * len(ROOTS)
    now = np.flatnonzero(caller < 0)
    above = side[now]
    order = np.argsort(caller, kind="stable")
    begin = np.searchsorted(caller[order], np.arange(len(calls) + 1))
    while len(now):
        keys = above * len(names) + name[now]
        found, of = np.unique(keys, return_inverse=True)
        path[now] = len(of_path) + of
        of_path += [(int(key) // len(names), int(key) % len(names)) for key in found]
        counts = begin[now + 1] - begin[now]
        starts = np.repeat(begin[now] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        above = np.repeat(path[now], counts)
        now = order[np.arange(counts.sum()) + starts]
    return _table(of_path, path, calls, names, n)


def _callers(frames: list[pd.DataFrame], side: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Row number (over all frames) of each call's caller in the same lifetime and side, -1 at the top."""
    caller = np.full(len(side), -1, np.int64)
    offset = 0
    for frame in frames:
        number, parent = (frame[name].to_numpy(np.int64) for name in ("call_id", "parent_id"))
        of = side[offset : offset + len(frame)]
        for which in range(len(ROOTS)):
            at = np.flatnonzero(of == which)
            place = pd.Index(number[at]).get_indexer(pd.Index(parent[at]))
            hit = place >= 0
            caller[at[hit] + offset] = at[place[hit]] + offset
        offset += len(frame)
    return caller


def _table(
    of_path: list[tuple[int, int]],
    path: npt.NDArray[np.int64],
    calls: pd.DataFrame,
    names: npt.NDArray[np.object_],
    n: int,
) -> pd.DataFrame:
    size = len(of_path)
    total, own = (
        np.bincount(path, calls[f"within_{what}_ns"].to_numpy(np.float64), size) / n
        for what in ("dur", "self")
    )
    counts = np.bincount(path, minlength=size) / n
    kind = np.full(size, "", object)
    kind[path] = words(calls["kind"])
    paths, depth = list(ROOTS.values()), [0] * len(ROOTS)
    last = list(paths)
    for above, number in of_path[len(ROOTS) :]:
        last.append(str(names[number]))
        paths.append(paths[above] + SEPARATOR + last[-1])
        depth.append(depth[above] + 1)
        if 0 <= above < len(ROOTS):
            total[above] += total[len(paths) - 1]
    frame = pd.DataFrame(
        {"path": paths, "depth": depth, "name": last, "kind": kind,
         "total_ns": total, "self_ns": own, "n_calls": counts}
    )  # fmt: skip
    return frame[frame["total_ns"] > 0]


def compared(slow: pd.DataFrame, baseline: pd.DataFrame) -> pd.DataFrame:
    """``mean_stacks`` of two sets side by side, by path: slow_ns, baseline_ns, and the self times and calls of both."""
    columns = ["path", "total_ns", "self_ns", "n_calls"]
    both = slow.merge(baseline[columns], on="path", how="outer", suffixes=("", "_baseline"), sort=False)
    numbers = [
        "total_ns",
        "self_ns",
        "n_calls",
        "total_ns_baseline",
        "self_ns_baseline",
        "n_calls_baseline",
    ]
    both[numbers] = both[numbers].astype(float).fillna(0.0)
    path = both["path"].astype(str)
    return pd.DataFrame(
        {
            "path": path,
            "depth": path.str.count(SEPARATOR),
            "name": [p.rpartition(SEPARATOR)[2] for p in path],
            "kind": both["kind"].astype(object).fillna(""),
            "slow_ns": both["total_ns"],
            "baseline_ns": both["total_ns_baseline"],
            "slow_self_ns": both["self_ns"],
            "baseline_self_ns": both["self_ns_baseline"],
            "slow_calls": both["n_calls"],
            "baseline_calls": both["n_calls_baseline"],
        }
    ).sort_values("path", kind="stable").reset_index(drop=True)  # fmt: skip
