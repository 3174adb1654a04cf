# SPDX-License-Identifier: GPL-2.0-only
"""Retries: counted, with their reasons, and too many fail the run.

A retry repeats what is judged, from its recording on, and is decided before anybody has looked at the answer:
a guest whose emulator died, a recording during which the host left the cores out. A failed test is never run again.
"""

from __future__ import annotations

from typing import Any

from . import notes

#: More in one run fail it: then the machine, not chance, is at fault, and somebody must look.
MOST = 10


def note(what: str, why: str) -> None:
    """``what`` is made once more, because of ``why``."""
    notes.write("retries", what=what, why=why)


def all_of(run: Any = None) -> list[dict[str, Any]]:
    """The retries of a run: test, what, why."""
    return notes.read("retries", run)
