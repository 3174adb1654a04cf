# SPDX-License-Identifier: GPL-2.0-only
"""The checker of the report's structure: each fault that it looks for is found in a package made for it."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

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


def test_imports_for_types_only_do_not_count(structure: ModuleType, tmp_path: Path) -> None:
    for_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .high import find\n"
    assert found(structure, tmp_path, {"low.py": for_types}) == []
