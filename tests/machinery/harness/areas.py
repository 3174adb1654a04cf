# SPDX-License-Identifier: GPL-2.0-only
"""Areas of the tests: each is a directory below tests/, under the directory's name. Also the Makefile targets that each area needs
beside ``build``.

areas.py [AREA,...] prints the targets in the order in which they must be made; without areas, the targets of all areas.
"""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
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
    "record": ("trixie",),
    "bpftrace": ("trixie",),
    "pt_emulation": ("emulation", "decoder", "trixie"),
    "report": ("decoder",),
    "truth": ("decoder",),
}


def areas() -> dict[str, Path]:
    """Directories that contain tests, directly or further below, by name."""
    found = {p.parent for p in TESTS.glob("*/**/test_*.py")}
    found |= {
        above for path in found for above in path.parents if above.is_relative_to(TESTS) and above != TESTS
    }
    return {path.name: path for path in sorted(found)}


def chosen(text: str) -> list[str]:
    """Areas of a comma-separated list; ValueError names an unknown one."""
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in areas():
            raise ValueError(f"{name!r} is no area of the tests (hint: one of {', '.join(sorted(areas()))})")
    return names


def targets(names: list[str]) -> list[str]:
    """Targets that these areas and those below them need; without areas, the targets of all."""
    of = areas()
    tops = [of[name] for name in names] or [TESTS]
    wanted = {
        t for name, needs in NEEDS.items() for t in needs if any(of[name].is_relative_to(top) for top in tops)
    }
    return [t for t in TARGETS if t in wanted]


if __name__ == "__main__":
    try:
        print(" ".join(targets(chosen(",".join(sys.argv[1:])))))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
