# SPDX-License-Identifier: GPL-2.0-only
"""Stages and counts: the document agrees with the list from which the programs are built."""

from __future__ import annotations

import re
from pathlib import Path

from nsight_monitor.snapshots import WITHOUT_WINDOW

ROOT = Path(__file__).resolve().parents[2]
SOURCE = (ROOT / "tools/nsight-monitor/histograms/stages.h").read_text()
DOCUMENT = (ROOT / "Documentation/monitor.md").read_text()


def listed(macro: str) -> str:
    return SOURCE.partition(f"#define {macro}(X)")[2].partition("\n\n")[0]


def table(heading: str) -> set[str]:
    """The backquoted words in the first column of the table below the heading."""
    part = DOCUMENT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return {word for row in re.findall(r"^\|([^|]+)\|", part, re.M) for word in re.findall(r"`([^`]+)`", row)}


def test_every_stage_is_documented_and_no_other() -> None:
    assert table("Stages") == set(re.findall(r'X\(\w+, "([^"]+)"', listed("STAGES")))


def test_every_count_is_documented_and_no_other() -> None:
    counted = {*re.findall(r'X\(\w+, "([^"]+)"', listed("COUNTS")), WITHOUT_WINDOW}
    assert table("What is not measured as usual") == counted


def test_every_tracepoint_and_function_that_a_stage_needs_has_a_program() -> None:
    """host.c loads the program of a section's name; functions have "()" in the list of stages."""
    directory = ROOT / "tools/nsight-monitor/histograms"
    text = "".join(p.read_text() for p in directory.glob("*.bpf.h"))
    sections = set(re.findall(r'^SEC\("tp_btf/(\w+)"\)', text, re.M))
    sections |= {f"{name}()" for name in re.findall(r'^SEC\("fentry/(\w+)"\)', text, re.M)}
    needed = {
        name
        for names in re.findall(r'X\(\w+, "[^"]+", "[^"]+", "[^"]+", \\\n\s+"([^"]+)"', listed("STAGES"))
        for name in names.split()
    }
    assert needed == sections
