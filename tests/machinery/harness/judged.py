# SPDX-License-Identifier: GPL-2.0-only
"""Judgements of live measurements, and the bound at which they fail a run.

A live test asserts what is certain (counts, orders, errors, cleanup) and passes the rest to ``judge``. At its end
the run prints every judgement. It fails only if more are wrong than a correct tree has by chance.
"""

from __future__ import annotations

from typing import Any

from . import notes


def judge(family: str, name: str, right: bool, figures: str) -> None:
    """One answer: ``right`` or not, with the figures that a reader needs to see why."""
    notes.write("judged", family=family, name=name, right=bool(right), figures=figures)


def all_of(run: Any = None) -> list[dict[str, Any]]:
    """The judgements of a run: test, family, name, right, figures."""
    return notes.read("judged", run)
