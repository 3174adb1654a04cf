# SPDX-License-Identifier: GPL-2.0-only
"""Committed captures, unpacked once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from machinery.harness import built
from machinery.pt_emulation.fixtures import unpack

from conftest import skip_or_fail
from perf_scripts import runs


@pytest.fixture(scope="session", autouse=True)
def programs() -> None:
    """perf, and the filter."""
    if not shutil.which("perf"):
        skip_or_fail("perf", "perf is not installed")
    built.make(runs.FILTER.parent)


@pytest.fixture(scope="session")
def captures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories of the committed captures by name."""
    directory = tmp_path_factory.mktemp("captures")
    return {name: unpack.unpack(name, directory) for name in unpack.names()}


@pytest.fixture(scope="session")
def edges(captures: dict[str, Path]) -> dict[str, list[runs.Edge]]:
    """perf's own output for each of them."""
    return {name: runs.text_edges(directory) for name, directory in captures.items()}
