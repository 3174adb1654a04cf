# SPDX-License-Identifier: GPL-2.0-only
"""Areas of the tests are the directories below tests/; which targets of the Makefile each needs beside ``build``.

areas.py [AREA,...] prints the targets, in the order in which they are to be made; without areas those of all.
"""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
TARGETS = ("deps-kernel", "emulation", "decoder", "fuzzers", "trixie")
NEEDS = {
    "calls": ("decoder",),
    "decode": ("emulation", "decoder"),
    "docs": ("decoder",),
    "fuzz": ("fuzzers",),
    "install": ("decoder",),
    "kernel_patches": ("deps-kernel",),
    "perf_import": ("decoder",),
    "perf_scripts": ("trixie",),
    "probes": ("trixie",),
    "pt_emulation": ("emulation", "decoder", "trixie"),
    "report": ("decoder",),
    "truth": ("decoder",),
}


def areas() -> list[str]:
    """Directories that hold tests."""
    return sorted({p.parent.name for p in TESTS.glob("*/test_*.py")})


def chosen(text: str) -> list[str]:
    """Areas of a list with commas; ValueError names one that is none."""
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in areas():
            raise ValueError(f"{name!r} is no area of the tests (hint: one of {', '.join(areas())})")
    return names


def targets(names: list[str]) -> list[str]:
    """What these areas need; without any, what all need."""
    wanted = {t for name in names or NEEDS for t in NEEDS.get(name, ())}
    return [t for t in TARGETS if t in wanted]


if __name__ == "__main__":
    try:
        print(" ".join(targets(chosen(",".join(sys.argv[1:])))))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
