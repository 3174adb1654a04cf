# SPDX-License-Identifier: GPL-2.0-only
"""The clock reader's command line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from . import programs

PROGRAM = "nsight-clock"
FIRST_LINE = b"#nsight-clock "


def find(path: str | None = None) -> str | None:
    """The program: from this package, else from ``path``."""
    return programs.own_or_on_path(PROGRAM, path)


def argv(program: str, output: Path, phc_indices: Iterable[int]) -> list[str]:
    """Reads until it gets a signal; also reads every PHC of the recorded interfaces."""
    command = [program, "-o", str(output)]
    for index in sorted(set(phc_indices)):
        command += ["--phc", f"/dev/ptp{index}"]
    return command


def has_started(output: Path) -> bool:
    """Whether the first line has been written."""
    try:
        with open(output, "rb") as f:
            head = f.read(4096)
    except OSError:
        return False
    return head.startswith(FIRST_LINE) and b"\n" in head
