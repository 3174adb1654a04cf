# SPDX-License-Identifier: GPL-2.0-only
"""Message lifetimes (paper, section 4.1): the streams of probe events joined into messages."""

from .build import build
from .options import FRAMINGS, Options

__all__ = ["FRAMINGS", "Options", "build"]
