# SPDX-License-Identifier: GPL-2.0-only
"""Tests of nsight-report: pipeline, command line, figures, exports."""
