# SPDX-License-Identifier: GPL-2.0-only
"""Categories of the kernel's functions: the generated table, and the lookup of a name in it."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..errors import BadInput

BUILT_IN = Path(__file__).with_name("kernel-functions.csv")


class KernelFunctions:
    """Category of a kernel function: its exact name first, then the longest prefix.

    A name that begins with underscores and is not in the table is looked up without them: ``__foo`` is mostly
    the inner half of ``foo``.

    >>> table = KernelFunctions({"tcp_*": "TCP", "tcp_gro_*": "Receive processing"})
    >>> table.category("tcp_gro_receive"), table.category("__tcp_push"), table.category("udp_rcv")
    ('Receive processing', 'TCP', '')
    """

    def __init__(self, rows: Mapping[str, str]) -> None:
        self.exact = {p: c for p, c in rows.items() if not p.endswith("*")}
        self.prefixes = {p[:-1]: c for p, c in rows.items() if p.endswith("*")}
        # Lengths to try, longest first, by the first three letters (no prefix is shorter).
        lengths: dict[str, set[int]] = {}
        for prefix in self.prefixes:
            lengths.setdefault(prefix[:3], set()).add(len(prefix))
        self._lengths = {head: tuple(sorted(found, reverse=True)) for head, found in lengths.items()}

    def category(self, name: str) -> str:
        """Category of a name as in the source (see ``symbols.plain_name``); '' if unknown."""
        found = self._find(name)
        return found if found or not name.startswith("_") else self._find(name.lstrip("_"))

    def _find(self, name: str) -> str:
        found = self.exact.get(name)
        if found:
            return found
        for length in self._lengths.get(name[:3], ()):
            if length <= len(name):
                found = self.prefixes.get(name[:length])
                if found:
                    return found
        return ""


def read(path: Path = BUILT_IN) -> KernelFunctions:
    """Read a table that make-kernel-functions wrote. Raises BadInput, which names the wrong line."""
    rows: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{path}: kernel functions cannot be read: {error}", "reinstall nsight-report"
        ) from error
    for number, line in enumerate(lines, 1):
        if line.startswith("#") or not line.strip():
            continue
        fields = next(csv.reader([line]))
        if len(fields) != 2 or not all(fields):
            raise BadInput(
                f"{path}:{number}: expected category,patterns",
                "generate it again: tools/nsight-report/make-kernel-functions",
            )
        rows.update(dict.fromkeys(fields[1].split(), fields[0]))
    return KernelFunctions(rows)


def lines(rows: Mapping[str, str], width: int = 110) -> Iterable[str]:
    """Lines of a table's file: by category, then by pattern, with as many patterns per line as fit.

    >>> list(lines({"tcp_b*": "TCP", "tcp_a": "TCP", "ip_rcv": "Receive"}))
    ['Receive,ip_rcv', 'TCP,tcp_a tcp_b*']
    """
    by_category: dict[str, list[str]] = {}
    for pattern, category in sorted(rows.items()):
        by_category.setdefault(category, []).append(pattern)
    for category, patterns in sorted(by_category.items()):
        line = f"{category},{patterns[0]}"
        for pattern in patterns[1:]:
            if len(line) + 1 + len(pattern) > width:
                yield line
                line = f"{category},{pattern}"
            else:
                line += f" {pattern}"
        yield line
