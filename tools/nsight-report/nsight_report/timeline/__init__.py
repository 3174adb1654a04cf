# SPDX-License-Identifier: GPL-2.0-only
"""The intervals of cores that belong to each message."""

from .detours import Detours, detours
from .sections import SIDES, A, Place, R, Sections, T, sections

__all__ = ["SIDES", "A", "Detours", "Place", "R", "Sections", "T", "detours", "sections"]
