# SPDX-License-Identifier: GPL-2.0-only
"""What threads did in some intervals and what they waited for, each ns once, through whoever woke them."""

from .activity import Activity
from .chains import DEPTH, explain

__all__ = ["DEPTH", "Activity", "explain"]
