# SPDX-License-Identifier: GPL-2.0-only
"""What nsight-capsule collected: packets, when they passed each point, and which layer delayed the slow ones."""

from collections.abc import Sequence
from pathlib import Path

from .collection import Collection, load
from .kernels import joined

__all__ = ["Collection", "load", "load_all"]


def load_all(paths: Sequence[Path]) -> Collection:
    """One directory, or one for each kernel on the packets' path; times are in the clock of the first. Raises BadInput."""
    parts = [load(path) for path in paths]
    return parts[0] if len(parts) == 1 else joined(parts)
