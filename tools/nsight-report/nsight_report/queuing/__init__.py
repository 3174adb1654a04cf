# SPDX-License-Identifier: GPL-2.0-only
"""How many were ahead of a message at each queue on its path (Fig. 19 of the paper), and what the messages that blocked it did."""

from .blocking import break_down
from .find import find

__all__ = ["break_down", "find"]
