# SPDX-License-Identifier: GPL-2.0-only
"""``compare`` names the settings that differ between two machines, with the new and removed causes that they affect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from machinery.made_up.capture import manifest
from nsight_report.commands.settings import SETTINGS, differences, sentences
from nsight_report.manifest import Manifest, load

CAUSES = [
    {"cause": "CPU frequency and power (A)", "change": "went"},
    {"cause": "CPU idle (R)", "change": "stayed"},
    {"cause": "C-state exit latency (R)", "change": "came"},
]


def capture(directory: Path, **host: Any) -> Manifest:
    directory.mkdir()
    (directory / "manifest.json").write_text(json.dumps({**manifest(), "host": host}))
    return load(directory)


def test_a_setting_that_differs_is_named_with_the_causes_it_bears_on(tmp_path: Path) -> None:
    states = [{"name": "C6", "latency_us": 133, "disabled": False}]
    before = capture(
        tmp_path / "a", governor="powersave", smt="on", idle_states=[], pmu=False, affinity=[0, 1]
    )
    after = capture(
        tmp_path / "b", governor="performance", smt="on", idle_states=states, pmu=False, affinity=None
    )
    found = differences(before, after, CAUSES)
    assert [(of["setting"], of["causes"]) for of in found] == [
        ("governor", ["CPU frequency and power (A)"]),
        ("idle_states", ["C-state exit latency (R)"]),
        ("affinity", []),
    ]
    said = sentences(found)
    assert (
        said[0] == "governor: powersave before, performance after; it bears on CPU frequency and power (A)."
    )
    assert said[2] == "affinity: [0, 1] before, unknown after."


def test_what_an_older_capture_does_not_tell_is_no_difference(tmp_path: Path) -> None:
    found = differences(
        capture(tmp_path / "a"), capture(tmp_path / "b", governor="performance", turbo=True), []
    )
    assert found == []


def test_hostile_settings_are_cut_and_cannot_command_a_terminal(tmp_path: Path) -> None:
    before, after = (
        capture(tmp_path / name, **{of: [name, "\x1b[31m" * 1000] for of in SETTINGS}) for name in "ab"
    )
    said = sentences(differences(before, after, []))
    assert len(said) == len(SETTINGS)
    assert all(len(line) < 220 and "\x1b" not in line for line in said)
