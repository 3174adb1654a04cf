# SPDX-License-Identifier: GPL-2.0-only
"""Who had the cores of slow messages, and of normal ones."""

from .occupancy import CONTEXTS, ROLES, summarise

__all__ = ["CONTEXTS", "ROLES", "summarise"]
