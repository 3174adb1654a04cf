# SPDX-License-Identifier: GPL-2.0-only
"""The loss ledger: everything missing, rejected or inferred, by stage and cause."""

from __future__ import annotations

import pyarrow as pa

from . import schema

SEVERITIES = ("error", "warning", "info")


class Ledger:
    """Collects losses of one stage; ``table()`` gives rows of ``schema.LOSSES``.

    >>> ledger = Ledger("lifetimes")
    >>> ledger.add("read without arrival", 3, "warning", "their NIC side is unknown", "record earlier")
    >>> ledger.table().num_rows
    1
    """

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self._rows: dict[tuple[str, str, str, str], list[int]] = {}

    def add(
        self, cause: str, count: int, severity: str, detail: str, remedy: str = "", places: int = 0
    ) -> None:
        """Enter ``count`` cases of ``cause``; a count of 0 is not entered, and the same entry again adds up.

        ``places`` adds up too, and stands for ``{places}`` in ``detail``.
        """
        if severity not in SEVERITIES:
            raise ValueError(f"severity {severity!r} is not one of {SEVERITIES}")
        if count:
            entry = self._rows.setdefault((cause, severity, detail, remedy), [0, 0])
            entry[0] += int(count)
            entry[1] += places

    def table(self) -> pa.Table:
        """The ledger as a table, worst first."""
        rows = [
            {
                "stage": self.stage,
                "cause": cause,
                "severity": severity,
                "count": count,
                "detail": detail.replace("{places}", str(places)),
                "remedy": remedy,
            }
            for (cause, severity, detail, remedy), (count, places) in self._rows.items()
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
