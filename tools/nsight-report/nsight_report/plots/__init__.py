# SPDX-License-Identifier: GPL-2.0-only
"""Figures. Each module has ``rows`` (what is drawn, and saved as CSV) and ``plot`` (draws it on Axes)."""
