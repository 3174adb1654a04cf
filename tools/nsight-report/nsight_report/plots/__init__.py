# SPDX-License-Identifier: GPL-2.0-only
"""Figures. Each module has ``rows`` (the data that is drawn, and saved as CSV) and ``plot`` (draws it on Axes)."""
