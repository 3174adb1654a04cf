# SPDX-License-Identifier: GPL-2.0-only
"""A directory of nsight-capsule: manifest and records, as two tables and a list of what is missing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from .. import manifest as manifests
from ..errors import BadInput
from ..losses import Ledger
from ..names import printable
from ..tables import schema
from . import packets as made
from . import records, references
from .offsets import UNKNOWN, Offset
from .references import References

Ints = npt.NDArray[np.int64]
VERSIONS = (1, 2)
#: All points of a kernel have numbers below this.
POINTS = 32
_MOST_POINTS = POINTS - 1
#: Key in counts for outgoing devices that are no points.
_GUARD = POINTS - 1
_AGAIN = "stamp again with nsight-capsule"
#: Counts of nsight-stamp, and the loss for each.
COUNTED = (
    "end_lost",
    "left_lost",
    "dump_lost",
    "match_lost",
    "foreign",
    "forged",
    "not_written",
    "not_stripped",
    "taken_off",
    "unmatchable",
)


@dataclass(frozen=True)
class Point:
    """A point of the manifest; ``kind`` is that of its device. ``kernel``: name of its kernel, if several were recorded.

    ``qdisc``: queue discipline of its device when the recording began.
    """

    number: int
    name: str
    netns: str
    device: str
    direction: str
    kind: str
    kernel: str = ""
    qdisc: str = ""

    def within(self, kernel: str) -> Point:
        """The same point, with a name that is unique among several kernels."""
        return replace(self, name=f"{kernel}/{self.name}", kernel=kernel)


@dataclass(frozen=True)
class Crossing:
    """How the clock of a kernel is known: relative to ``nearer``, a kernel that is closer to the first."""

    nearer: int
    offset: Offset


def between(
    apart: npt.NDArray[np.bool_], clock: Ints, bound: Ints, other_clock: Ints, other_bound: Ints
) -> Ints:
    """Error bounds of differences between times of two kernels, from the bound of each against the first kernel; UNKNOWN if one is.

    ``apart``: by two kernels, whether neither is on the other's path to the first.
    """
    both = np.where(apart[clock, other_clock], bound + other_bound, np.abs(bound - other_bound))
    known = (bound >= 0) & (other_bound >= 0) | (clock == other_clock)
    return np.where(clock == other_clock, 0, np.where(known, both, UNKNOWN)).astype(np.int64)


def _alone() -> npt.NDArray[np.bool_]:
    return np.zeros((1, 1), bool)


@dataclass(frozen=True)
class Collection:
    """``packets`` and ``hops``: tables of these names as frames. ``counts``: nsight-stamp's, by point and name.

    The key of a point is POINTS times its kernel (number of its directory, ``hops.clock``) plus its number. ``crossings``: by
    kernel, all but the first. ``apart``: see ``between``. ``boot_ids``: of each kernel's boot. ``references``: of a single kernel.
    ``sightings``: the records of a single kernel in the read-only mode; None: it has others.
    """

    path: Path
    points: dict[int, Point]
    counts: dict[int, dict[str, int]]
    match: bool
    cut: bool
    packets: pd.DataFrame
    hops: pd.DataFrame
    losses: pa.Table
    kernels: tuple[str, ...]
    boot_ids: tuple[str, ...]
    crossings: dict[int, Crossing] = field(default_factory=dict)
    apart: npt.NDArray[np.bool_] = field(default_factory=_alone)
    references: References = field(default_factory=References)
    sightings: records.Records | None = None

    def arrow(self, name: str) -> pa.Table:
        """Table ``packets`` or ``hops`` in its schema."""
        return schema.conform(name, pa.Table.from_pandas(getattr(self, name), preserve_index=False))

    def total(self, name: str) -> int:
        """The sum of a count over all points."""
        return sum(of.get(name, 0) for of in self.counts.values())


def load(path: Path) -> Collection:
    """Read a directory of nsight-capsule. Raises BadInput."""
    raw = _checked(path, manifests.read(path, "nsight-capsule"))
    points, ledger = _points(path, raw), Ledger("hops")
    cut = raw.get("state") != "complete"
    ledger.add("capsules_were_cut", int(cut))
    counts = _counts(raw, len(points))
    for name in COUNTED:
        ledger.add(f"capsule_{name}", sum(of.get(name, 0) for of in counts.values()))
    for name in ("no_points", "unguarded"):  # devices that came while it ran
        came = raw.get(name)
        ledger.add(f"capsule_{name}", len(came) if isinstance(came, list) else 0)
    found = records.read(path / "capsules", len(points), ledger)
    match = found["kind"] == records.MATCH
    by_fields = bool(len(found)) and bool(match[0])
    ledger.add("hops_records_impossible", int(np.count_nonzero(match != by_fields)))
    found = found[match == by_fields]
    packets, hops = (made.of_sightings if by_fields else made.of_capsules)(found, ledger)
    names = pd.Categorical.from_codes(hops["number"].to_numpy(np.int64), pd.Index([p.name for p in points]))
    hops = hops.assign(point=names, clock=0, bound_ns=0)
    host = raw.get("host")
    boot_id = str(host.get("boot_id") or "")[:64] if isinstance(host, dict) else ""
    kernel = printable(path.resolve().name.removesuffix(".capsules"), 64)
    return Collection(
        path,
        dict(enumerate(points)),
        counts,
        by_fields,
        cut,
        packets,
        hops,
        ledger.table(),
        (kernel,),
        (boot_id,),
        references=references.of(raw.get("common")),
        sightings=found if by_fields or not len(found) else None,
    )


def _checked(path: Path, raw: Any) -> dict[str, Any]:
    if not isinstance(raw, dict) or raw.get("format") != manifests.CAPSULES:
        raise BadInput(
            f"{path}: not a directory of nsight-capsule", "for a capture of nsight-record: nsight-report DIR"
        )
    version = raw.get("version")
    if version not in VERSIONS or isinstance(version, bool):
        raise BadInput(
            f"{path}: format version {str(version)[:20]!r} is unknown (known: {', '.join(map(str, VERSIONS))})",
            "use the nsight-report that belongs to the nsight-capsule that made it",
        )
    return raw


def _points(path: Path, raw: dict[str, Any]) -> tuple[Point, ...]:
    """The points of the manifest, in the order of their numbers. Raises BadInput."""
    rows = raw.get("points")
    if not isinstance(rows, list) or not 1 < len(rows) <= _MOST_POINTS:
        raise BadInput(f"{path}: manifest.json has no list of points", _AGAIN)
    points: list[Point] = []
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or row.get("number") != number:
            raise BadInput(f"{path}: manifest.json: point {number} is not one", _AGAIN)
        points.append(_point(number, {key: printable(row.get(key) or "", 64) for key in _TEXTS}))
    if len({p.name for p in points}) != len(points):
        raise BadInput(f"{path}: manifest.json: two points have one name", _AGAIN)
    return tuple(points)


_TEXTS = ("netns", "device", "direction", "kind", "qdisc")


def _point(number: int, text: dict[str, str]) -> Point:
    if not number:
        return Point(0, "socket", "", "", "socket", "socket")
    place = f"{text['netns']}:{text['device']}" if text["netns"] else text["device"]
    names = {key: text[key] for key in _TEXTS}
    return Point(number, f"{place} {text['direction']}", **names)


def _counts(raw: dict[str, Any], n_points: int) -> dict[int, dict[str, int]]:
    """``counted.counts``; values that are no counts are left out."""
    counted = raw.get("counted")
    counts = counted.get("counts") if isinstance(counted, dict) else None
    made: dict[int, dict[str, int]] = {}
    for number, of in counts.items() if isinstance(counts, dict) else ():
        if (
            isinstance(of, dict)
            and str(number).isdecimal()
            and len(str(number)) < 4
            and (int(number) < n_points or int(number) == _GUARD)
        ):
            made[int(number)] = {str(k): n for k, n in of.items() if type(n) is int and 0 <= n < 1 << 62}
    return made
