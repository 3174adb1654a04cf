# SPDX-License-Identifier: GPL-2.0-only
"""What the documents and the structure of the tree promise."""
