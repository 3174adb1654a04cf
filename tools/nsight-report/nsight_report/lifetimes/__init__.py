# SPDX-License-Identifier: GPL-2.0-only
"""Message lifetimes (paper, section 4.1): streams of probe events joined into messages."""

from .build import build
from .options import FRAMINGS, LifetimeOptions

__all__ = ["FRAMINGS", "LifetimeOptions", "build"]
