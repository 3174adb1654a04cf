# SPDX-License-Identifier: GPL-2.0-only
"""The loss ledger: everything missing, rejected or inferred, by stage and cause. ``losses.csv`` has the texts."""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa

from .errors import BadInput
from .tables import schema

SEVERITIES = ("error", "warning", "info")
_MOST = (1 << 63) - 1  # the maximum of a column; counts of a damaged file may add up to more
_FILE = Path(__file__).with_name("losses.csv")


@dataclass(frozen=True)
class Loss:
    """One kind of loss; words in braces are filled in where it is counted. ``key``: stable, in tables and JSON."""

    key: str
    severity: str
    cause: str
    detail: str
    remedy: str


@cache
def registry() -> dict[str, Loss]:
    """Every kind, by key. Raises ValueError for an unknown severity."""
    with _FILE.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        known = {row["key"]: Loss(**row) for row in rows}
    for loss in known.values():
        if loss.severity not in SEVERITIES:
            raise ValueError(f"{_FILE}: severity {loss.severity!r} of {loss.key} is not one of {SEVERITIES}")
    return known


def of_group(prefix: str) -> list[str]:
    """The rest of each key that begins with ``prefix``.

    >>> "entry_missing" in of_group("activity_softirq_")
    True
    """
    return [key.removeprefix(prefix) for key in registry() if key.startswith(prefix)]


class Ledger:
    """Collects losses of one stage; ``table()`` gives rows of table ``losses``.

    >>> ledger = Ledger("lifetimes")
    >>> ledger.add("read_without_arrival", 3)
    >>> ledger.table()["severity"].to_pylist()
    ['warning']
    """

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self._rows: dict[Loss, list[int]] = {}

    def add(self, key: str, count: int, places: int = 0, **words: object) -> None:
        """Enter ``count`` cases of a registered kind; a count of 0 is not entered, and counts of equal entries add up.

        ``places`` adds up too, and replaces ``{places}``; ``words`` are filled in. An unknown key raises KeyError.
        """
        loss = registry()[key]
        texts = (text.format(places="{places}", **words) for text in (loss.cause, loss.detail, loss.remedy))
        self.told(Loss(key, loss.severity, *texts), count, places)

    def counted(self, prefix: str, counts: Mapping[str, int], but: Collection[str] = ()) -> None:
        """Enter the counts of a program of this package; ``prefix`` plus its key is the key in the registry.

        ``but``: keys that are entered elsewhere. A key that is not in the registry raises BadInput: the program has another
        version, and its count must not be lost silently.
        """
        known = of_group(prefix)
        for key in counts.keys() - set(but):
            if key not in known:
                raise BadInput(
                    f"{prefix}{key}: no such loss; a program is of another version", "run: make build"
                )
            self.add(prefix + key, counts[key])

    def told(self, loss: Loss, count: int, places: int = 0) -> None:
        """Enter a count that another program reported, with that program's own texts."""
        if loss.severity not in SEVERITIES:
            raise ValueError(f"severity {loss.severity!r} is not one of {SEVERITIES}")
        if count:
            entry = self._rows.setdefault(loss, [0, 0])
            entry[0] = min(entry[0] + int(count), _MOST)
            entry[1] += places

    def table(self) -> pa.Table:
        """The ledger as a table, worst first."""
        rows = [
            {
                "key": loss.key,
                "stage": self.stage,
                "cause": loss.cause,
                "severity": loss.severity,
                "count": count,
                "detail": loss.detail.replace("{places}", str(places)),
                "remedy": loss.remedy,
            }
            for loss, (count, places) in self._rows.items()
        ]
        rows.sort(key=lambda row: SEVERITIES.index(str(row["severity"])))
        if not rows:
            return schema.empty("losses")
        return schema.conform("losses", pa.Table.from_pylist(rows))


def merge(tables: list[pa.Table]) -> pa.Table:
    """All ledgers as one, worst first."""
    rows = [r for t in tables for r in t.to_pylist()]
    rows.sort(key=lambda r: (SEVERITIES.index(r["severity"]), r["stage"], r["cause"]))
    if not rows:
        return schema.empty("losses")
    return schema.conform("losses", pa.Table.from_pylist(rows))
