# SPDX-License-Identifier: GPL-2.0-only
"""Programs of the evaluation are started by hand and by make: each finds its imports by itself."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PROGRAMS = sorted(
    path
    for path in HERE.glob("*/*.py")
    if "ArgumentParser(" in (text := path.read_text()) and '__name__ == "__main__"' in text
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: str(path.relative_to(HERE)))
def test_a_program_starts_where_nothing_tells_it_where_modules_are(program: Path) -> None:
    assert {"scores.py", "run.py", "bench_recorder.py"} <= {path.name for path in PROGRAMS}
    done = subprocess.run(
        [sys.executable, str(program), "--help"],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0 and "usage: " in done.stdout, done.stdout + done.stderr
