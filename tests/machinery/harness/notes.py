# SPDX-License-Identifier: GPL-2.0-only
"""Notes that tests leave for the end of the run, whatever process they were made in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

#: Names the directory of the run; tests/run and conftest.py set it.
DIRECTORY = "NSIGHT_TEST_RUN"


def directory() -> Path:
    """Directory of this run: notes, logs of failed tests, JUnit reports."""
    path = Path(os.environ[DIRECTORY])
    path.mkdir(parents=True, exist_ok=True)
    return path


def write(kind: str, **fields: Any) -> None:
    """Append one line; lines of processes that write at once do not mix (one write, O_APPEND).

    A program that is run by itself, not by a test, has no run to tell: nothing is written then.
    """
    if DIRECTORY not in os.environ:
        return
    line = json.dumps({"test": os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0], **fields}) + "\n"
    fd = os.open(directory() / f"{kind}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


def read(kind: str, run: Path | None = None) -> list[dict[str, Any]]:
    """All lines of a kind, in the order in which they were written."""
    path = (run or directory()) / f"{kind}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
