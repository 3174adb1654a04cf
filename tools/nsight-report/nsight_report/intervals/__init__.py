# SPDX-License-Identifier: GPL-2.0-only
"""Intervals that somebody else stamped: CSV files, spans, text of perf script, read and brought to the recording's clock, threads and cores."""
