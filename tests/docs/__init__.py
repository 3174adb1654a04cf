# SPDX-License-Identifier: GPL-2.0-only
"""Checks of the documents and of the tree's structure."""
