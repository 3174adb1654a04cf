# SPDX-License-Identifier: GPL-2.0-only
"""Identity of the code that makes a table, so that no old result survives an upgrade or an edit.

The code is a module, the modules of this package that it imports, and so on; CSV lists beside them; and native programs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parent
_NATIVE = _PACKAGE / "bin"
#: Relative imports, at any indentation; names may be in parentheses.
_IMPORT = re.compile(r"^[ ]*from (\.+)([\w.]*) import (\([^)]*\)|[^\n(]+)", re.MULTILINE)
#: Imports that only type checkers read.
_FOR_TYPES = re.compile(r"^if TYPE_CHECKING:\n(?:[ ]+[^\n]*\n|\n)+", re.MULTILINE)


def identity(module: Path, programs: Iterable[str] = ()) -> str:
    """Identity of ``module`` and of these native programs (names); a program that is not built reports that when it runs."""
    digest = hashlib.sha256()
    for path in (*modules(module), *(_NATIVE / name for name in programs)):
        digest.update(path.name.encode() + b"\0" + _content(path))
    return digest.hexdigest()[:16]


def modules(module: Path) -> list[Path]:
    """The module, what it imports of this package (also indirectly), and lists beside these or in directories of their names."""
    found: set[Path] = set()
    waiting = [module.resolve()]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting.extend(_imported(path))
    directories = {directory for path in found for directory in (path.parent, path.with_suffix(""))}
    lists = {table for directory in directories for table in directory.glob("*.csv")}
    return sorted(found | lists)


@cache
def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _imported(path: Path) -> Iterator[Path]:
    text = _FOR_TYPES.sub("", _content(path).decode("utf-8", "replace"))
    for dots, name, names in _IMPORT.findall(text):
        base = path.parent
        for _ in dots[1:]:
            base = base.parent
        base = base.joinpath(*filter(None, name.split(".")))
        for word in re.findall(r"(\w+)(?: as \w+)?", names.partition("#")[0]):
            # Either a module of a package, or a name in a module.
            target = _file(base / word) or _file(base)
            if target:
                yield target


def _file(path: Path) -> Path | None:
    candidates = (path.with_name(f"{path.name}.py"), path / "__init__.py")
    return next((p for p in candidates if p.is_file()), None)
