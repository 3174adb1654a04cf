# SPDX-License-Identifier: GPL-2.0-only
"""Categories of causes, from CSV files that users may add to (Table 1 of the paper).

Documentation/categories.md describes the files.
"""

from __future__ import annotations

import csv
import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput
from . import kernel_functions
from .symbols import is_kernel, plain_name

BUILT_IN = Path(__file__).with_name("categories.csv")
ADVICE = Path(__file__).with_name("advice.csv")
MAX_ROWS = 100_000
FUNCTION = "function"
OWN = "own"
#: A thread with the name of the application: rows for threads apply to it, in addition to its own rows.
SIBLING, THREAD = "sibling", "thread"
NOWHERE = 1 << 60
_SPECIAL = re.compile(r"[][*?]")


@dataclass(frozen=True)
class Category:
    """One row: anomalies of ``kind`` whose subject matches ``pattern`` in an object matching ``dso``.

    ``advice`` is '' if the advice of the category applies. ``dso`` is '' for any, ``kernel`` for kernel and
    modules, else a shell wildcard for the object's path or its last part.
    """

    kind: str
    pattern: str
    category: str
    advice: str = ""
    dso: str = ""


@dataclass(frozen=True)
class Advice:
    """What to change; the command that shows or changes it (the user fills in words in capitals); how to see that it helped."""

    change: str = ""
    command: str = ""
    check: str = ""


class Categories:
    """All rows in lookup order, and the results so far."""

    def __init__(
        self,
        own: Sequence[Category],
        built_in: Sequence[Category],
        kernel: kernel_functions.KernelFunctions,
        advice: dict[str, Advice],
    ) -> None:
        self._own = _Rows(own)
        self._built_in = _Rows(built_in)
        self._kernel = kernel
        self._advice = advice
        self._known: dict[tuple[str, str, str], tuple[str, str]] = {}

    def advice(self, category: str) -> str:
        """The advice of a category, '' if it has none."""
        return self._advice.get(category, Advice()).change

    def steps(self, kind: str, category: str) -> tuple[str, str]:
        """Command and check of a category; if it is the subject's name, those of the ``kind`` of context. '' if there are none."""
        found = self._advice.get(category) or self._advice.get(f"{{{kind}}}", Advice())
        return found.command, found.check

    def find(self, kind: str, subject: str, dso: str = "") -> tuple[str, str]:
        """Category and advice: from the user's rows, then the kernel's functions, then the built-in rows."""
        key = (kind, subject, dso)
        if key not in self._known:
            self._known[key] = self._find(*key)
        return self._known[key]

    def _find(self, kind: str, subject: str, dso: str) -> tuple[str, str]:
        names = [subject]
        kernel = kind == FUNCTION and is_kernel(dso)
        if kind == FUNCTION:
            plain = plain_name(subject, kernel)
            if plain != subject:
                names.append(plain)
        row = self._own.first(kind, names, dso)
        if row is None and kernel:
            category = self._kernel.category(names[-1])
            if category:
                return category, self.advice(category)
        row = row or self._built_in.first(kind, names, dso)
        if row is None:
            return "Other", self.advice("Other")
        category = row.category.replace("{name}", subject)
        return category, row.advice or self.advice(category)


class _Rows:
    """Rows with a fast search for the first match."""

    def __init__(self, rows: Sequence[Category]) -> None:
        self._rows = rows
        self._anywhere = _Index((n, r) for n, r in enumerate(rows) if not r.dso)
        self._with_object = [(n, r) for n, r in enumerate(rows) if r.dso]
        self._of_object: dict[str, _Index] = {}  # there are few objects, but many functions

    def first(self, kind: str, names: Sequence[str], dso: str) -> Category | None:
        if dso not in self._of_object:
            self._of_object[dso] = _Index((n, r) for n, r in self._with_object if _in_object(r.dso, dso))
        kinds = (SIBLING, THREAD) if kind == SIBLING else (kind,)
        best = min(index.first(of, names) for of in kinds for index in (self._anywhere, self._of_object[dso]))
        return self._rows[best] if best < NOWHERE else None


