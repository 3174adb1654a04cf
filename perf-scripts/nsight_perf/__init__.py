# SPDX-License-Identifier: GPL-2.0-only
"""Code shared by nsight.py and nsight-edges: the edge stream, raw records of perf.data, the summary.

Standard library only: it runs in the interpreter with which perf was linked.
"""
