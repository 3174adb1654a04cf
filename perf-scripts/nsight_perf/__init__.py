# SPDX-License-Identifier: GPL-2.0-only
"""What nsight.py and nsight-edges share: the edge stream, raw records of perf.data, the summary.

Standard library only: it runs in the interpreter that perf was linked with.
"""
