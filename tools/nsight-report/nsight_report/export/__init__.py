# SPDX-License-Identifier: GPL-2.0-only
"""The report as terminal text, as one JSON object, and as one HTML file."""
