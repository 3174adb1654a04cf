# SPDX-License-Identifier: GPL-2.0-only
from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest
from machinery.harness import capabilities
from machinery.testbed.turn import turn

from capsule.bed import Bed
from conftest import skip_or_fail


@pytest.fixture(scope="module")
def one_capsule(request: pytest.FixtureRequest) -> Iterator[None]:
    """TCP options come from a program that covers the whole machine, and runs of nsight-capsule remove each other's marks
    from connections, so only one runs at a time. Files that measure have the machine's turn too.
    """
    measures = any(m.name == "alone" for m in request.node.iter_markers())
    with turn() if measures else contextlib.nullcontext(), turn("capsule"):
        yield


@pytest.fixture(scope="module")
def bed(one_capsule: None) -> Iterator[Bed]:
    """The virtual network, built once per file."""
    if os.geteuid():
        skip_or_fail("root", "network namespaces need root")
    if why := capabilities.programs("ip", "ethtool", "tc", "nft")():
        skip_or_fail("testbed", why)
    made = Bed()
    made.clear()
    try:
        made.build()
        yield made
    finally:
        made.clear()


@pytest.fixture
def everywhere(bed: Bed) -> list[str]:
    """Options that put points on every device of the network."""
    return [word for place in ("a", "h1", "h2", "b") for word in ("--netns", bed.name(place))]
