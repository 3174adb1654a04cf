# SPDX-License-Identifier: GPL-2.0-only
"""The command line as users run it, in a separate process; the page in a browser."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from machinery.harness import warm
from machinery.made_up.capture import write_capture

from conftest import skip_or_fail

from .export import browser as browsers
from .export.pages import load, write_page

LAUNCHER = Path(__file__).resolve().parents[2] / "tools/nsight-report/nsight-report"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run() -> Run:
    """Run nsight-report with arguments. With ``wrap`` (put before it) or ``env`` (added to the environment), the launcher
    itself runs; otherwise a warm process."""

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
    """A small analysed capture (machinery/made_up/capture.py)."""
    return write_capture(tmp_path / "small.nsight")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if why := browsers.missing():
        skip_or_fail("browser", why)
    with browsers.browser() as driver:
        yield driver


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,000 messages, 20 of them slow (machinery/made_up/capture.py): the hog delays these 20; 11 of them also wait for others."""
    directory = tmp_path_factory.mktemp("page")
    return write_page(directory / "report.html", write_capture(directory / "small.nsight"), figures=True)


@pytest.fixture
def opened(browser: Any, page: Path) -> Any:
    return load(browser, page)
