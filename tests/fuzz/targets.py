# SPDX-License-Identifier: GPL-2.0-only
"""The fuzz targets: each group's Makefile builds its own and lists them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = HERE.parents[1] / "build" / "fuzz" / "bin"
CORPORA = HERE / "corpus"
#: Rust and libipt; the readers in C; the readers in Python.
GROUPS = ("decode", "native", "readers")
#: Exit code of a group's Makefile if this machine lacks something that the group needs; the Makefile prints what.
UNAVAILABLE = 77


@dataclass(frozen=True)
class Target:
    """One program with libFuzzer's command line. ``timeout``: s that an input may take; ``memory``: MB of the whole process."""

    group: str
    name: str
    max_len: int
    memory: int
    timeout: int
    what: str

    @property
    def label(self) -> str:
        """Unique name, also of its program and of its corpus."""
        return f"{self.group}-{self.name}"

    @property
    def program(self) -> Path:
        """The program that ``make`` builds."""
        return BIN / self.label

    @property
    def corpus(self) -> Path:
        """Committed inputs."""
        return CORPORA / self.label

    def command(self, *options: str) -> list[str]:
        """Its command line, without corpora."""
        words = BIN / f"{self.label}.dict"
        return [
            str(self.program),
            f"-max_len={self.max_len}",
            f"-rss_limit_mb={self.memory}",
            f"-timeout={self.timeout}",
            *([f"-dict={words}"] if words.exists() else []),
            *options,
        ]


def of_group(group: str) -> list[Target]:
    """Output of the group's ``make list``: name, max_len, memory, timeout, and what it reads."""
    argv = ["make", "-s", "-C", str(HERE / group), "list"]
    text = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    found = []
    for line in text.splitlines():
        name, max_len, memory, timeout, what = line.split(maxsplit=4)
        found.append(Target(group, name, int(max_len), int(memory), int(timeout), what))
    return found


def every() -> list[Target]:
    """All targets of all groups."""
    return [target for group in GROUPS for target in of_group(group)]


class BuildError(Exception):
    """A group cannot be built; ``unavailable``: it needs something that this machine cannot have."""

    def __init__(self, text: str, unavailable: bool) -> None:
        super().__init__(text)
        self.unavailable = unavailable


def build(group: str) -> None:
    """Build a group's programs; BuildError says why that is not possible."""
    done = subprocess.run(
        ["make", "-s", "-C", str(HERE / group)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise BuildError(done.stdout[-4000:], f"Error {UNAVAILABLE}" in done.stdout)
