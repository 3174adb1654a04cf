# SPDX-License-Identifier: GPL-2.0-only
"""Modules of nsight-decode that use each other in a circle: there is none, of files and of folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tools/nsight-decode/src"
CRATE = "nsight_decode"

Module = tuple[str, ...]
Graph = dict[Module, set[Module]]


def _code(text: str) -> str:
    """Without comments, and without what only tests or fuzz targets have, which stands last in a file or in a file of its own."""
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
        """Of a path as ``module`` writes it; None: of another crate."""
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
        """Paths, and whether other modules find here what they lead to."""
        text = self.of[module]
        declaration = re.compile(r"(pub(?:\([^)]*\))? +)?\buse\s+([^;]+);")
        for public, tree in declaration.findall(text):
            yield from ((bool(public), path) for path in _paths(tree))
        for path in re.findall(r"(?<![\w:])\w+(?:::\w+)+", declaration.sub("", text)):
            yield False, path

    def _defined(self, path: Module) -> Module | None:
        """The module that has what a path leads to."""
        at = max((n for n in range(len(path) + 1) if path[:n] in self.of), default=0)
        if not at:
            return None
        for public, used in self._uses(path[:at]) if at < len(path) else ():
            target = self._absolute(path[:at], used)
            if public and target and target[-1] == path[at]:
                return self._defined(target)
        return path[:at]

    def graph(self) -> Graph:
        """Which modules each uses."""
        graph: Graph = {}
        for module in self.of:
            absolute = [self._absolute(module, path) for _, path in self._uses(module)]
            graph[module] = {found for path in absolute if path and (found := self._defined(path))} - {module}
        return graph


def circle(graph: Graph) -> list[Module]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def folders(graph: Graph) -> Graph:
    """The same of the modules directly below the crate."""
    merged: Graph = {}
    for module, used in graph.items():
        merged.setdefault(module[:1], set()).update({other[:1] for other in used} - {module[:1]})
    return merged


@pytest.fixture(scope="module")
def crate() -> Crate:
    paths = [path for path in SOURCE.rglob("*.rs") if path.name not in ("tests.rs", "fuzz.rs")]
    return Crate({str(path.relative_to(SOURCE)): path.read_text() for path in paths})


def test_no_files_use_each_other_in_a_circle(crate: Crate) -> None:
    graph = crate.graph()
    assert graph[("code", "kernel")] >= {
        ("packets", "index"),
        ("files",),
        ("perfdata", "layout"),
    }  # it finds uses
    assert sum(map(len, graph.values())) > 150
    assert circle(graph) == []


def test_no_folders_use_each_other_in_a_circle(crate: Crate) -> None:
    merged = folders(crate.graph())
    assert merged[("pt",)] >= {("code",), ("edges",), ("perfdata",)}
    assert circle(merged) == []


@pytest.mark.parametrize(
    "files",
    [
        {"a.rs": "use crate::b::{self, C};", "b.rs": "fn f() { crate::a::g() }"},
        {"a/mod.rs": "mod b; pub use b::B; struct A;", "a/b.rs": "use super::A;"},
        {
            "a/mod.rs": "mod b;\nmod c;",
            "a/b.rs": "use super::c::C;",
            "a/c.rs": "use super::{\n    b::{self, B},\n};",
        },
        {"a/mod.rs": "mod b; pub use b::B;", "a/b.rs": "use crate::d::D;", "d.rs": "use crate::a::B;"},
        {"main.rs": "mod a; mod b;", "a.rs": "use nsight_decode::b::B;", "b.rs": "use crate::a;"},
    ],
)
def test_a_circle_is_found(files: dict[str, str]) -> None:
    assert circle(Crate(files).graph())


@pytest.mark.parametrize(
    "files",
    [
        {"a/mod.rs": "mod b; mod c; pub use b::B;", "a/b.rs": "struct B;", "a/c.rs": "use crate::a::B;"},
        {
            "a.rs": "use crate::b::B;",
            "b.rs": "// use crate::a\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}",
        },
    ],
)
def test_what_is_none_is_not_found(files: dict[str, str]) -> None:
    assert not circle(Crate(files).graph())
