# SPDX-License-Identifier: GPL-2.0-only
"""What nsight-capsule collected: packets and when they passed which point, and which layer delayed the slow ones."""

from .collection import Collection, load

__all__ = ["Collection", "load"]
