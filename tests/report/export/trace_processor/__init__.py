# SPDX-License-Identifier: GPL-2.0-only
"""Perfetto's own trace_processor, for tests of what is exported."""
