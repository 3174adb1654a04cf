# SPDX-License-Identifier: GPL-2.0-only
"""Dependencies between modules of programs in C and in Rust, read from their source without a compiler."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

CRATE = "nsight_decode"

Module = tuple[str, ...]
Graph = dict[str, set[str]]


def c(files: dict[Path, str]) -> Graph:
    """The graph of C files by path: a module is NAME.c, NAME.h or both, and uses the modules whose headers it includes."""
    graph: Graph = {str(path.with_suffix("")): set() for path in files}
    for path, text in files.items():
        for name in re.findall(r'^#include "([^"]+)"', text, re.M):
            header = Path(os.path.normpath(path.parent / name))
            if header in files and header.with_suffix("") != path.with_suffix(""):
                graph[str(path.with_suffix(""))].add(str(header.with_suffix("")))
    return graph


def rust(files: dict[str, str]) -> Graph:
    """The graph of a crate's files by their paths below src/."""
    return Crate(files).graph()


def _code(text: str) -> str:
    """Source without comments, and without code only for tests or fuzz targets, which is last in a file or in a separate file."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"#\[cfg\((?:test|fuzzing)\)\]\s*(?:pub )?mod \w+;", "", text)
    return re.split(r"#\[cfg\(test\)\]\s*mod \w+ \{", text)[0]


def _paths(tree: str) -> Iterator[str]:
    """The paths of a use declaration: ``a::{b, c::{d, e}}`` has three."""
    if not (group := re.fullmatch(r"\s*(.*?)\{(.*)\}\s*", tree, re.S)):
        yield re.sub(r"\s+as\s+\w+", "", tree).strip()
        return
    inner, depth = "", 0
    for char in group[2] + ",":
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == "," and not depth:
            if inner.strip():
                yield from (group[1] + path for path in _paths(inner))
            inner = ""
        else:
            inner += char


class Crate:
    """``of``: the code of each module."""

    def __init__(self, files: dict[str, str]) -> None:
        self.of = {self._name(path): _code(text) for path, text in files.items()}

    @staticmethod
    def _name(path: str) -> Module:
        parts = path.removesuffix(".rs").split("/")
        return tuple(parts[:-1] if parts[-1] == "mod" else parts)

    def _absolute(self, module: Module, path: str) -> Module | None:
        """Resolve a path as written in ``module``; None: it is in another crate."""
        first, *rest = path.split("::")
        base = () if module in (("lib",), ("main",)) else module
        if first in ("crate", CRATE):
            return tuple(rest)
        if first == "super":
            return self._absolute(base[:-1], "::".join(["self", *rest]))
        if first == "self":
            return self._absolute(base, "::".join(rest)) if rest[:1] == ["super"] else (*base, *rest)
        return (*base, first, *rest) if (*base, first) in self.of else None

    def _uses(self, module: Module) -> Iterator[tuple[bool, str]]:
        """Paths, and whether other modules can find their targets here."""
        text = self.of[module]
        declaration = re.compile(r"(pub(?:\([^)]*\))? +)?\buse\s+([^;]+);")
        for public, tree in declaration.findall(text):
            yield from ((bool(public), path) for path in _paths(tree))
        for path in re.findall(r"(?<![\w:])\w+(?:::\w+)+", declaration.sub("", text)):
            yield False, path

    def _defined(self, path: Module) -> Module | None:
        """The module that contains the target of a path."""
        at = max((n for n in range(len(path) + 1) if path[:n] in self.of), default=0)
        if not at:
            return None
        for public, used in self._uses(path[:at]) if at < len(path) else ():
            slow = self._absolute(path[:at], used)
            if public and slow and slow[-1] == path[at]:
                return self._defined(slow)
        return path[:at]

    def graph(self) -> Graph:
        """The modules that each module uses."""
        return {".".join(module): set(map(".".join, self._used(module))) for module in self.of}

    def _used(self, module: Module) -> set[Module]:
        absolute = (self._absolute(module, path) for _, path in self._uses(module))
        return {found for path in absolute if path and (found := self._defined(path))} - {module}
