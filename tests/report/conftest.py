# SPDX-License-Identifier: GPL-2.0-only
"""Runs the command line as users do, in a process of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import warm

from .synthetic import write_capture

LAUNCHER = Path(__file__).resolve().parents[2] / "tools/nsight-report/nsight-report"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run() -> Run:
    """Run nsight-report with arguments. With ``wrap``, put before it, or ``env``, added to the environment, it is the
    launcher that is run; else a warm process."""

    def call(
        *args: object, wrap: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        if not wrap and not env:
            return warm.run(args)
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
