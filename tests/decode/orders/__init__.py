# SPDX-License-Identifier: GPL-2.0-only
"""Random orders of Intel PT packets that hardware may write, with their meaning."""
