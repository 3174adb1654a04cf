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
        self._rows: list[dict[str, object]] = []

    def add(self, cause: str, count: int, severity: str, detail: str, remedy: str = "") -> None:
        """Enter ``count`` cases of ``cause``; a count of 0 is not entered."""
        if severity not in SEVERITIES:
            raise ValueError(f"severity {severity!r} is not one of {SEVERITIES}")
        if count:
            self._rows.append(
                {
                    "stage": self.stage,
                    "cause": cause,
                    "severity": severity,
                    "count": int(count),
                    "detail": detail,
                    "remedy": remedy,
                }
            )

    def table(self) -> pa.Table:
        """The ledger as a table, worst first."""
        rows = sorted(self._rows, key=lambda r: SEVERITIES.index(str(r["severity"])))
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
