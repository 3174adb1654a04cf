# SPDX-License-Identifier: GPL-2.0-only
"""Intervals from other sources: CSV files, spans, text of perf script; read, and converted to the recording's clock, threads and cores."""
