# SPDX-License-Identifier: GPL-2.0-only
"""Tests of the demo, its load client and its namespaces."""
