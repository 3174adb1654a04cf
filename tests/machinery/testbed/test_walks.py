# SPDX-License-Identifier: GPL-2.0-only
"""The log of receive processing counts only if it is whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from nsight_demo.processes import BedError

from machinery.testbed.walks import read


def test_rows_are_in_the_order_of_time(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("Attaching 4 probes...\nready\n50 60 1\n10 30 0\nend\n\n")
    assert read(tmp_path / "log").tolist() == [[10, 30, 0], [50, 60, 1]]


@pytest.mark.parametrize(
    "text", ["ready\n10 30 0\n", "ready\n10 30 0\nLost 5 events\nend\n"], ids=["cut", "lost"]
)
def test_a_log_that_lacks_rows_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "log").write_text(text)
    with pytest.raises(BedError, match="not a complete log"):
        read(tmp_path / "log")
