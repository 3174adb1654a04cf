# SPDX-License-Identifier: GPL-2.0-only
"""The machine that preflight checks, and what it finds there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import programs
from .errors import EXIT_MISSING
from .progress import printable

ERROR, WARNING, INFO = "error", "warning", "info"
_VERSION_TIMEOUT_S = 20


@dataclass(frozen=True)
class Finding:
    """One thing that is missing or weaker than it could be.

    ``severity``: error (no recording), warning (less is recorded), info. ``fix`` names the change of
    ``system.py`` that ``--fix`` makes, and its target; empty if there is none.
    """

    what: str
    severity: str
    hint: str = ""
    fix: tuple[str, ...] = ()
    exit_code: int = EXIT_MISSING


@dataclass
class Machine:
    """The machine that is checked; tests use a made-up one.

    ``path``: search path for programs that run as root. ``callers_path`` only explains why one is missing.
    """

    root: Path = Path("/")
    euid: int = field(default_factory=os.geteuid)
    path: str | None = field(default_factory=programs.search_path)
    callers_path: str = field(default_factory=lambda: os.environ.get("PATH", ""))
    n_cpus: int = field(default_factory=lambda: os.cpu_count() or 1)
    run_version: Callable[[Sequence[str]], tuple[int, str]] | None = None

    def version_of(self, argv: Sequence[str]) -> tuple[int, str]:
        """(exit code, first line) of a program's version option; if it fails, the first line of its error."""
        if self.run_version:
            return self.run_version(argv)
        program = shutil.which(argv[0], path=self.path)
        if program is None:
            return 127, f"{argv[0]}: not found"
        try:
            done = subprocess.run(
                [program, *argv[1:]],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_VERSION_TIMEOUT_S,
                check=False,
                env=None if self.path is None else {**os.environ, "PATH": self.path},
            )
        except (OSError, subprocess.TimeoutExpired) as e:
            return 127, str(e)
        said = (not done.returncode and done.stdout) or done.stderr or done.stdout
        return done.returncode, printable(said.decode(errors="replace").strip().partition("\n")[0])

    def read(self, path: str) -> str | None:
        """A file below ``root``, stripped; None when it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return None

    @property
    def n_possible_cpus(self) -> int:
        """Cores that may ever be plugged in: the kernel gives each of them a ring, even if it is offline."""
        parts = re.findall(r"(\d+)(?:-(\d+))?", self.read("sys/devices/system/cpu/possible") or "")
        return sum(int(last or first) - int(first) + 1 for first, last in parts) or self.n_cpus

    def tracefs(self) -> Path | None:
        """Where tracefs is mounted."""
        for path in ("sys/kernel/tracing", "sys/kernel/debug/tracing"):
            # os.path, because only root may look inside, and Path.is_dir() raises for others.
            if os.path.isdir(self.root / path / "events"):  # noqa: PTH112
                return self.root / path
        return None
