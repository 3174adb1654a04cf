# SPDX-License-Identifier: GPL-2.0-only
"""The checker of the report's structure finds each kind of fault in a package made for it."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from docs import module_graphs

ROOT = Path(__file__).resolve().parents[2]

LIST = """\
<!-- packages: each imports only from lines above its own -->

    low other    what it is
    high         the same, in more words

"""
GOOD = {
    "__init__.py": "from .high import find\n",
    "low.py": "def f() -> int:\n    return 1\n",
    "other.py": "",
    "high/__init__.py": "from .find import find\n",
    "high/find.py": "from ..low import f\n\ndef find() -> int:\n    from .. import other\n    return f()\n",
}


@pytest.fixture(scope="module")
def structure() -> ModuleType:
    loader = SourceFileLoader("structure", str(ROOT / "tests/structure"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def found(structure: ModuleType, directory: Path, changed: dict[str, str], text: str = LIST) -> list[str]:
    for name, content in (GOOD | changed).items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return list(structure.faults(directory, text))


def test_a_package_that_is_as_its_list_says_has_no_fault(structure: ModuleType, tmp_path: Path) -> None:
    assert found(structure, tmp_path, {}) == []


@pytest.mark.parametrize(
    ("changed", "text", "fault"),
    [
        ({"low.py": "from .high import find\n"}, LIST, "low imports high, which is not above it in the list"),
        (
            {"low.py": "def f():\n    from .other import x\n"},
            LIST,
            "low imports other, which is not above it in the list",
        ),
        (
            {"high/a.py": "from . import b\n", "high/b.py": "from .a import x\n"},
            LIST,
            "imports go round: high.",
        ),
        ({"new.py": ""}, LIST, "new: in the tree, and not in the list"),
        ({}, LIST.replace("other ", "other gone "), "gone: in the list, and not in the tree"),
        ({"other.py": "x = 1\n" * 401}, LIST, "other.py: 401 lines, more than 400"),
        (
            {"other.py": "".join(f"def f{n}():\n" + "    x = 1\n" * 9 for n in range(9))},
            LIST,
            "the median function has 10 lines, not below 10",
        ),
    ],
)
def test_each_fault_is_found(
    structure: ModuleType, tmp_path: Path, changed: dict[str, str], text: str, fault: str
) -> None:
    faults = found(structure, tmp_path, changed, text)
    assert any(of.startswith(fault) for of in faults), faults


def test_imports_for_types_only_count_too(structure: ModuleType, tmp_path: Path) -> None:
    for_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .high import find\n"
    faults = found(structure, tmp_path, {"low.py": for_types})
    assert "low imports high, which is not above it in the list" in faults


def test_uses_in_c_and_rust_are_found(structure: ModuleType) -> None:
    c, rust = structure.native_graphs(ROOT / "tools", ROOT / "tools/nsight-decode/src")
    assert rust["code.kernel"] >= {"packets.index", "files", "perfdata.layout"}
    assert structure.top(rust)["pt"] >= {"code", "edges", "perfdata"}
    native = ROOT / "tools/nsight-report/native"
    assert c[str(native / "records")] >= {
        str(native / name) for name in ("samples", "tracepoint_fields", "perf_file")
    }
    assert str(ROOT / "tools/bpf/record") in c[str(native / "raw_file")]
    assert sum(map(len, rust.values())) > 150
    assert sum(map(len, c.values())) > 60
    assert not list(structure.circles(c, rust))


@pytest.mark.parametrize(
    "files",
    [
        {"a.h": '#include "b.h"\n', "b.c": '#include "a.h"\n#include "b.h"\n', "b.h": ""},
        {"x/a.h": '#include "../y/b.h"\n', "y/b.h": '#include <a.h>\n#include "../x/a.h"\n'},
    ],
)
def test_a_circle_in_c_is_found(structure: ModuleType, files: dict[str, str]) -> None:
    graph = module_graphs.c({Path(name): text for name, text in files.items()})
    assert list(structure.circles(graph, {}))


def test_what_is_none_in_c_is_not_found(structure: ModuleType) -> None:
    files = {
        "a.h": "",
        "a.c": '#include "a.h"\n#include "b.h"\n',
        "b.h": '#include "elsewhere.h"\n',
        "b.c": "",
    }
    assert not list(
        structure.circles(module_graphs.c({Path(name): text for name, text in files.items()}), {})
    )


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
def test_a_circle_in_rust_is_found(structure: ModuleType, files: dict[str, str]) -> None:
    assert list(structure.circles({}, module_graphs.rust(files)))


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
def test_what_is_none_in_rust_is_not_found(structure: ModuleType, files: dict[str, str]) -> None:
    assert not list(structure.circles({}, module_graphs.rust(files)))
