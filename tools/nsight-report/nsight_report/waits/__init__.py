# SPDX-License-Identifier: GPL-2.0-only
"""What threads did and waited for in some intervals: each ns once, followed through the threads that woke them."""

from .activity import Activity
from .chains import DEPTH, explain

__all__ = ["DEPTH", "Activity", "explain"]
