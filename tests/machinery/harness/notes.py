# SPDX-License-Identifier: GPL-2.0-only
"""Notes that tests write, in any process, for the end of the run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

#: Environment variable with the directory of the run; tests/run and conftest.py set it.
DIRECTORY = "NSIGHT_TEST_RUN"


def directory() -> Path:
    """Directory of this run: notes, logs of failed tests, JUnit reports."""
    path = Path(os.environ[DIRECTORY])
    path.mkdir(parents=True, exist_ok=True)
    return path


def write(kind: str, **fields: Any) -> None:
    """Append one line; lines of concurrent writers do not mix (one write, O_APPEND).

    A program that runs by itself, not from a test, belongs to no run: then nothing is written.
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
    """All lines of a kind, in the order of writing."""
    path = (run or directory()) / f"{kind}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
