# SPDX-License-Identifier: GPL-2.0-only
"""Intervals of TSC with one line each: the clock map of one domain, as arrays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import BadInput
from ..tables import schema
from . import fixed

I64 = npt.NDArray[np.int64]

NSEC_PER_SEC = 1_000_000_000
# A boundary may be off by this much before it counts as a step of the clock. The kernel slews
# a clock by 500 ppm at most, 2 us per tick at HZ=250; real steps (settimeofday, NTP) are larger.
STEP_NS = 10_000


@dataclass
class Segments:
    """Columns of table ``clock_map`` for one domain, in order of ``tsc_start``, not overlapping."""

    tsc_start: I64
    tsc_end: I64
    anchor_tsc: I64
    anchor_ns: I64
    anchor_frac: I64
    mult: I64
    shift: I64
    error_ns: I64
    source: npt.NDArray[np.object_]

    @classmethod
    def made_of(cls, columns: Iterable[npt.NDArray[Any]]) -> Segments:
        """From the columns in the order of the fields."""
        return cls(**dict(zip((f.name for f in fields(cls)), columns, strict=True)))

    def __len__(self) -> int:
        return len(self.tsc_start)

    def take(self, rows: npt.NDArray[np.bool_] | I64 | slice) -> Segments:
        """The chosen rows."""
        return Segments.made_of(getattr(self, f.name)[rows] for f in fields(self))

    def ns(self, tsc: I64, row: I64) -> I64:
        """Time shown at ``tsc`` by the line of segment ``row``."""
        return self.anchor_ns[row] + fixed.scale(
            tsc - self.anchor_tsc[row], self.mult[row], self.anchor_frac[row], self.shift[row]
        )

    def tsc(self, ns: I64, row: I64) -> I64:
        """Smallest TSC at which the line of segment ``row`` shows ``ns`` or more."""
        return self.anchor_tsc[row] + fixed.unscale(
            ns - self.anchor_ns[row], self.mult[row], self.anchor_frac[row], self.shift[row]
        )


def empty() -> Segments:
    """No segment."""
    return Segments.made_of([np.zeros(0, np.int64)] * 8 + [np.zeros(0, object)])


def concat(parts: list[Segments]) -> Segments:
    """All parts, in order of TSC."""
    if not parts:
        return empty()
    joined = Segments.made_of(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Segments))
    return joined.take(np.argsort(joined.tsc_start, kind="stable"))


def fill(first: Segments, second: Segments) -> Segments:
    """``first``, and ``second`` in those intervals of TSC that ``first`` leaves open."""
    if not len(first) or not len(second):
        return first if len(first) else second
    last = np.flatnonzero(first.tsc_start[1:] > first.tsc_end[:-1])  # rows followed by a hole
    holes_from = np.concatenate([[np.iinfo(np.int64).min], first.tsc_end[last], first.tsc_end[-1:]])
    holes_to = np.concatenate([first.tsc_start[:1], first.tsc_start[last + 1], [np.iinfo(np.int64).max]])
    parts = [first]
    for start, end in zip(holes_from.tolist(), holes_to.tolist(), strict=True):
        part = second.take((second.tsc_start < end) & (second.tsc_end > start))
        part.tsc_start = np.maximum(part.tsc_start, start)
        part.tsc_end = np.minimum(part.tsc_end, end)
        parts.append(part)
    return concat(parts)


def to_table(maps: dict[str, Segments]) -> pa.Table:
    """The maps of all domains as one ``clock_map`` table."""
    parts = []
    for domain in sorted(maps):
        segments = maps[domain]
        columns: dict[str, object] = {f.name: getattr(segments, f.name) for f in fields(segments)}
        columns["domain"] = pa.array([domain] * len(segments), pa.string())
        columns["source"] = pa.array(segments.source, pa.string())
        parts.append(pa.table(columns))
    if not parts:
        return schema.empty("clock_map")
    table = pa.concat_tables(parts)
    for name in ("domain", "source"):
        table = table.set_column(table.column_names.index(name), name, table[name].dictionary_encode())
    return schema.conform("clock_map", table)


def from_table(table: pa.Table) -> dict[str, Segments]:
    """The maps of a ``clock_map`` table by domain; BadInput if it cannot be a clock map."""
    table = schema.conform("clock_map", table)
    domains = np.asarray(table["domain"].cast(pa.string()).to_pandas(), object)
    columns = {
        f.name: np.asarray(table[f.name].to_numpy(), np.int64) for f in fields(Segments) if f.name != "source"
    }
    source = np.asarray(table["source"].cast(pa.string()).to_pandas(), object)
    maps = {}
    for domain in dict.fromkeys(domains.tolist()):
        rows = np.flatnonzero(domains == domain)
        rows = rows[np.argsort(columns["tsc_start"][rows], kind="stable")]
        segments = Segments.made_of([column[rows] for column in columns.values()] + [source[rows]])
        check(segments, domain)
        maps[domain] = segments
    return maps


def computable(s: Segments) -> npt.NDArray[np.bool_]:
    """Rows whose parameters the arithmetic of ``fixed`` can take."""
    good = (s.mult > 0) & (s.mult < 1 << 32) & (s.shift >= 0) & (s.shift <= 32) & (s.error_ns >= 0)
    good &= (s.anchor_frac >= 0) & (s.anchor_frac < np.left_shift(1, np.clip(s.shift, 0, 32)))
    good &= (s.tsc_start >= 0) & (s.anchor_tsc >= 0) & (s.tsc_end >= s.tsc_start)
    rate = s.mult / np.exp2(np.clip(s.shift, 0, 32).astype(float))
    for edge in (s.tsc_start, s.tsc_end):
        # Only a plausibility limit (half of int64's range), so float is good enough.
        reach = s.anchor_ns.astype(float) + (edge.astype(float) - s.anchor_tsc.astype(float)) * rate
        good &= np.abs(reach) < 2.0**62 * 1.5
    return np.asarray(good)


def check(s: Segments, domain: str) -> None:
    """Raise BadInput unless ``s`` is in order and computable."""
    bad = int(np.count_nonzero(~computable(s)))
    if bad or bool(np.any(s.tsc_start[1:] < s.tsc_end[:-1])):
        raise BadInput(
            f"clock map of {domain}: " + (f"{bad} impossible segments" if bad else "segments overlap"),
            "delete tables/ in the capture and run nsight-report again",
        )
