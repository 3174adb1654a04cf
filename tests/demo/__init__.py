# SPDX-License-Identifier: GPL-2.0-only
"""The demo, its load client and its namespaces."""
