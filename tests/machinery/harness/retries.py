# SPDX-License-Identifier: GPL-2.0-only
"""Retries are counted, with their reasons; too many fail the run.

A retry repeats a judged measurement, beginning with its recording. It is decided before the answer is known: the emulator of a
guest died, or the host took the cores away during a recording. A failed test is never run again.
"""

from __future__ import annotations

from typing import Any

from . import notes

#: More retries fail the run: then the machine, not chance, is the cause, and somebody must investigate.
MOST = 10


def note(what: str, why: str) -> None:
    """Record that ``what`` is repeated because of ``why``."""
    notes.write("retries", what=what, why=why)


def all_of(run: Any = None) -> list[dict[str, Any]]:
    """The retries of a run: test, what, why."""
    return notes.read("retries", run)
