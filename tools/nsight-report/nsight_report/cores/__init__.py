# SPDX-License-Identifier: GPL-2.0-only
"""What ran on the cores during slow messages, and during normal ones."""

from .occupancy import CONTEXTS, ROLES, summarise

__all__ = ["CONTEXTS", "ROLES", "summarise"]
