# SPDX-License-Identifier: GPL-2.0-only
"""Which interval of which core belongs to which message."""

from .detours import Detours, detours
from .sections import SIDES, A, Place, R, Sections, sections

__all__ = ["SIDES", "A", "Detours", "Place", "R", "Sections", "detours", "sections"]
