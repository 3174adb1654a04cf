# SPDX-License-Identifier: GPL-2.0-only
"""Recordings of the read-only mode in several kernels: which packet of one kernel is which of another.

Every kernel computes the same key from a packet's fields. A packet is followed from kernel to kernel if its key was seen once at
each point that saw it, in all kernels, and the directions of the points leave one order: where it went out without having come
in, where it came in and went out, where it came in and stayed. All others that several kernels saw are counted and left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..losses import Ledger
from . import packets as made
from .collection import POINTS, Collection
from .records import Records

Ints = npt.NDArray[np.int64]
#: By what a packet did in a kernel: its place on the way.
_SENT, _PASSED, _STAYED = 0, 1, 2
_LOCAL = 3  # sent and received in the same kernel
#: A guest's device at which packets leave the kernel where they come in (nsight_capsule.points).
_INWARD = ("macvtap", "ipvtap")
#: Losses of a kernel alone, which are counted anew over all kernels.
_ALONE = ("hops_match_alone", "hops_match_doubtful")


def prepared(parts: Sequence[Collection], ledger: Ledger) -> list[Collection]:
    """The same kernels, but only with packets that can be followed. A packet is also kept if only one point of a kernel saw it.

    ``packets`` has the column ``key``.
    """
    frames = [
        pd.DataFrame({"key": made.keys(r), "clock": k, "number": r["point"].astype(np.int64)})
        for k, r in enumerate(map(_records, parts))
    ]
    frame = pd.concat(frames, ignore_index=True)
    seen = frame.groupby(["key", "clock", "number"]).size().rename("n").reset_index()
    by = seen.groupby("key").agg(
        n_points=("n", "size"),
        n_clocks=("clock", "nunique"),
        least=("n", "min"),
        most=("n", "max"),
        all=("n", "sum"),
    )
    alone = by["n_points"] == 1
    # In one kernel the n-th at a point is the n-th at another. Kernels do not begin to record at the same time.
    doubtful = ~alone & (by["least"] != by["most"]) | (by["n_clocks"] > 1) & (by["most"] > 1)
    ledger.add("hops_match_alone", int(by.loc[alone, "all"].sum()))
    ledger.add("hops_match_doubtful", int(by.loc[doubtful, "all"].sum()))
    good = by.index[~alone & ~doubtful]
    return [_part(part, good) for part in parts]


def _records(part: Collection) -> Records:
    assert part.sightings is not None
    return part.sightings


def _part(part: Collection, good: pd.Index) -> Collection:
    r = _records(part)
    chosen = r[np.isin(made.keys(r), good.to_numpy())]
    packets, hops = made.of_sightings(chosen, Ledger("hops"), alone_too=True)
    hops = hops.assign(point="", clock=0, bound_ns=0)
    others = [key not in _ALONE for key in part.losses["key"].to_pylist()]
    return replace(part, packets=packets, hops=hops, losses=part.losses.filter(pa.array(others, pa.bool_())))


def links(
    parts: Sequence[Collection], packets: pd.DataFrame, hops: pd.DataFrame, ledger: Ledger
) -> tuple[pd.DataFrame, npt.NDArray[np.bool_]]:
    """``kernels._links`` by keys, and which packets (rows, one for each kernel) to keep: not those whose order of kernels is unknown."""
    by = hops.groupby("packet", sort=True)
    first, last = (by.nth(n).set_index("packet").reindex(range(len(packets))) for n in (0, -1))
    role = _roles(_outward(parts, first), _outward(parts, last))
    ends = pd.DataFrame(
        {"packet": np.arange(len(packets)), "key": packets["key"].to_numpy(), "clock": packets["clock"].to_numpy(np.int64),
         "role": role, "number": last["number"].to_numpy(np.int64), "left_ns": last["ts_ns"].to_numpy(np.int64),
         "came_ns": first["ts_ns"].to_numpy(np.int64), "n": by.size().to_numpy(np.int64)}
    )  # fmt: skip
    many = (ends.groupby("key")["clock"].transform("nunique") > 1).to_numpy(bool)
    twice = ends.duplicated(["key", "role"], keep=False).to_numpy(bool) | (role == _LOCAL)
    unknown = many & pd.Series(twice).groupby(ends["key"].to_numpy()).transform("any").to_numpy(bool)
    ledger.add("hops_match_order_unknown", int(ends["n"].to_numpy()[unknown].sum()))
    rows = ends[many & ~unknown].sort_values(["key", "role"], kind="stable")
    follows = rows["key"].to_numpy()[1:] == rows["key"].to_numpy()[:-1]
    a, b = rows.iloc[:-1][follows], rows.iloc[1:][follows]
    found = pd.DataFrame(
        {"packet_from": a["packet"].to_numpy(), "packet_to": b["packet"].to_numpy(), "clock_from": a["clock"].to_numpy(),
         "clock_to": b["clock"].to_numpy(), "number": a["number"].to_numpy(), "left_ns": a["left_ns"].to_numpy(),
         "came_ns": b["came_ns"].to_numpy()}
    )  # fmt: skip
    return found, ~unknown


def _roles(first_out: npt.NDArray[np.bool_], last_out: npt.NDArray[np.bool_]) -> Ints:
    """From whether a packet's first and last point in a kernel let it out."""
    sent = np.where(last_out, _SENT, _LOCAL)
    return np.where(first_out, sent, np.where(last_out, _PASSED, _STAYED)).astype(np.int64)


def _outward(parts: Sequence[Collection], rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Of each row (kernel and point): whether packets leave the kernel at that point."""
    out = np.zeros((len(parts), POINTS), bool)
    for k, part in enumerate(parts):
        for n, p in part.points.items():
            out[k, n] = (p.direction == "out") != (p.kind in _INWARD)
    return out[rows["clock"].to_numpy(np.int64), rows["number"].to_numpy(np.int64)]
