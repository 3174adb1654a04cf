# SPDX-License-Identifier: GPL-2.0-only
"""Perfetto's trace_processor, for tests of the exported traces."""
