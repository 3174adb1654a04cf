# SPDX-License-Identifier: GPL-2.0-only
"""Categories of causes, from a CSV that users may edit (Table 1 of the paper)."""

from __future__ import annotations

import csv
import fnmatch
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput

BUILT_IN = Path(__file__).with_name("categories.csv")
MAX_ROWS = 100_000


@dataclass(frozen=True)
class Category:
    """One row: anomalies of ``kind`` whose subject matches ``pattern``."""

    kind: str
    pattern: str
    category: str
    advice: str


def load(path: str | Path | None = None) -> list[Category]:
    """The rows of a categories file in order; the built-in one when ``path`` is None.

    Lines that start with ``#`` are comments. Raises BadInput naming the line at fault.
    """
    path = Path(path or BUILT_IN)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: categories cannot be read: {error}", "give a CSV text file") from error
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = next(csv.reader([line]))
        if len(fields) != 4 or not fields[2]:
            raise BadInput(
                f"{path}:{number}: expected kind,pattern,category,advice",
                f"copy {BUILT_IN} and edit the copy",
            )
        rows.append(Category(*fields))
        if len(rows) > MAX_ROWS:
            raise BadInput(f"{path}: more than {MAX_ROWS} rows", "use patterns")
    return rows


def categorise(rows: list[Category], kind: str, subject: str) -> tuple[str, str]:
    """Category and advice of one kind of anomaly: the first row that fits.

    >>> categorise([Category("thread", "*", "{name}", "pin it")], "thread", "nginx")
    ('nginx', 'pin it')
    """
    for row in rows:
        if row.kind in ("*", kind) and fnmatch.fnmatchcase(subject, row.pattern):
            return row.category.replace("{name}", subject), row.advice
    return "Other", ""