class _Index:
    """The first match among numbered rows, whatever their object: most patterns are a name, a prefix or a suffix."""

    def __init__(self, rows: Iterable[tuple[int, Category]]) -> None:
        self._kinds: set[str] = set()
        self._all: dict[str, int] = {}
        self._exact: dict[tuple[str, str], int] = {}
        self._prefix: dict[tuple[str, str], int] = {}
        self._suffix: dict[tuple[str, str], int] = {}
        # Lengths to try, by kind and the first letter of a prefix or the last letter of a suffix.
        self._prefixes: dict[tuple[str, str], set[int]] = {}
        self._suffixes: dict[tuple[str, str], set[int]] = {}
        self._wild: dict[str, list[tuple[int, str, re.Pattern[str]]]] = {}
        for number, row in rows:
            kind, pattern = row.kind, row.pattern
            self._kinds.add(kind)
            special = _SPECIAL.search(pattern)
            if special is None:
                self._exact.setdefault((kind, pattern), number)
            elif pattern == "*":
                self._all.setdefault(kind, number)
            elif special.start() == len(pattern) - 1 and pattern.endswith("*"):
                self._prefix.setdefault((kind, pattern[:-1]), number)
                self._prefixes.setdefault((kind, pattern[0]), set()).add(len(pattern) - 1)
            elif pattern.startswith("*") and not _SPECIAL.search(pattern[1:]):
                self._suffix.setdefault((kind, pattern[1:]), number)
                self._suffixes.setdefault((kind, pattern[-1]), set()).add(len(pattern) - 1)
            else:
                regex = re.compile(fnmatch.translate(pattern))
                self._wild.setdefault(kind, []).append((number, pattern[: special.start()], regex))

    def first(self, kind: str, names: Sequence[str]) -> int:
        found = [NOWHERE]
        for of in (kind, "*"):
            if of not in self._kinds:
                continue
            found.append(self._all.get(of, NOWHERE))
            for name in names:
                found.append(self._exact.get((of, name), NOWHERE))
                for length in self._prefixes.get((of, name[:1]), ()):
                    found.append(self._prefix.get((of, name[:length]), NOWHERE))
                for length in self._suffixes.get((of, name[-1:]), ()):
                    found.append(self._suffix.get((of, name[-length:]), NOWHERE))
                for number, head, regex in self._wild.get(of, ()):
                    if name.startswith(head) and regex.match(name):
                        found.append(number)
                        break
        return min(found)


def _in_object(pattern: str, dso: str) -> bool:
    if not pattern:
        return True
    if pattern == "kernel":
        return is_kernel(dso)
    return fnmatch.fnmatchcase(dso, pattern) or fnmatch.fnmatchcase(dso.rpartition("/")[2], pattern)


def load(path: str | Path | None = None) -> Categories:
    """The built-in categories, preceded by the rows of the user's file ``path``.

    Lines that start with ``#`` are comments. Raises BadInput, which names the wrong line.
    """
    own = read(Path(path)) if path is not None else []
    return Categories(own, read(BUILT_IN), kernel_functions.read(), read_advice(ADVICE))


def read(path: Path) -> list[Category]:
    """The rows of one categories file: kind,pattern,category[,advice[,dso]]."""
    rows = []
    for number, fields in _lines(path):
        if fields[:3] == ["kind", "pattern", "category"]:
            continue
        if not 3 <= len(fields) <= 5 or not all(fields[:3]):
            raise BadInput(
                f"{path}:{number}: expected kind,pattern,category,advice,dso (the last two may be left out)",
                f"write the line like those of {BUILT_IN}; a text with commas needs double quotes",
            )
        rows.append(Category(*fields))
        if len(rows) > MAX_ROWS:
            raise BadInput(f"{path}: more than {MAX_ROWS} rows", "use patterns")
    return rows


def read_advice(path: Path = ADVICE) -> dict[str, Advice]:
    """Advice by category, from a file with lines category,advice,command,check."""
    advice: dict[str, Advice] = {}
    for number, fields in _lines(path):
        if len(fields) != 4 or not all(fields) or fields[0] in advice:
            raise BadInput(
                f"{path}:{number}: expected category,advice,command,check, each category once",
                "repair the line",
            )
        advice[fields[0]] = Advice(*fields[1:])
    return advice


def _lines(path: Path) -> Iterable[tuple[int, list[str]]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: categories cannot be read: {error}", "give a CSV text file") from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            yield number, next(csv.reader([line], strict=True))
        except csv.Error as error:
            raise BadInput(
                f"{path}:{number}: {error}", 'put a text with commas or quotes in double quotes, " as ""'
            ) from error


def categorise(categories: Categories, kind: str, subject: str, dso: str = "") -> tuple[str, str]:
    """Category and advice of one kind of anomaly.

    >>> mine = Categories([Category("thread", "*", "{name}", "pin it")], [], kernel_functions.read(), {})
    >>> categorise(mine, "thread", "nginx")
    ('nginx', 'pin it')
    """
    return categories.find(kind, subject, dso)
