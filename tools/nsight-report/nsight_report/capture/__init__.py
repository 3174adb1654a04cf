# SPDX-License-Identifier: GPL-2.0-only
"""Reading the raw files of a capture."""
