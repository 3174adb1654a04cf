# SPDX-License-Identifier: GPL-2.0-only
"""The monitor reports how nsight-histograms ended, whatever the monitor shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import lines
import pytest

from conftest import ROOT, skip_or_fail

HANGS_S = 120
#: The monitor with another nsight-histograms, whose path is the first argument.
MONITOR = "import sys; from nsight_monitor import cli, loader; loader.find = lambda: sys.argv[1]; sys.exit(cli.main(sys.argv[2:]))"


def monitor(directory: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the monitor with a program of the test in place of nsight-histograms."""
    if os.geteuid():
        skip_or_fail("root", "the monitor needs root")
    path = directory / "nsight-histograms"
    path.write_text(f"#!{sys.executable}\nimport sys\n{text}")
    path.chmod(0o755)
    parts = [str(ROOT / "tools" / name) for name in ("nsight-monitor", "nsight-record")]
    return subprocess.run(
        [sys.executable, "-c", MONITOR, str(path), *options], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=HANGS_S, env={**os.environ, "PYTHONPATH": ":".join(parts)},
    )  # fmt: skip


@pytest.mark.parametrize("option", ["--total", "--top", "--json"])
@pytest.mark.parametrize(("code", "expected"), [(1, 5), (2, 2), (4, 4)])
@pytest.mark.parametrize("prints", ["", lines.header()], ids=["nothing", "header"])
def test_its_own_error_is_said_with_its_code(
    tmp_path: Path, option: str, code: int, expected: int, prints: str
) -> None:
    """It writes more than a pipe holds, as the verifier does, and then the reason of its failure."""
    error = "error: the kernel refused\nhint: run it as root\n"
    text = f"sys.stdout.write({prints!r}); sys.stdout.flush()\nsys.stderr.write('x' * 200_000 + {error!r}); sys.exit({code})\n"
    done = monitor(tmp_path, text, option)
    assert (done.returncode, done.stderr) == (
        expected,
        "error: nsight-histograms: the kernel refused\nhint: run it as root\n",
    )


def test_a_bad_line_of_one_that_works_is_said(tmp_path: Path) -> None:
    done = monitor(tmp_path, "import time\nprint('x', flush=True)\ntime.sleep(1000)\n")
    assert (done.returncode, done.stderr.splitlines()[0]) == (5, "error: a line is no JSON")
