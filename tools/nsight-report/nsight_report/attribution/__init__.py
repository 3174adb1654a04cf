# SPDX-License-Identifier: GPL-2.0-only
"""From anomalies to root causes: attribution, categories, coverage."""

from .causes import attribute

__all__ = ["attribute"]
