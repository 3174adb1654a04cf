# SPDX-License-Identifier: GPL-2.0-only
"""Steal time is read from the kernel's own count."""

from __future__ import annotations

from pathlib import Path

import pytest

from machinery.testbed import host


def test_stolen_time_is_the_eighth_figure_of_the_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: "cpu  1 2 3 4 5 6 7 88 9 10\ncpu0 0 0 0 0 0 0 0 0 0 0\n")
    monkeypatch.setattr(host.os, "sysconf", lambda _: 100)
    assert host.stolen_ms() == 880
