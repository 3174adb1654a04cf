# SPDX-License-Identifier: GPL-2.0-only
"""The intervals of cores that belong to each message."""

from .detours import Detours, detours
from .sections import OF_THREADS, SIDES, A, Place, R, Sections, sections, threads_at, threads_of

__all__ = [
    "OF_THREADS",
    "SIDES",
    "A",
    "Detours",
    "Place",
    "R",
    "Sections",
    "detours",
    "sections",
    "threads_at",
    "threads_of",
]
