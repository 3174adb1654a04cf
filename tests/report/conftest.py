# SPDX-License-Identifier: GPL-2.0-only
"""Runs the command line as users do: the launcher, in a process of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .synthetic import write_capture

LAUNCHER = Path(__file__).resolve().parents[2] / "tools/nsight-report/nsight-report"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run() -> Run:
    """Run nsight-report with arguments; ``wrap`` is put before it, ``env`` added to the environment."""

    def call(
        *args: object, wrap: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*wrap, str(LAUNCHER), *map(str, args)],
            capture_output=True,
            text=True,
            env={**os.environ, **(env or {})},
            timeout=300,
        )

    return call


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A small analysed capture (see synthetic.py)."""
    return write_capture(tmp_path / "small.nsight")
