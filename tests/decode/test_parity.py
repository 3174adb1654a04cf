# SPDX-License-Identifier: GPL-2.0-only
"""All routes from packets to calls give the same transfers, on every committed capture."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from machinery.pt_emulation.fixtures import unpack

from conftest import skip_or_fail
from decode import edges, parity

pytestmark = pytest.mark.tools

#: perf assigns the wrong thread after an overflow, up to the next context switch (Documentation/decoders.md).
OTHER_THREADS = {"overflow"}


@pytest.fixture(scope="module", params=unpack.names())
def capture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A committed capture."""
    if not shutil.which("perf"):
        skip_or_fail("perf", "perf is not installed")
    if not parity.NATIVE.exists():
        skip_or_fail("decoder", "nsight-decode is not built (hint: make decoder)")
    return unpack.unpack(request.param, tmp_path_factory.mktemp("parity"))


def test_every_route_tells_the_same(capture: Path) -> None:
    found = parity.compare(capture)
    assert len(found) == 3
    for row in found:
        assert row.n > 10_000, row.line()
        if not (row.what.strip() == "its threads" and capture.name in OTHER_THREADS):
            assert not row.differs, row.line()


def test_a_difference_is_found() -> None:
    rows = np.zeros(3, np.dtype(list(edges.EDGE)))
    rows["kind"], rows["from"], rows["tid"] = parity.CALL, [1, 2, 3], 7
    other = rows.copy()
    assert parity.same_rows(rows, other, ("from", "kind")) == (3, "")
    other["from"][1] = 9
    n, differs = parity.same_rows(rows, other, ("from", "kind"))
    assert n == 1 and "row 1" in differs
    assert parity.same_rows(rows, rows[:2], ("from",))[1] == "3 rows, 2 rows"
    other["tid"][2] = 8
    assert parity.strangers(rows, other).startswith("1 of another thread")
